"""What a store keeps of a consumer group: the rows of its state, sessions of members, owners of partitions."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from queuey.model.errors import Conflict
from queuey.model.ids import Position

MAX_NOTE_BYTES = 1024
"""Max bytes of a note."""
Origin = Literal["new", "given back", "lost"]
"""How a partition came to its owner: it was new, or the previous owner gave it back or was lost."""


class GroupHead(msgspec.Struct, frozen=True):
    """The row that every change of a group's state rewrites.

    Attributes:
        version: Token that changes compare; 0 if the group does not exist yet.
        epoch: Epoch of the plan.
        born: First epoch of the group.
        due: When the next plan is due, or None if no plan is needed.
        busy: Number of recent plans that closely followed the one before.
        last_member: The highest member number given out.
        hour, hour_member: Beginning of the hour in which joins are counted, and ``last_member`` at that time.
        centre: Data centre of the group; blank on stores without data centres.
        moved: When the group was moved to this data centre, or 0.
        creator: Id of the credential whose join created the group.
    """

    version: int = 0
    epoch: int = 0
    born: int = 0
    due: int | None = None
    busy: int = 0
    last_member: int = 0
    hour: int = 0
    hour_member: int = 0
    centre: str = ""
    moved: int = 0
    creator: bytes = b""


RowKind = Literal[0, 1, 2]
SUBSCRIPTION, MEMBER, CHUNK = 0, 1, 2


class GroupRow(msgspec.Struct, frozen=True):
    """A row of a group's state, which stores do not interpret.

    Attributes:
        kind: Subscription, member or chunk of the plan.
        key: Slot of the row.
        body: Encoded value; blank if the slot is free.
    """

    kind: int
    key: int
    body: bytes


class StoredGroup(msgspec.Struct, frozen=True):
    head: GroupHead
    rows: tuple[GroupRow, ...] = ()


class GroupChange(msgspec.Struct, frozen=True):
    """The rows that a transaction writes. The store sets the version of the new head."""

    head: GroupHead
    rows: tuple[GroupRow, ...]


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

    code = "Conflict"

    def __init__(self, version: int) -> None:
        super().__init__("Members of the group own partitions of the queue.")
        self.version = version
