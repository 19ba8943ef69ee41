"""Owners of partitions and sessions of members, as stores have them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from queuey.errors import Conflict
from queuey.ids import Position

MAX_NOTE = 1024
"""Max bytes of a note."""
Origin = Literal["new", "given back", "lost"]
"""How a partition came to its owner: nobody had it, the one before gave it back, or was lost."""


class OwnedOffset(msgspec.Struct, frozen=True):
    """The offset of a partition, with its owner in a consumer group whose members the service knows.

    Attributes:
        position: Last message committed, or None if nothing was.
        updated: Seconds since 1970 when the offset was recorded; 0: never.
        owner: Number of the member; 0: nobody owns it.
        epoch: Epoch of the plan by which the owner became that, or 0; it stays when the partition is given back.
        came: How it came to its owner; without an owner, how it was left.
        note: What the last commit noted, at most ``MAX_NOTE`` bytes.
    """

    partition: int
    position: Position | None = None
    updated: float = 0.0
    owner: int = 0
    epoch: int = 0
    came: Origin = "new"
    note: bytes | None = None


class OwnedOffsets(msgspec.Struct, frozen=True):
    """What a group has recorded for a queue.

    Attributes:
        version: Compared by the next change, or None if nothing was ever recorded.
        rows: By partition.
    """

    version: int | None
    rows: dict[int, OwnedOffset]


class MemberCommit(msgspec.Struct, frozen=True):
    """Makes a change of offsets one of a member: it counts for partitions that the member owns under their epochs.

    Attributes:
        member: Its number.
        epochs: By partition.
        notes: By partition; None removes the note, a partition that is missing keeps it.
    """

    member: int
    epochs: dict[int, int]
    notes: dict[int, bytes | None]


class ClockSample(NamedTuple):
    """A moment of this process.

    Attributes:
        now: The clock of claims (ms since 1970).
        since_boot: Seconds, by which checks of the clock tell moments apart.
    """

    now: int
    since_boot: float = 0.0


class SeenMember(msgspec.Struct, frozen=True):
    """When a member was seen (ms), and the uids of queues of which others ask it to give partitions back."""

    seen: int
    asked: frozenset[int] = frozenset()


class GroupSessions(msgspec.Struct, frozen=True):
    """The sessions of a group.

    Attributes:
        clock: A sound clock, sampled before they were read (ms).
        searched: When a process last searched for queues (ms); 0: none did.
        members: By number.
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
