"""The number of histories in slow tests, and their judgement."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

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
