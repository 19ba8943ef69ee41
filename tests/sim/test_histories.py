"""The guarantees of claims in hundreds of histories of every kind, whatever fails."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from queuey.claims.log import message_finder
from queuey.claims.rules.partition_state import MAX_ABOVE
from queuey.claims.rules.waiting import MAX_WAITING
from tests.harness.checking.claims import SIMULATED
from tests.harness.checking.rules import check
from tests.sim.expiry import History
from tests.sim.mutations.table import KINDS, LITTLE, SHORT_SCANS, Patches, list_seeds
from tests.sim.playing import find_violations, patched
from tests.sim.storm import Storm
from tests.sim.web import Setup

MANY = int(os.environ.get("SIM_HISTORIES", "10000"))
"""Histories of the slow test."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed of the slow test."""
SHORT = 5
"""Histories of short scans."""
COMMON = ("any", "ordered", "failing")
"""The kinds that ``make test`` runs."""
MARKED = [*COMMON, *(pytest.param(name, marks=pytest.mark.needs_histories) for name in KINDS if name not in COMMON)]


@pytest.mark.parametrize("name", MARKED)
def test_guarantees(name: str) -> None:
    """Whatever fails, no message is given to two clients at once, too often, or after its end; none is lost.

    None is free while a claim gets an empty answer. Messages of a key of an ordered queue are given in order. No more
    are claimed at once than the queue's limits. An expired message becomes one dead letter, where the queue says so.
    """
    kind = KINDS[name]
    with patched(kind.patches):
        assert find_violations(list_seeds(name), kind.play) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
@pytest.mark.parametrize("name", KINDS)
def test_guarantees_in_many_histories(name: str) -> None:
    """The guarantees hold in ``SIM_HISTORIES`` histories from ``SIM_SEED`` on, of most kinds in a quarter of that."""
    kind = KINDS[name]
    with patched(kind.patches):
        assert find_violations(range(FIRST, FIRST + (MANY if name == "any" else MANY // 4)), kind.play) == []


ABOVE: Patches = [(message_finder, MAX_ABOVE, 2)]
WAITING: Patches = [(message_finder, MAX_WAITING, 2)]


@pytest.mark.parametrize(
    ("name", "limits", "rules"),
    [
        ("any", SHORT_SCANS, ("",)),
        ("any", ABOVE, ("",)),
        ("ordered", SHORT_SCANS, ("",)),
        ("ordered", ABOVE, ("",)),
        ("ordered", WAITING, ("",)),
        ("forgetful", ABOVE, ("",)),
        ("ordered, forgetful", SHORT_SCANS, ("",)),
        ("two of a key", SHORT_SCANS[:1], ("",)),
        ("two of a key", ABOVE, ("G", "places", "limit")),
        ("two of a key", WAITING, ("G", "places", "limit")),
    ],
)
def test_guarantees_of_short_scans(name: str, limits: Patches, rules: tuple[str, ...]) -> None:
    """The guarantees hold if scans rarely reach the end of the messages, and little is remembered."""
    kind = KINDS[name]
    with patched([*kind.patches, *limits]):
        assert find_violations(range(SHORT), kind.play, breaking=rules) == []


def test_histories_have_every_outcome() -> None:
    """Most messages are posted, given, given again, and acknowledged; some are given up, or become dead letters."""
    with patched(LITTLE):
        histories = [Storm(seed).run() for seed in range(20)]
        failing = [Storm(seed, Setup(failing=0.6)).run() for seed in range(10)]
    assert [check(history, SIMULATED) for history in histories] == [[]] * len(histories)
    posted = sum(len(history.acknowledged) for history in histories)
    given = sum(len(history.deliveries) for history in histories)
    outcomes = [one.outcome for history in histories for one in history.acknowledgements]
    assert posted > 70
    assert given > posted
    assert outcomes.count("done") > posted / 2
    assert "superseded" in outcomes
    assert sum(one.outcome == "done" for history in failing for one in history.given_up) > 10
    expiring = [History(seed) for seed in range(5)]
    assert [history.run() for history in expiring] == [[]] * len(expiring)
    assert sum(len(history.replicas.letters) for history in expiring) > 5
    assert sum(len(history.done) for history in expiring) > 0


def test_a_seed_determines_the_history() -> None:
    """A seed gives the same history again, whenever garbage is collected."""
    with patched(LITTLE):
        histories = [Storm(seed).run() for seed in range(4)]
        with collecting_often():
            assert [Storm(seed).run() for seed in range(4)] == histories
    first, again = History(3), History(3)
    assert (first.run(), first.replicas.letters) == (again.run(), again.replicas.letters)


@contextmanager
def collecting_often() -> Iterator[None]:
    """Collects garbage all the time, which ends coroutines of crashed processes."""
    before = gc.get_threshold()
    gc.set_threshold(10, 2, 2)
    try:
        yield
    finally:
        gc.set_threshold(*before)
