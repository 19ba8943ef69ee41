"""Which ids of a partition may be committed."""

from __future__ import annotations

import pytest

from qdo.consumer.owned_partition import OwnedPartition
from qdo.coordination import CommittedOffset, OwnedOffset
from qdo.errors import InvalidArgument
from tests.qdo.unit.samples import ONE, message_id


def make_row(committed: int | None = None, position: int | None = None) -> OwnedPartition:
    offset = CommittedOffset(None if committed is None else message_id(committed))
    made = OwnedPartition(ONE, OwnedOffset(ONE, offset, 1))
    made.set_position(made.recorded)
    if position is not None:
        made.position = message_id(position)
    return made


def test_commits_do_not_go_back_unless_somebody_sought() -> None:
    """Only after a seek back may a commit go below the id that is recorded or being recorded."""
    partition = make_row(3, position=9)
    with pytest.raises(InvalidArgument, match="is before"):
        partition.needs_recording(message_id(2))
    partition.pending_offset = message_id(7)
    with pytest.raises(InvalidArgument, match="is before"):
        partition.needs_recording(message_id(5))
    partition.seek(message_id(2))
    assert partition.needs_recording(message_id(1))


def test_what_is_recorded_already_is_not_recorded_again() -> None:
    """A commit of the recorded id is not a change."""
    assert not make_row(3, position=9).needs_recording(message_id(3))
