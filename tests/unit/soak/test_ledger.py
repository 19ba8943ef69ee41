"""The ledger of a soak run reports messages that are lost, shown twice or never stored."""

from __future__ import annotations

import itertools

import pytest

from tests.soak.ledger import Lag, Ledger


@pytest.fixture
def ledger() -> Ledger:
    """A ledger with one consumer of each kind; a second passes between two reads of the clock."""
    seconds = itertools.count()
    return Ledger(["reader"], ["claims"], lambda: next(seconds))


def test_nothing_is_told_when_all_was_seen(ledger: Ledger) -> None:
    """Nothing is reported if all messages were seen, even before their acknowledgement, or twice by some consumers."""
    ledger.record_received("reader", [1])
    ledger.acknowledge([1, 2])
    ledger.record_received("reader", [2])
    ledger.record_received("claims", [2, 1, 1])
    assert ledger.violations() == []
    assert ledger.acknowledged == 2
    assert ledger.seen() == {"reader": 2, "claims": 3}


def test_a_lost_message_is_told(ledger: Ledger) -> None:
    """Each consumer has to see each message."""
    ledger.acknowledge([1, 2])
    ledger.record_received("reader", [1, 2])
    ledger.record_received("claims", [2])
    assert ledger.violations() == ["claims never saw 1 acknowledged messages: 1"]


@pytest.mark.parametrize("shown", [[1, 1], [1, 9]])
def test_what_must_not_be_shown_is_told(ledger: Ledger, shown: list[int]) -> None:
    """A message shown twice, and a shown message that the service refused, are reported."""
    ledger.acknowledge([1])
    ledger.record_received("reader", shown)
    ledger.record_received("claims", [1])
    assert ledger.violations() == [f"reader saw 1 messages twice or unacknowledged: {shown[-1]}"]


@pytest.mark.parametrize(
    ("may_move", "ids", "is_wrong"),
    [(True, "ab", False), (True, "aa", True), (True, "aba", True), (False, "ab", True)],
)
def test_a_message_may_be_shown_under_a_new_id_where_it_may_move(*, may_move: bool, ids: str, is_wrong: bool) -> None:
    """On Cassandra a repeated post may move a message; under one id it is still shown only once."""
    ledger = Ledger(["reader"], [], may_move=may_move)
    ledger.acknowledge([1])
    for identifier in ids:
        ledger.record_shown("reader", [(1, identifier)])
    assert bool(ledger.violations()) == is_wrong
    assert ledger.moved() == {"reader": int(may_move and "b" in ids)}
    ledger.record_shown("reader", [(2, "c"), (2, "d")])
    assert "reader saw" in str(ledger.violations())  # It was not acknowledged.


def test_a_message_of_unknown_outcome_may_be_shown_or_not(ledger: Ledger) -> None:
    """A message whose writer got no answer may be shown or not."""
    ledger.record_unknown([1, 2])
    ledger.record_received("reader", [2])
    assert ledger.violations() == []


def test_lag_is_what_was_acknowledged_and_not_seen(ledger: Ledger) -> None:
    """The lag is counted in messages, and in seconds since the oldest of them was acknowledged."""
    ledger.acknowledge([1])
    ledger.acknowledge([2])
    ledger.record_received("claims", [1, 2])
    assert ledger.lags() == {"reader": Lag(2, 2), "claims": Lag(0, 0)}
