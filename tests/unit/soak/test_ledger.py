"""The ledger of a soak run reports messages that are lost, shown twice or never stored."""

from __future__ import annotations

import itertools

import pytest

from tests.soak.ledger import Ledger


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
