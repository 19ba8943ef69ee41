"""Decides about changes of a group's offsets, for every store."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from queuey import ids
from queuey.errors import Conflict, InvalidRequest, OffsetConflict
from queuey.messages import Offset, OffsetChange, Queue

MOST_GROUPS = 1000
"""Max groups of one queue: a listing has them all. A few more, if several processes record new ones at the same
moment."""
MOST_READERS = 10_000
"""Max readers of one queue, in the same way. They are in no listing."""
READERS = "~"
"""Prefix of the groups that are readers, each with its read mark. Sorted, they follow all others."""


def check(queue: Queue, changes: Sequence[OffsetChange]) -> None:
    for change in changes:
        if not 0 < change.partition <= queue.partitions:
            raise InvalidRequest({f"partitions.{change.partition}": "is not a partition of this queue"})


def check_group_count(queue: Queue, groups: int, *, readers: bool = False) -> None:
    """Refuses a further group, or a further reader, if a queue has ``groups`` of them.

    Raises:
        Conflict: It has too many.
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
    """The effect of a call.

    Attributes:
        offsets: To be recorded, by partition.
        applied: The partitions whose changes are made, in the order of the changes.
        kept: Those whose offset stays because it is not below that of a change which only goes forward.
    """

    offsets: dict[int, Offset]
    applied: list[int]
    kept: list[int]

    def changed(self) -> list[Offset]:
        return [self.offsets[partition] for partition in sorted(set(self.applied))]

    def result(self, changes: Sequence[OffsetChange]) -> list[Offset]:
        """Returns the result of :meth:`~queuey.storage.Offsets.set_offsets` after the write.

        Raises:
            OffsetConflict: Some changes were not to be made.
        """
        if len(self.applied) + len(self.kept) < len(changes):
            raise OffsetConflict({change.partition: self._text(change.partition) for change in changes}, self.applied)
        return [self.offsets[partition] for partition in sorted({*self.applied, *self.kept})]

    def _text(self, partition: int) -> str | None:
        return ids.to_hex(self.offsets[partition].position) if partition in self.offsets else None


def decide(present: dict[int, Offset], changes: Sequence[OffsetChange], now: float) -> Decision:
    """Decides about each change in turn; a failed comparison leaves its offset as it is.

    Args:
        present: The recorded offsets, by partition.
        changes: Of the call.
        now: Seconds since 1970.
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
