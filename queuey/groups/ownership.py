"""Owners of partitions and sessions of members, as stored."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from queuey.errors import Conflict
from queuey.ids import Position

MAX_NOTE_BYTES = 1024
"""Max bytes of a note."""
Origin = Literal["new", "given back", "lost"]
"""How a partition came to its owner: it was new, or the previous owner gave it back or was lost."""


class OwnedOffset(msgspec.Struct, frozen=True):
    """The offset of a partition and its owner, in a consumer group with members managed by the service.

    Attributes:
        position: Last message committed, or None before the first commit.
        updated: When the offset was recorded (seconds since 1970), or 0.
        owner: Number of the member that owns the partition, or 0.
        epoch: Epoch of the plan that gave the partition to its last owner, or 0. It stays after the partition is given
            back.
        came: How the partition came to its owner; without an owner, how the last one left it.
        note: Note of the last commit, at most ``MAX_NOTE_BYTES`` bytes.
    """

    partition: int
    position: Position | None = None
    updated: float = 0.0
    owner: int = 0
    epoch: int = 0
    came: Origin = "new"
    note: bytes | None = None


class OwnedOffsets(msgspec.Struct, frozen=True):
    """Offsets and owners of a group for a queue.

    Attributes:
        version: Token that the next change compares, or None if nothing was ever recorded.
        rows: Rows by partition.
        deleted_epoch: Highest epoch of the rows that were deleted, or 0. No partition gets an owner under it again.
    """

    version: int | None
    rows: dict[int, OwnedOffset]
    deleted_epoch: int = 0

    def highest_epoch(self) -> int:
        """Returns the highest epoch under which a member ever owned a partition, or 0."""
        return max([self.deleted_epoch, *(row.epoch for row in self.rows.values())])


class MemberCommit(msgspec.Struct, frozen=True):
    """Restricts a commit of offsets to partitions that a member owns under the given epochs.

    Attributes:
        member: Number of the member.
        epochs: Epoch of the ownership by partition.
        notes: Notes by partition. None removes a note; a partition without an item keeps its note.
    """

    member: int
    epochs: dict[int, int]
    notes: dict[int, bytes | None]


class ClockSample(NamedTuple):
    """A moment on two clocks of this process.

    Attributes:
        now: The clock of claims (ms since 1970).
        since_boot: Seconds since boot, by which clock checks order moments.
    """

    now: int
    since_boot: float = 0.0


class SeenMember(msgspec.Struct, frozen=True):
    """When a member was last seen (ms), and the uids of queues in which others ask it to give partitions back."""

    seen: int
    asked: frozenset[int] = frozenset()


class GroupSessions(msgspec.Struct, frozen=True):
    """The sessions of a group.

    Attributes:
        clock: Time of a sound clock, sampled before the sessions were read (ms).
        searched: When a process last searched for queues (ms), or 0.
        members: Sessions by member number.
    """

    clock: int
    searched: int
    members: dict[int, SeenMember]


class PartitionsOwned(Conflict):
    """Partitions of the queue have owners in the group. Nothing was changed.

    Args:
        version: Version of the recorded offsets.
    """

    def __init__(self, version: int) -> None:
        super().__init__("Members of the group own partitions of the queue.")
        self.version = version
