"""The guarantees of groups, in histories with faults in simulated time."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.sim.groups.playing import find_violations, histories
from tests.sim.service_groups.storm import Storm

needs_histories = pytest.mark.needs_histories
HISTORIES = 2000
"""Histories of `make check`. `make test` runs the first part of them."""
MANY = int(os.environ.get("SIM_HISTORIES", "100000"))
"""Histories of the slow tests."""
PARTS, MANY_PARTS = 40, 4
"""Tests that share these histories, so that several processes can run them and none takes minutes without output."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed of the slow tests."""
FORMER_FAULTS = {
    "a member was told no note, by rows that were read before its heartbeat was recorded": 16404,
    "a partition had two ownerships under one epoch, because its offset was deleted between them": 65380,
    "a plan that also divided what a removed member had was taken for that of a returning instance alone": 40445,
    "a process with an older plan told a member that it had lost a partition of a queue made anew": 70713,
    "an owner in a removed group was taken for a member with its number": 59189,
}
"""Seeds of histories that once broke a guarantee."""


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=needs_histories) for part in range(1, PARTS))])
def test_guarantees(part: int) -> None:
    """O1 to O7 hold, whatever fails."""
    assert find_violations(range(part, HISTORIES, PARTS), Storm) == []


@pytest.mark.parametrize("fault", FORMER_FAULTS)
def test_former_faults(fault: str) -> None:
    """O1 to O7 hold in histories that once broke one of them."""
    assert find_violations([FORMER_FAULTS[fault]], Storm) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("part", range(MANY_PARTS))
def test_guarantees_in_many_histories(part: int) -> None:
    """O1 to O7 hold in ``SIM_HISTORIES`` histories from the seed ``SIM_SEED`` on."""
    assert find_violations(range(FIRST + part, FIRST + MANY, MANY_PARTS), Storm, enough=10) == []


def test_histories_have_every_outcome() -> None:
    """Partitions are handed over in each way and offsets are recorded; a seed determines the history."""
    with histories():
        first = [Storm(seed).run() for seed in range(20)]
        again = [Storm(seed).run() for seed in range(3)]
    assert [one.counts for one in again] == [one.counts for one in first[:3]]
    counts = sum((one.counts for one in first), type(first[0].counts)())
    with histories():
        # A commit outside a membership rarely finds the group without members.
        more = (Storm(seed).run().counts for seed in range(20, 200))
        assert any({"plain", "forget"} & each.keys() for each in itertools.chain([counts], more))
    assert {"owned new", "owned given back", "owned lost", "taken", "committed"} <= counts.keys()
    assert all(one.counts["taken"] > 0 for one in first)
