"""The number of histories in slow tests, and mutations of the Cassandra store."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

from tests.sim.cassandra.messages import MessageStorm
from tests.sim.playing import Mutation, Patch, Play

MANY = int(os.environ.get("SIM_CLUSTER_HISTORIES", "1000"))
"""Number of histories of each kind."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed."""
Kind = Callable[[int], MessageStorm]


@cache
def play(storm: Kind = MessageStorm) -> Play:
    return lambda seed: storm(seed).run()


def broken(storm: Kind, rules: str, seed: int, *patches: Patch) -> Mutation:
    """Returns a mutation that breaks one of some rules in the history of a seed."""
    return Mutation(play(storm), tuple(rules.split()), patches, seed)
