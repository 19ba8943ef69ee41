"""Covers of the embedded store: one row for each digest of a partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from queuey.messages import Queue
from queuey.storage import items as items_of
from queuey.storage.contracts.covers import Covers
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_WRITE = (
    "INSERT INTO covers (queue_partition, digest, until) VALUES (?, ?, ?) "
    "ON CONFLICT (queue_partition, digest) DO UPDATE SET until = max(until, excluded.until)"
)
_READ = "SELECT digest, until FROM covers WHERE queue_partition = ? AND digest IN ({})"
_TOGETHER = 500
"""Max digests of one query, and rows of one transaction's step."""
_FORGET = (
    "DELETE FROM covers WHERE queue_partition = ? AND digest IN "
    "(SELECT digest FROM covers WHERE queue_partition = ? AND until <= ? AND digest > ? ORDER BY digest LIMIT ?) "
    "RETURNING digest"
)


class SqliteCovers(Covers):
    _db: Database
    clock_difference = 1.0

    def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        items_of.check_partition(queue, partition)
        qp = queue.qid << 8 | partition

        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            transaction.connection.executemany(_WRITE, [(qp, digest, until) for digest, until in covers])

        self._db.writer.perform(work, weight=32 * len(covers))

    def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        items_of.check_partition(queue, partition)
        wanted = list(digests)
        found: dict[bytes, int] = {}
        with self._db.readers.reading() as connection:
            self._db.verify(connection, queue)
            for at in range(0, len(wanted), _TOGETHER):
                some = wanted[at : at + _TOGETHER]
                marks = ", ".join("?" * len(some))
                rows: Any = connection.execute(_READ.format(marks), (queue.qid << 8 | partition, *some)).fetchall()
                found.update(rows)
        return found

    def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        items_of.check_partition(queue, partition)
        qp = queue.qid << 8 | partition
        last = b""

        def work(transaction: Transaction) -> list[bytes]:
            transaction.verify(queue)
            values = (qp, qp, until, last, _TOGETHER)
            rows: Any = transaction.connection.execute(_FORGET, values).fetchall()
            return [digest for (digest,) in rows]

        while gone := self._db.writer.perform(work):
            last = max(gone)
