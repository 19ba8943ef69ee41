"""Claim logs of the embedded store. An append is a statement in a group transaction of the writer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from queuey.model.errors import InvalidRequest
from queuey.model.messages import LogEntry, LogPage, Queue
from queuey.storage.contracts.claim_logs import MAX_ENTRY_BYTES, MAX_PAGE_ENTRIES, MAX_SNAPSHOT_BYTES, ClaimLogs
from queuey.storage.contracts.covers import Covers
from queuey.storage.new_messages import check_length, check_partition
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.transaction import Transaction

_SELECT_LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM claims WHERE queue_partition = ?"
_APPEND_ENTRY = (
    f"INSERT INTO claims (queue_partition, number, body) SELECT ?, ?, ? WHERE ({_SELECT_LAST_NUMBER}) = ? RETURNING 1"
)
_DELETE_ENTRIES_BELOW = "DELETE FROM claims WHERE queue_partition = ? AND number < min(?, ?)"
_NAME_SNAPSHOT = "UPDATE claim_snapshots SET named = 1 WHERE queue_partition = ? AND number = ? RETURNING 1"
_DELETE_OLDER_SNAPSHOTS = "DELETE FROM claim_snapshots WHERE queue_partition = ? AND number < ?"
_SELECT_ENTRIES = "SELECT number, body FROM claims WHERE queue_partition = ? AND number >= ? ORDER BY number LIMIT ?"
_SELECT_NAMED_SNAPSHOT = (
    "SELECT number, body FROM claim_snapshots WHERE queue_partition = ? AND named = 1 ORDER BY number DESC LIMIT 1"
)
_INSERT_SNAPSHOT = (
    "INSERT INTO claim_snapshots (queue_partition, number, body, named) VALUES (?, ?, ?, 0) "
    "ON CONFLICT (queue_partition, number) DO NOTHING"
)


_WRITE_COVER = (
    "INSERT INTO covers (queue_partition, digest, until) VALUES (?, ?, ?) "
    "ON CONFLICT (queue_partition, digest) DO UPDATE SET until = max(until, excluded.until)"
)
_READ_COVERS = "SELECT digest, until FROM covers WHERE queue_partition = ? AND digest IN ({})"
_MAX_COVERS_PER_STATEMENT = 500
"""Max digests of one query, and max rows that one transaction deletes."""
_DELETE_COVERS = (
    "DELETE FROM covers WHERE queue_partition = ? AND digest IN "
    "(SELECT digest FROM covers WHERE queue_partition = ? AND until <= ? AND digest > ? ORDER BY digest LIMIT ?) "
    "RETURNING digest"
)


class SqliteClaimLogs(ClaimLogs):
    def __init__(self, database: Database) -> None:
        self._db = database

    async def append_entry(
        self,
        queue: Queue,
        partition: int,
        entry: LogEntry,
        *,
        snapshot: int | None = None,
        truncate_below: int | None = None,
    ) -> bool:
        check_partition(queue, partition)
        check_length("entry", entry.body, MAX_ENTRY_BYTES)
        work = partial(_append_to_log, queue, queue.qid << 8 | partition, entry, snapshot, truncate_below)
        return await self._db.write(work, weight=len(entry.body))

    @threaded
    def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:  # noqa: ARG002
        check_partition(queue, partition)
        with self._db.readers.lend() as connection:
            connection.execute("BEGIN")
            try:
                self._db.verify(connection, queue)
                return _read_page(connection, queue.qid << 8 | partition, first)
            finally:
                connection.execute("COMMIT")

    async def write_snapshot(self, queue: Queue, partition: int, number: int, body: bytes) -> None:
        check_partition(queue, partition)
        check_length("snapshot", body, MAX_SNAPSHOT_BYTES)

        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            transaction.connection.execute(_INSERT_SNAPSHOT, (queue.qid << 8 | partition, number, body))

        await self._db.write(work, weight=len(body))

    def claims_refusal(self, queue: Queue) -> str | None:  # noqa: ARG002 - the contract's signature
        return None


class SqliteCovers(Covers):
    def __init__(self, database: Database) -> None:
        self._db = database

    async def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        check_partition(queue, partition)
        qp = queue.qid << 8 | partition

        def work(transaction: Transaction) -> None:
            transaction.verify(queue)
            transaction.connection.executemany(_WRITE_COVER, [(qp, digest, until) for digest, until in covers])

        await self._db.write(work, weight=32 * len(covers))

    @threaded
    def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        check_partition(queue, partition)
        requested = list(digests)
        covers: dict[bytes, int] = {}
        with self._db.readers.lend() as connection:
            self._db.verify(connection, queue)
            for start in range(0, len(requested), _MAX_COVERS_PER_STATEMENT):
                chunk = requested[start : start + _MAX_COVERS_PER_STATEMENT]
                marks = ", ".join("?" * len(chunk))
                rows: Any = connection.execute(
                    _READ_COVERS.format(marks), (queue.qid << 8 | partition, *chunk)
                ).fetchall()
                covers.update(rows)
        return covers

    async def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        check_partition(queue, partition)
        qp = queue.qid << 8 | partition
        last = b""

        def work(transaction: Transaction) -> list[bytes]:
            transaction.verify(queue)
            values = (qp, qp, until, last, _MAX_COVERS_PER_STATEMENT)
            rows: Any = transaction.connection.execute(_DELETE_COVERS, values).fetchall()
            return [digest for (digest,) in rows]

        while removed := await self._db.write(work):
            last = max(removed)


def _append_to_log(
    queue: Queue, qp: int, entry: LogEntry, snapshot: int | None, truncate_below: int | None, transaction: Transaction
) -> bool:
    """Appends an entry if it is the next one; otherwise changes nothing and returns False.

    Then names the snapshot and deletes older ones, and truncates the log.
    """
    transaction.verify(queue)
    connection = transaction.connection
    if not connection.execute(_APPEND_ENTRY, (qp, entry.number, entry.body, qp, entry.number - 1)).fetchall():
        return False
    if snapshot is not None:
        if not connection.execute(_NAME_SNAPSHOT, (qp, snapshot)).fetchall():
            raise InvalidRequest({"snapshot": f"{snapshot} was not written"})
        connection.execute(_DELETE_OLDER_SNAPSHOTS, (qp, snapshot))
    if truncate_below is not None:
        connection.execute(_DELETE_ENTRIES_BELOW, (qp, truncate_below, entry.number))
    return True


def _read_page(connection: Connection, qp: int, first: int) -> LogPage:
    row: Any = connection.execute(_SELECT_LAST_NUMBER, (qp,)).fetchone()
    last: int = row[0]
    entries = _read_entries(connection, qp, first)
    if first > 1 and (last < first or (entries and entries[0].number == first)):
        return LogPage(last, entries)
    row = connection.execute(_SELECT_NAMED_SNAPSHOT, (qp,)).fetchone()
    if row is None:
        return LogPage(last, entries)
    snapshot = LogEntry(*row)
    return LogPage(last, _read_entries(connection, qp, snapshot.number + 1), snapshot)


def _read_entries(connection: Connection, qp: int, first: int) -> list[LogEntry]:
    rows: Any = connection.execute(_SELECT_ENTRIES, (qp, first, MAX_PAGE_ENTRIES)).fetchall()
    return [LogEntry(number, body) for number, body in rows]
