"""The guarantees of groups, in histories with faults in simulated time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.sim.groups.served.aimed import Changing
from tests.sim.groups.served.storm import ServiceStorm
from tests.sim.groups.storm import Storm, play, run_history
from tests.sim.groups.trees.storm import TreeStorm
from tests.sim.playing import find_violations, histories

needs_histories = pytest.mark.needs_histories
HISTORIES = 2000
"""Histories of `make check`. `make test` runs the first part of them."""
MANY = int(os.environ.get("SIM_HISTORIES", "100000"))
"""Histories of the slow tests."""
PARTS, MANY_PARTS = 100, 4
"""Tests that share these histories, so that several processes can run them and none takes minutes without output."""
HANGING = 33
"""The seed of a history with hanging handlers."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed of the slow tests."""

KINDS: Mapping[str, type[Storm]] = {"service": ServiceStorm, "tree": TreeStorm, "changing": Changing}
FORMER_FAULTS = {
    "a message began twice, because gaps were still filled after their deadline": 31017,
    "a message began again, because gaps were filled after a hung attempt had handed its partition over": 38445,
    "a program whose callback was cancelled was taken for a second owner": 12197,
    "a removed queue kept its owners, because a report that failed was stored, and its correction was not sent": 5727,
    "a late commit of a former stay was taken for one of the last stay": 76129,
    "handlers that hung one after another in one partition were given no time for all of them": 48747,
}
"""Seeds of histories in a tree that once broke a guarantee."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=needs_histories) for part in range(1, PARTS))])
def test_guarantees(part: int, kind: str) -> None:
    """Whatever fails: one owner at a time, in order, nothing lost, offsets neither back nor ahead, and then balance.

    In a group of the service also O1 to O7, with the sessions of real consumers and a client by the protocol; only
    these where queues are recreated, keys revoked, and offsets recorded and deleted from outside.
    """
    assert find_violations(range(part, HISTORIES, PARTS), play(KINDS[kind])) == []


@pytest.mark.parametrize("fault", FORMER_FAULTS)
def test_former_faults(fault: str) -> None:
    """The guarantees hold in histories that once broke one of them."""
    assert find_violations([FORMER_FAULTS[fault]], play(TreeStorm)) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(MANY_PARTS))
def test_guarantees_in_many_histories(part: int, kind: str) -> None:
    """The guarantees hold in ``SIM_HISTORIES`` histories from the seed ``SIM_SEED`` on."""
    assert find_violations(range(FIRST + part, FIRST + MANY, MANY_PARTS), play(KINDS[kind]), enough=10) == []


@pytest.mark.parametrize("kind", ["service", "tree"])
def test_histories_have_every_outcome(kind: str) -> None:
    """Messages are handled in each history, some again; sessions are lost; all members run; a seed fixes everything."""
    with histories():
        first = [run_history(seed, KINDS[kind]) for seed in (*range(2, 14), HANGING)]
        assert [run_history(seed, KINDS[kind]).deeds for seed in range(2, 4)] == [
            history.deeds for history in first[:2]
        ]
    assert all(len(history.deeds) > 5 for history in first)
    again = sum(len(history.deeds) - len({deed[2] for deed in history.deeds}) for history in first)
    assert again > 0
    assert all(len(history.loops) > 2 for history in first)
    attempts = sum((history.attempts for history in first), Counter())
    programs = {"consumer", "worker", "worker in order of keys"} | ({"scripted"} if kind == "service" else set())
    assert programs | {"failed", "hung", "late"} <= attempts.keys()


def test_offsets_change_from_outside() -> None:
    """Partitions are handed over in each way; offsets are committed, and recorded or deleted from outside."""
    wanted = {"owned new", "owned given back", "owned lost", "taken", "committed", "plain", "forget"}
    counts: Counter[str] = Counter()
    with histories():
        for seed in range(22, 222):
            counts += run_history(seed, Changing).counts
            if wanted <= counts.keys():
                return
    assert wanted <= counts.keys()
