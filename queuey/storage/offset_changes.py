"""What a call makes of a group's offsets, whatever the store."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from queuey import ids
from queuey.errors import Conflict, InvalidRequest, OffsetConflict
from queuey.messages import Offset, OffsetChange, Queue

MOST_GROUPS = 1000
"""Of one queue: a listing has them all. A few more, if several processes record new ones at the same moment."""
MOST_READERS = 10_000
"""Of one queue, in the same way. They are in no listing."""
READERS = "~"
"""Begins the groups that are readers, each with the mark of how far it has read. Sorted, they follow all others."""


def check(queue: Queue, changes: Sequence[OffsetChange]) -> None:
    """Makes sure that a queue has the partitions of changes.

    Raises:
        InvalidRequest: It does not.
    """
    for change in changes:
        if not 0 < change.partition <= queue.partitions:
            raise InvalidRequest({f"partitions.{change.partition}": "is not a partition of this queue"})


def check_group_count(queue: Queue, groups: int, *, readers: bool = False) -> None:
    """Makes sure that a queue that has so many groups, or so many readers, may have another one.

    Raises:
        Conflict: It may not.
    """
    if readers:
        if groups >= MOST_READERS:
            raise Conflict(f"Queue {queue.name!r} keeps read marks for {groups} readers and takes no further reader.")
    elif groups >= MOST_GROUPS:
        raise Conflict(
            f"Queue {queue.name!r} has {groups} consumer groups and may have no more. Forget one that is not used: "
            f"queuey offsets delete {quote(queue.name)} GROUP"
        )


class Decision(NamedTuple):
    """What a call is going to do.

    Attributes:
        offsets: What will be recorded, by partition.
        applied: The partitions whose changes are made, in the order of the changes.
        kept: Those whose offset stays because it is not below that of a change which only goes forward.
    """

    offsets: dict[int, Offset]
    applied: list[int]
    kept: list[int]

    def changed(self) -> list[Offset]:
        """Returns the offsets to write, by partition."""
        return [self.offsets[partition] for partition in sorted(set(self.applied))]

    def result(self, changes: Sequence[OffsetChange]) -> list[Offset]:
        """Returns what :meth:`~queuey.storage.Offsets.set_offsets` does when they are written.

        Raises:
            OffsetConflict: Some changes were not to be made.
        """
        if len(self.applied) + len(self.kept) < len(changes):
            raise OffsetConflict({change.partition: self._text(change.partition) for change in changes}, self.applied)
        return [self.offsets[partition] for partition in sorted({*self.applied, *self.kept})]

    def _text(self, partition: int) -> str | None:
        return ids.to_hex(self.offsets[partition].position) if partition in self.offsets else None


def decide(present: dict[int, Offset], changes: Sequence[OffsetChange], now: float) -> Decision:
    """Decides about each change in turn; those that compare and find another offset are not made.

    Args:
        present: What is recorded, by partition.
        changes: What the call asks for.
        now: When it is recorded, in seconds since 1970.
    """
    offsets = dict(present)
    applied: list[int] = []
    kept: list[int] = []
    for change in changes:
        recorded = offsets.get(change.partition)
        if change.compare and change.expected != (recorded.position if recorded else None):
            continue
        if change.forward and recorded is not None and recorded.position >= change.position:
            kept.append(change.partition)
            continue
        offsets[change.partition] = Offset(change.partition, change.position, now)
        applied.append(change.partition)
    return Decision(offsets, applied, kept)
