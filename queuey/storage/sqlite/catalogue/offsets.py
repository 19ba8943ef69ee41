"""Offsets of consumer groups in the embedded store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuey import ids
from queuey.errors import GroupNotFound, InvalidRequest, OffsetConflict
from queuey.messages import Offset, OffsetChange, Queue
from queuey.storage import Offsets
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_ALL = "SELECT partition, ticks, low, updated_at FROM offsets WHERE uid = ? AND consumer_group = ? ORDER BY partition"
_SET = (
    "INSERT INTO offsets (uid, consumer_group, partition, ticks, low, updated_at) VALUES (?, ?, ?, ?, ?, ?) ON "
    "CONFLICT (uid, consumer_group, partition) "
    "DO UPDATE SET ticks = excluded.ticks, low = excluded.low, updated_at = excluded.updated_at"
)


class SqliteOffsets(Offsets):
    """The offsets contract on SQLite."""

    _db: Database

    def set_offsets(self, queue: Queue, group: str, changes: Sequence[OffsetChange]) -> list[Offset]:
        """See the contract."""
        for change in changes:
            if not 0 < change.partition <= queue.partitions:
                raise InvalidRequest({f"partitions.{change.partition}": "is not a partition of this queue"})

        def work(transaction: Transaction) -> tuple[list[Offset], list[int]]:
            transaction.verify(queue)
            connection = transaction.connection
            present = {offset.partition: offset for offset in _read(connection, queue, group)}
            applied = []
            for change in changes:
                now = present.get(change.partition)
                if change.compare and change.expected != (now.position if now else None):
                    continue
                updated = ids.ticks_to_seconds(transaction.now)
                connection.execute(_SET, (queue.uid, group, change.partition, *change.position, updated))
                present[change.partition] = Offset(change.partition, change.position, updated)
                applied.append(change.partition)
            wanted = {change.partition for change in changes}
            return [offset for offset in present.values() if offset.partition in wanted], applied

        # Comparisons that fail are no error inside the transaction: the call's other offsets are to be kept.
        offsets, applied = self._db.writer.perform(work)
        if len(applied) < len(changes):
            current: dict[int, str | None] = {change.partition: None for change in changes}
            current |= {offset.partition: ids.to_hex(offset.position) for offset in offsets}
            raise OffsetConflict(current, applied)
        return sorted(offsets, key=lambda offset: offset.partition)

    def offsets(self, queue: Queue, group: str) -> list[Offset]:
        """See the contract."""
        with self._db.readers.reading() as connection:
            self._db.verify(connection, queue)
            found = _read(connection, queue, group)
        if not found:
            raise GroupNotFound(group)
        return found

    def groups(self, queue: Queue) -> list[str]:
        """See the contract."""
        with self._db.readers.reading() as connection:
            self._db.verify(connection, queue)
            return [
                name
                for (name,) in connection.execute(
                    "SELECT DISTINCT consumer_group FROM offsets WHERE uid = ? ORDER BY consumer_group", (queue.uid,)
                )
            ]

    def delete_group(self, queue: Queue, group: str) -> None:
        """See the contract."""

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
