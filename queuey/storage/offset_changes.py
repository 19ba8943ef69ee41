"""Decides which offset changes of a group are applied. Used by every store."""

from __future__ import annotations

from collections.abc import Container, Sequence
from shlex import quote
from typing import NamedTuple

from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import Conflict, InvalidRequest, NotOwner, OffsetConflict
from queuey.model.groups import MAX_NOTE_BYTES, MemberCommit, OwnedOffset, OwnedOffsets, PartitionsOwned
from queuey.model.messages import Offset, OffsetChange, Queue
from queuey.model.rights import SHARES_TEXT, has_room

MAX_GROUPS = 1000
"""Max groups of one queue, because a listing has all of them. Concurrent calls may exceed it by a few."""
MAX_READERS = 10_000
"""Max readers of one queue, which are not listed. Concurrent calls may exceed it by a few."""
READER_PREFIX = "~"
"""Prefix of groups that are readers; their offsets are read marks. It sorts after all other names."""


def check_changes(queue: Queue, changes: Sequence[OffsetChange], commit: MemberCommit | None = None) -> None:
    for change in changes:
        if not 0 < change.partition <= queue.partitions:
            raise InvalidRequest({f"partitions.{change.partition}": "is not a partition of this queue"})
    for partition, note in commit.notes.items() if commit else ():
        if note is not None and len(note) > MAX_NOTE_BYTES:
            raise InvalidRequest({f"commits.{partition}.note": f"has more than {MAX_NOTE_BYTES:,} bytes"})


def check_group_count(queue: Queue, groups: int, *, readers: bool = False, is_admin: bool = True) -> None:
    """Checks that a queue with ``groups`` groups, or readers, may have another one.

    Raises:
        Conflict: The queue has its max number of groups or readers.
    """
    if readers:
        if groups >= MAX_READERS:
            raise Conflict(f"Queue {queue.name!r} keeps read marks for {groups} readers, the maximum.")
    elif not has_room(MAX_GROUPS, groups, is_admin=is_admin):
        raise Conflict(
            f"Queue {queue.name!r} has {groups} consumer groups, the maximum. Delete one that is not used: "
            f"queuey offsets delete {quote(queue.name)} GROUP. {SHARES_TEXT}"
        )


class Decision(NamedTuple):
    """The effect of a call.

    Attributes:
        rows: Rows after the call, by partition.
        applied: Partitions with applied changes, in the order of the changes.
        kept: Partitions that keep their offsets, because the change may only move an offset forward.
        fenced: Partitions that the member does not own.
        written: Partitions with changed rows.
    """

    rows: dict[int, OwnedOffset]
    applied: list[int]
    kept: list[int]
    fenced: list[int]
    written: set[int]

    def changed_rows(self) -> list[OwnedOffset]:
        return [self.rows[partition] for partition in sorted(self.written)]

    def result(self, changes: Sequence[OffsetChange]) -> list[Offset]:
        """Returns the result of :meth:`~queuey.storage.OffsetRecords.set_offsets` after the write.

        Raises:
            NotOwner: The member does not own all partitions.
            OffsetConflict: Some comparisons failed.
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
    recorded = [(row.partition, row.position, row.updated) for _, row in sorted(rows.items())]
    return [Offset(partition, position, updated) for partition, position, updated in recorded if position is not None]


def keep_notes(recorded: OwnedOffsets, partitions: Container[int]) -> OwnedOffsets:
    rows = {n: row if n in partitions else replace(row, note=None) for n, row in recorded.rows.items()}
    return OwnedOffsets(recorded.version, rows, recorded.deleted_epoch)


def has_been_owned(rows: dict[int, OwnedOffset]) -> bool:
    return any(row.epoch for row in rows.values())


def find_disowned(recorded: OwnedOffsets, version: int | None) -> set[int]:
    """Returns the partitions that lose their owners by a change that does not come from a member.

    Args:
        recorded: The recorded offsets.
        version: The version at which the caller found that the group had no members.

    Raises:
        PartitionsOwned: Partitions have had owners, and the recorded version is not ``version``.
    """
    if recorded.version != version and has_been_owned(recorded.rows):
        raise PartitionsOwned(recorded.version or 0)
    return {row.partition for row in recorded.rows.values() if row.owner}


def decide(
    present: dict[int, OwnedOffset],
    changes: Sequence[OffsetChange],
    now: float,
    commit: MemberCommit | None = None,
    lost: Container[int] = (),
) -> Decision:
    """Applies changes in turn. A change with a failed comparison has no effect.

    A member changes only partitions that it owns in the same epoch. Unless it compares, its commit only moves forward.
    A member's notes are stored even if its offset is kept.

    Args:
        present: The recorded rows, by partition.
        changes: The changes of the call.
        now: Seconds since 1970.
        commit: Set if a member commits.
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
        # In a partition that has had an owner, the lowest id stands for no offset.
        position = None if row.epoch and not change.position[0] else change.position
        # A slow commit of a member must not move back the offset of a later commit.
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
