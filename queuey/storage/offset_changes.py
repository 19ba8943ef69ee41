"""Decides about changes of a group's offsets, for every store."""

from __future__ import annotations

from collections.abc import Container, Sequence
from shlex import quote
from typing import NamedTuple

from msgspec.structs import replace

from queuey import ids
from queuey.errors import Conflict, InvalidRequest, NotOwner, OffsetConflict
from queuey.groups.ownership import MAX_NOTE, MemberCommit, OwnedOffset, OwnedOffsets, PartitionsOwned
from queuey.ids import Position
from queuey.messages import Offset, OffsetChange, Queue

MOST_GROUPS = 1000
"""Max groups of one queue: a listing has them all. A few more, if several processes record new ones at the same
moment."""
MOST_READERS = 10_000
"""Max readers of one queue, in the same way. They are in no listing."""
READERS = "~"
"""Prefix of the groups that are readers, each with its read mark. Sorted, they follow all others."""


def check(queue: Queue, changes: Sequence[OffsetChange], commit: MemberCommit | None = None) -> None:
    for change in changes:
        if not 0 < change.partition <= queue.partitions:
            raise InvalidRequest({f"partitions.{change.partition}": "is not a partition of this queue"})
    for partition, note in commit.notes.items() if commit else ():
        if note is not None and len(note) > MAX_NOTE:
            raise InvalidRequest({f"commits.{partition}.note": f"has more than {MAX_NOTE:,} bytes"})


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
        rows: What is recorded afterwards, by partition.
        applied: The partitions whose changes are made, in the order of the changes.
        kept: Those whose offset stays because it is not below that of a change which only goes forward.
        fenced: Partitions that the member does not own.
        written: Partitions whose rows change.
    """

    rows: dict[int, OwnedOffset]
    applied: list[int]
    kept: list[int]
    fenced: list[int]
    written: set[int]

    def changed(self) -> list[OwnedOffset]:
        return [self.rows[partition] for partition in sorted(self.written)]

    def result(self, changes: Sequence[OffsetChange]) -> list[Offset]:
        """Returns the result of :meth:`~queuey.storage.Offsets.set_offsets` after the write.

        Raises:
            NotOwner: A member does not own all partitions.
            OffsetConflict: Some changes were not to be made.
        """
        if self.fenced:
            raise NotOwner(self.fenced, self.applied + self.kept)
        if len(self.applied) + len(self.kept) < len(changes):
            raise OffsetConflict({change.partition: self._text(change.partition) for change in changes}, self.applied)
        return recorded_offsets({partition: self.rows[partition] for partition in {*self.applied, *self.kept}})

    def _text(self, partition: int) -> str | None:
        position = self.rows[partition].position if partition in self.rows else None
        return None if position is None else ids.to_hex(position)


def recorded_offsets(rows: dict[int, OwnedOffset]) -> list[Offset]:
    """Returns the offsets among rows, by partition. One that is owned may have none."""
    recorded = [(row.partition, row.position, row.updated) for _, row in sorted(rows.items())]
    return [Offset(partition, position, updated) for partition, position, updated in recorded if position is not None]


def with_notes(recorded: OwnedOffsets, partitions: Container[int]) -> OwnedOffsets:
    """Returns what is recorded, with the notes of some partitions."""
    rows = {n: row if n in partitions else replace(row, note=None) for n, row in recorded.rows.items()}
    return OwnedOffsets(recorded.version, rows)


def stored_position(position: Position, epoch: int) -> Position | None:
    """Returns the position that a row shows: without an offset, one that was ever owned has the id of zeros."""
    return None if epoch and not position[0] else position


def was_owned(rows: dict[int, OwnedOffset]) -> bool:
    """Returns whether members of the group ever owned some of the partitions."""
    return any(row.epoch for row in rows.values())


def disowned(recorded: OwnedOffsets, version: int | None) -> set[int]:
    """Returns the partitions that lose their owners to a change which is not one of a member.

    Args:
        recorded: What is recorded.
        version: At which the caller found that the group has no members.

    Raises:
        PartitionsOwned: Partitions had owners at some time, and the version is another one.
    """
    if recorded.version != version and was_owned(recorded.rows):
        raise PartitionsOwned(recorded.version or 0)
    return {row.partition for row in recorded.rows.values() if row.owner}


def decide(
    present: dict[int, OwnedOffset],
    changes: Sequence[OffsetChange],
    now: float,
    commit: MemberCommit | None = None,
    lost: Container[int] = (),
) -> Decision:
    """Decides about each change in turn; a failed comparison leaves its row as it is.

    Args:
        present: The recorded rows, by partition.
        changes: Of the call.
        now: Seconds since 1970.
        commit: It is one of a member.
        lost: Partitions that lose their owners.
    """
    rows = {n: replace(row, owner=0, came="lost") if n in lost else row for n, row in present.items()}
    decision = Decision(rows, [], [], [], {n for n in rows if n in lost})
    for change in changes:
        row = rows.get(change.partition) or OwnedOffset(change.partition)
        if commit is not None and (row.owner, row.epoch) != (commit.member, commit.epochs.get(change.partition)):
            decision.fenced.append(change.partition)
            continue
        if change.compare and change.expected != row.position:
            continue
        new = row
        position = stored_position(change.position, row.epoch)
        # A member's commit that was slow must not take back what a later one has recorded.
        forward = change.forward or (commit is not None and not change.compare)
        if forward and (position is None or (row.position is not None and row.position >= position)):
            decision.kept.append(change.partition)
        else:
            new = replace(row, position=position, updated=now)
            decision.applied.append(change.partition)
            decision.written.add(change.partition)
        if commit is not None and commit.notes.get(change.partition, row.note) != row.note:
            new = replace(new, note=commit.notes[change.partition])
            decision.written.add(change.partition)
        if change.partition in decision.written:
            rows[change.partition] = new
    return decision
