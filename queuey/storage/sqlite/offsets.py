"""Offsets of groups in the embedded store."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from msgspec.msgpack import encode
from msgspec.structs import replace

from queuey.model import ids
from queuey.model.errors import GroupNotFound
from queuey.model.groups import MemberCommit, OwnedOffset, OwnedOffsets
from queuey.model.ids import Position
from queuey.model.messages import Offset, OffsetChange, Queue
from queuey.storage import OffsetRecords, offset_changes
from queuey.storage.offset_changes import MAX_READERS, READER_PREFIX, Decision, decide, has_been_owned
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.transaction import Transaction

_SELECT_OFFSETS = (
    "SELECT partition, ticks, low, updated_at, owner, epoch, came, note FROM offsets "
    "WHERE uid = ? AND consumer_group = ? ORDER BY partition"
)
_DELETE_OFFSETS = (
    "DELETE FROM offsets WHERE uid = ? AND consumer_group = ? "
    "RETURNING partition, ticks, low, updated_at, owner, epoch, came, note"
)
_SELECT_GROUPS = (
    "SELECT DISTINCT consumer_group FROM offsets WHERE uid = ? AND consumer_group < ? AND partition > 0 "
    "ORDER BY consumer_group"
)
_COUNT_READERS = (
    "SELECT count(*) FROM (SELECT DISTINCT consumer_group FROM offsets WHERE uid = ? AND consumer_group >= ? LIMIT ?)"
)
_SET_OFFSET = (
    "INSERT OR REPLACE INTO offsets (uid, consumer_group, partition, ticks, low, updated_at, owner, epoch, came, note) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class SqliteOffsets(OffsetRecords):
    def __init__(self, database: Database) -> None:
        self._db = database

    async def set_offsets(
        self,
        queue: Queue,
        group: str,
        changes: Sequence[OffsetChange],
        *,
        commit: MemberCommit | None = None,
        disown: int | None = None,
        is_admin: bool = True,
    ) -> list[Offset]:
        offset_changes.check_changes(queue, changes, commit)

        def work(transaction: Transaction) -> Decision:
            transaction.verify(queue)
            connection = transaction.connection
            recorded = _read_recorded(connection, queue, group)
            lost = _find_disowned(recorded, disown) if commit is None else set()
            decision = decide(recorded.rows, changes, ids.ticks_to_seconds(transaction.now), commit, lost)
            if decision.written and not recorded.rows:
                _check_group_count(connection, queue, group, is_admin=is_admin)
            _write_rows(connection, queue, group, decision.changed_rows())
            return decision

        # Failed comparisons must not raise inside the transaction, because the other offsets are kept.
        return (await self._db.write(work)).result(changes)

    @threaded
    def group_offsets(self, queue: Queue, group: str) -> list[Offset]:
        with self._db.readers.lend() as connection:
            self._db.verify(connection, queue)
            rows = _read_recorded(connection, queue, group).rows
        if not rows:
            raise GroupNotFound(group)
        return offset_changes.recorded_offsets(rows)

    @threaded
    def offsets_of_queues(self, queues: Sequence[Queue], group: str) -> list[dict[int, Position]]:
        with self._db.readers.lend() as connection:
            rows = [_read_recorded(connection, queue, group).rows for queue in queues]
        recorded = map(offset_changes.recorded_offsets, rows)
        return [{offset.partition: offset.position for offset in offsets} for offsets in recorded]

    @threaded
    def groups(self, queue: Queue) -> list[str]:
        with self._db.readers.lend() as connection:
            self._db.verify(connection, queue)
            return _read_groups(connection, queue)

    async def delete_group(self, queue: Queue, group: str, *, disown: int | None = None) -> None:
        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            deleted = _read_recorded(transaction.connection, queue, group, _DELETE_OFFSETS)
            if not deleted.rows:  # An error restores the rows.
                raise GroupNotFound(group)
            _find_disowned(deleted, disown)
            if epoch := deleted.highest_epoch():
                _write_rows(transaction.connection, queue, group, [OwnedOffset(0, epoch=epoch)])

        await self._db.write(work)

    @threaded
    def owned_offsets(self, queue: Queue, group: str, notes: Container[int] = ()) -> OwnedOffsets:
        with self._db.readers.lend() as connection:
            return offset_changes.keep_notes(_add_version(_read_recorded(connection, queue, group)), notes)

    async def hand_over(self, queue: Queue, group: str, version: int | None, owners: Sequence[OwnedOffset]) -> bool:
        def work(transaction: Transaction) -> bool:
            transaction.verify(queue)
            connection = transaction.connection
            recorded = _add_version(_read_recorded(connection, queue, group))
            if recorded.version != version:
                return False
            if not recorded.rows:
                _check_group_count(connection, queue, group)
            rows = ((recorded.rows.get(new.partition) or OwnedOffset(new.partition), new) for new in owners)
            changed = [replace(row, owner=new.owner, epoch=new.epoch, came=new.came) for row, new in rows]
            _write_rows(connection, queue, group, changed)
            return True

        return await self._db.write(work)


def _read_recorded(connection: Connection, queue: Queue, group: str, statement: str = _SELECT_OFFSETS) -> OwnedOffsets:
    stored: Any = sorted(connection.execute(statement, (queue.uid, group)))
    rows = {
        partition: OwnedOffset(partition, None if ticks is None else (ticks, low), *rest)
        for partition, ticks, low, *rest in stored
    }
    deletion = rows.pop(0, None)
    return OwnedOffsets(None, rows, 0 if deletion is None else deletion.epoch)


def _add_version(recorded: OwnedOffsets) -> OwnedOffsets:
    """Adds the version, which is a digest of the rows and of ``deleted_epoch``.

    A decision made for rows is valid for equal rows. Rows that had an owner never become equal to earlier rows, because
    epochs only rise, and a deletion leaves the highest one.
    """
    if not recorded.rows and not recorded.deleted_epoch:
        return recorded
    digest = blake2b(encode([recorded.deleted_epoch, *recorded.rows.values()]), digest_size=8).digest()
    return replace(recorded, version=int.from_bytes(digest, signed=True))


def _find_disowned(recorded: OwnedOffsets, disown: int | None) -> set[int]:
    if not has_been_owned(recorded.rows):
        return set()
    return offset_changes.find_disowned(_add_version(recorded), disown)


def _write_rows(connection: Connection, queue: Queue, group: str, rows: Iterable[OwnedOffset]) -> None:
    for row in rows:
        values = *(row.position or (None, None)), row.updated, row.owner, row.epoch, row.came, row.note
        connection.execute(_SET_OFFSET, (queue.uid, group, row.partition, *values))


def _read_groups(connection: Connection, queue: Queue) -> list[str]:
    return [name for (name,) in connection.execute(_SELECT_GROUPS, (queue.uid, READER_PREFIX))]


def _check_group_count(connection: Connection, queue: Queue, group: str, *, is_admin: bool = True) -> None:
    if not group.startswith(READER_PREFIX):
        offset_changes.check_group_count(queue, len(_read_groups(connection, queue)), is_admin=is_admin)
        return
    counted: Any = connection.execute(_COUNT_READERS, (queue.uid, READER_PREFIX, MAX_READERS)).fetchone()
    offset_changes.check_group_count(queue, counted[0], readers=True)
