"""The checker finds what is wrong with a history, and nothing else; plans of faults are what they should be."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.qdo.faults.checking.checker import check
from tests.qdo.faults.checking.counts import count, vacuous
from tests.qdo.faults.checking.history import History
from tests.qdo.faults.checking.simulated import MESSAGES, good_records
from tests.qdo.faults.checking.spoiled import SPOILS
from tests.qdo.faults.nemesis import EVERYBODY, LEAST, WEIGHTS, draw

SEEDS = st.integers(0, 1 << 16)
SLOTS = ["w1", "w2", "w3", "w4"]
APART = ["w2", "w3"]


@given(seed=SEEDS)
def test_good_histories(seed: int) -> None:
    """Nothing is found where nothing is wrong."""
    assert check(History(good_records(seed))) == []


@pytest.mark.parametrize("what", sorted(SPOILS))
@given(seed=SEEDS)
def test_spoiled_histories(what: str, seed: int) -> None:
    """Whatever is spoiled is found."""
    rules, spoil = SPOILS[what]
    found = check(History(spoil(good_records(seed), random.Random(seed))))
    assert rules <= {violation.rule for violation in found}, found


def test_every_rule_is_tested() -> None:
    """There is a way to spoil a history for each rule."""
    rules = {"lost", "order", "stay", "alone", "halted", "fenced", "back", "ahead", "twice", "shaken", "moved", "end"}
    assert set().union(*(rules for rules, _ in SPOILS.values())) == rules


def test_what_is_counted() -> None:
    """Messages, and how often and why they were handled again."""
    found = count(History(good_records(1)))
    assert found.messages == MESSAGES
    assert found.twice.keys() <= {"kill", "expire", "hush"}
    assert sum(found.twice.values()) > 0
    assert vacuous(found, messages=MESSAGES, kill=1, twice=1) == []
    assert vacuous(found, messages=MESSAGES + 1) != []


@given(seed=SEEDS)
def test_plans(seed: int) -> None:
    """A plan has as many events as asked for, is the same for a seed, and always leaves somebody to work."""
    events = draw(seed, 100, SLOTS, 2.0, WEIGHTS, apart=APART)
    assert events == draw(seed, 100, SLOTS, 2.0, WEIGHTS, apart=APART)
    assert [event.at for event in events] == sorted(event.at for event in events)
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
