"""How many histories the slow tests play, and how they are judged."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tests.sim.cassandra.messages import MessageStorm

MANY = int(os.environ.get("SIM_CLUSTER_HISTORIES", "1000"))
"""Of each kind."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed."""


def violations(
    seeds: Sequence[int], breaking: tuple[str, ...] = ("",), *, storm: Callable[[int], MessageStorm] = MessageStorm
) -> list[str]:
    """Runs histories until a promise is broken, of those that are named; says which, with the seed."""
    for seed in seeds:
        found = [text for text in storm(seed).run() if text.startswith(breaking)]
        if found:
            return [f"seed {seed}: {text}" for text in found]
    return []
