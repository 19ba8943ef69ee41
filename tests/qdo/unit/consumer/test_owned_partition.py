"""Where a partition stands: where it begins, and what may be committed of it."""

from __future__ import annotations

import pytest

from qdo.consumer.owned_partition import OwnedPartition
from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.errors import InvalidArgument
from queuey.client import EARLIEST, id_after
from tests.qdo.unit.samples import ONE, message_id


def track(committed: int | None = None, position: int | None = None) -> OwnedPartition:
    """Gives a track that was handed out up to a position."""
    offset = CommittedOffset(None if committed is None else message_id(committed))
    made = OwnedPartition(ONE, OwnedOffset(ONE, offset, 1))
    made.place(made.recorded)
    if position is not None:
        made.position = message_id(position)
    return made


def test_it_begins_after_what_was_committed() -> None:
    """Or with the lowest id there can be; a seek to the beginning is the same."""
    assert track(5).fetch_from == id_after(message_id(5))
    assert track().fetch_from == EARLIEST
    moved = track(5)
    moved.seek(EARLIEST)
    assert moved.fetch_from == EARLIEST


def test_only_what_was_handed_out_is_committed() -> None:
    """An id above the position is refused, and so is anything while nothing was handed out."""
    assert track(position=5).accepts(message_id(5))
    assert track(position=5).accepts(message_id(3))
    for refused in (track(position=5), track()):
        with pytest.raises(InvalidArgument, match="not returned"):
            refused.accepts(message_id(6))


def test_commits_do_not_go_back_unless_somebody_sought() -> None:
    """Below what is recorded, or being recorded, only who went back on purpose may commit."""
    one = track(3, position=9)
    with pytest.raises(InvalidArgument, match="is before"):
        one.accepts(message_id(2))
    one.pending_offset = message_id(7)
    with pytest.raises(InvalidArgument, match="is before"):
        one.accepts(message_id(5))
    one.seek(message_id(2))
    assert one.accepts(message_id(1))


def test_what_is_recorded_already_is_not_recorded_again() -> None:
    """The same id as before is no change."""
    assert not track(3, position=9).accepts(message_id(3))


@pytest.mark.parametrize("text", ["", "5", "not an id", None])
def test_an_id_is_an_id(text: str) -> None:
    """Anything else is refused before it can be recorded."""
    with pytest.raises(InvalidArgument, match="not a message id"):
        track(position=5).accepts(text)
