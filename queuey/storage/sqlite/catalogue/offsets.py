"""Offsets of consumer groups in the embedded store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuey import ids
from queuey.errors import GroupNotFound
from queuey.ids import Position
from queuey.messages import Offset, OffsetChange, Queue
from queuey.storage import Offsets, offset_changes
from queuey.storage.offset_changes import MOST_READERS, READERS, Decision, decide
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_ALL = "SELECT partition, ticks, low, updated_at FROM offsets WHERE uid = ? AND consumer_group = ? ORDER BY partition"
_GROUPS = "SELECT DISTINCT consumer_group FROM offsets WHERE uid = ? AND consumer_group < ? ORDER BY consumer_group"
_READERS = (
    "SELECT count(*) FROM (SELECT DISTINCT consumer_group FROM offsets WHERE uid = ? AND consumer_group >= ? LIMIT ?)"
)
_SET = (
    "INSERT INTO offsets (uid, consumer_group, partition, ticks, low, updated_at) VALUES (?, ?, ?, ?, ?, ?) ON "
    "CONFLICT (uid, consumer_group, partition) "
    "DO UPDATE SET ticks = excluded.ticks, low = excluded.low, updated_at = excluded.updated_at"
)


class SqliteOffsets(Offsets):
    _db: Database

    def set_offsets(self, queue: Queue, group: str, changes: Sequence[OffsetChange]) -> list[Offset]:
        offset_changes.check(queue, changes)

        def work(transaction: Transaction) -> Decision:
            transaction.verify(queue)
            connection = transaction.connection
            present = {offset.partition: offset for offset in _read(connection, queue, group)}
            decision = decide(present, changes, ids.ticks_to_seconds(transaction.now))
            if decision.applied and not present:
                _check_group_count(connection, queue, group)
            for offset in decision.changed():
                connection.execute(_SET, (queue.uid, group, offset.partition, *offset.position, offset.updated))
            return decision

        # Comparisons that fail are no error inside the transaction: the call's other offsets are to be kept.
        return self._db.writer.perform(work).result(changes)

    def offsets(self, queue: Queue, group: str) -> list[Offset]:
        with self._db.readers.reading() as connection:
            self._db.verify(connection, queue)
            found = _read(connection, queue, group)
        if not found:
            raise GroupNotFound(group)
        return found

    def offsets_of_queues(self, queues: Sequence[Queue], group: str) -> list[dict[int, Position]]:
        with self._db.readers.reading() as connection:
            found = [_read(connection, queue, group) for queue in queues]
        return [{offset.partition: offset.position for offset in offsets} for offsets in found]

    def groups(self, queue: Queue) -> list[str]:
        with self._db.readers.reading() as connection:
            self._db.verify(connection, queue)
            return _groups(connection, queue)

    def delete_group(self, queue: Queue, group: str) -> None:
        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            if not transaction.connection.execute(
                "DELETE FROM offsets WHERE uid = ? AND consumer_group = ? RETURNING partition", (queue.uid, group)
            ).fetchall():
                raise GroupNotFound(group)

        self._db.writer.perform(work)


def _read(connection: Connection, queue: Queue, group: str) -> list[Offset]:
    found: Any = connection.execute(_ALL, (queue.uid, group)).fetchall()
    return [Offset(partition, (ticks, low), updated) for partition, ticks, low, updated in found]


def _groups(connection: Connection, queue: Queue) -> list[str]:
    return [name for (name,) in connection.execute(_GROUPS, (queue.uid, READERS))]


def _check_group_count(connection: Connection, queue: Queue, group: str) -> None:
    if not group.startswith(READERS):
        offset_changes.check_group_count(queue, len(_groups(connection, queue)))
        return
    counted: Any = connection.execute(_READERS, (queue.uid, READERS, MOST_READERS)).fetchone()
    offset_changes.check_group_count(queue, counted[0], readers=True)
