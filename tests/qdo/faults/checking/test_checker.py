"""The checker finds what is wrong with a history, and nothing else; schedules of faults are what they should be."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.results import too_few
from tests.qdo.faults.checking.checker import RULES, check
from tests.qdo.faults.checking.counts import AGAIN, count
from tests.qdo.faults.checking.history import History
from tests.qdo.faults.checking.simulated import MESSAGES, good_records
from tests.qdo.faults.checking.spoiled import SPOILS
from tests.qdo.faults.schedule import EVERYBODY, LEAST, WEIGHTS, draw

SEEDS = st.integers(0, 1 << 16)
SLOTS = ["w1", "w2", "w3", "w4"]
APART = ["w2", "w3"]
SECONDS = 120.0


@given(seed=SEEDS)
def test_good_histories(seed: int) -> None:
    """Nothing is found where nothing is wrong."""
    assert check(History(good_records(seed))) == []


@pytest.mark.parametrize("what", sorted(SPOILS))
@given(seed=SEEDS)
def test_spoiled_histories(what: str, seed: int) -> None:
    """Whatever is spoiled is found."""
    rules, spoil = SPOILS[what]
    spoiled = spoil(good_records(seed), random.Random(seed))
    assert spoiled is not None
    found = check(History(spoiled))
    assert rules <= {violation.rule for violation in found}, found


def test_every_rule_is_tested() -> None:
    """There is a way to spoil a history for each rule."""
    assert set().union(*(rules for rules, _ in SPOILS.values())) == RULES.keys()


def test_what_is_counted() -> None:
    """Messages, and how often and why they were handled again."""
    found = count(History(good_records(1)))
    assert (found["messages"], found["acknowledged"]) == (MESSAGES, MESSAGES)
    assert {name for name in found if name.startswith(AGAIN)} <= {AGAIN + kind for kind in ("kill", "expire", "hush")}
    assert too_few(found, {"messages": MESSAGES, "twice": 1}) == []
    assert too_few(found, {"messages": MESSAGES + 1}) != []


@given(seed=SEEDS)
def test_schedules(seed: int) -> None:
    """A schedule is as long as asked for, is the same for a seed, and always leaves somebody to work."""
    events = draw(seed, SECONDS, SLOTS, 2.0, WEIGHTS, apart=APART)
    assert events == draw(seed, SECONDS, SLOTS, 2.0, WEIGHTS, apart=APART)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert SECONDS - 10 < events[-1].at <= SECONDS
    there = set(SLOTS[:LEAST])
    for event in events:
        if event.kind == "join":
            assert event.target not in there
            there.add(event.target)
        elif event.kind in {"kill", "leave"}:
            there.remove(event.target)
        assert len(there) >= LEAST
        assert event.target in (APART if event.kind == "silence" else [*SLOTS, EVERYBODY])
    breaks = [event for event in events if event.target == EVERYBODY and event.seconds]
    assert all(after.at > before.at + before.seconds for before, after in pairwise(breaks))
