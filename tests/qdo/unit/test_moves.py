"""Moves of offsets: what changes, and what would be handled again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.moves import Move
from qdo.partitions import Partition, Queue
from queuey.client import id_before, order_of

QUEUE = Queue("host", "app", "orders")
PLACE = Partition(QUEUE, 1)
EARLY, LATE = id_before(1_000_000_000), id_before(1_000_000_001)


@pytest.mark.parametrize(
    ("before", "after", "changes", "back"),
    [
        (None, None, False, False),
        (None, EARLY, True, False),
        (EARLY, None, True, True),
        (EARLY, LATE, True, False),
        (LATE, EARLY, True, True),
        (EARLY, EARLY.upper(), False, False),
    ],
)
def test_moves_know_their_direction(before: str | None, after: str | None, changes: bool, back: bool) -> None:  # noqa: FBT001
    """A move goes back when something that counted as processed would not do so any more."""
    move = Move(PLACE, before, after)
    assert (move.changes, move.goes_back) == (changes, back)


@given(st.floats(1e9, 2e9), st.floats(1e9, 2e9))
def test_direction_is_that_of_time(one: float, other: float) -> None:
    """Of two ids the one of the later instant is ahead."""
    before, after = id_before(one), id_before(other)
    assert Move(PLACE, before, after).goes_back == (order_of(after) < order_of(before))
