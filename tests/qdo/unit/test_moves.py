"""Moves of offsets: which of them change an offset."""

from __future__ import annotations

import pytest

from qdo.moves import Move
from qdo.partitions import Partition, Queue
from queuey.client import id_before

PLACE = Partition(Queue("host", "app", "orders"), 1)
EARLY, LATE = id_before(1_000_000_000), id_before(1_000_000_001)


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (None, None, False),
        (None, EARLY, True),
        (EARLY, None, True),
        (EARLY, LATE, True),
        (LATE, EARLY, True),
        (EARLY, EARLY.upper(), False),
    ],
)
def test_a_move_to_the_same_offset_changes_nothing(before: str | None, after: str | None, changes: bool) -> None:  # noqa: FBT001
    """Ids are compared by their order, not as text."""
    assert Move(PLACE, before, after).is_change == changes
