"""The number of histories in slow tests, their judgement, and mechanisms without which a history breaks a rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.sim.cassandra.messages import MessageStorm

MANY = int(os.environ.get("SIM_CLUSTER_HISTORIES", "1000"))
"""Number of histories of each kind."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed."""


def find_violations(
    seeds: Sequence[int], breaking: tuple[str, ...] = ("",), *, storm: Callable[[int], MessageStorm] = MessageStorm
) -> list[str]:
    """Runs histories until one violates a rule in ``breaking``. Returns its violations with the seed."""
    for seed in seeds:
        broken = [text for text in storm(seed).run() if text.startswith(breaking)]
        if broken:
            return [f"seed {seed}: {text}" for text in broken]
    return []


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        breaks: The rules of which one fails without it.
        instead: Takes it out.
        first: The seed of the history that shows this. If it does not any more, another one has to be found.
        storm: The kind of the history.
    """

    breaks: tuple[str, ...]
    instead: Callable[[], AbstractContextManager[None]]
    first: int = 0
    storm: Callable[[int], MessageStorm] = MessageStorm

    def find_violations(self) -> list[str]:
        """Returns the violations of its history without the mechanism."""
        with self.instead():
            return find_violations([self.first], self.breaks, storm=self.storm)
