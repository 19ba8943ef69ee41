"""Records and the ledger in the embedded store. A record is one row, compared and set in one write transaction."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from msgspec.structs import replace

from queuey.model.errors import RecordChanged
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Record, RecordDue
from queuey.storage import Ledger, Records, new_messages
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.transaction import Transaction

_SELECT_RECORD = "SELECT value, due, version FROM records WHERE kind = ? AND application = ? AND name = ?"
_SELECT_RECORDS = (
    "SELECT name, value, due, version FROM records WHERE kind = ? AND application = ? AND name >= ? "
    "ORDER BY name LIMIT ?"
)
_SET_RECORD = (
    "INSERT INTO records (kind, application, name, value, due, version, expires) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET value = excluded.value, due = excluded.due, version = excluded.version, "
    "expires = excluded.expires"
)
_DELETE_RECORD = "DELETE FROM records WHERE kind = ? AND application = ? AND name = ?"
_SELECT_DUE = "SELECT application, name, due, version FROM records WHERE kind = ? AND due <= ? ORDER BY due LIMIT ?"
_SELECT_DUE_OF_APPLICATION = (
    "SELECT application, name, due, version FROM records WHERE kind = ? AND application = ? AND due <= ? "
    "ORDER BY due LIMIT ?"
)


class SqliteRecords(Records):
    def __init__(self, database: Database) -> None:
        self._db = database

    @threaded
    def record(self, kind: str, application: str, name: str) -> Record | None:
        with self._db.readers.lend() as connection:
            return read_record(connection, kind, application, name)

    @threaded
    def records(self, kind: str, application: str, *, start: str = "", limit: int = 100) -> list[Record]:
        with self._db.readers.lend() as connection:
            rows: Any = connection.execute(_SELECT_RECORDS, (kind, application, start, limit)).fetchall()
        return [Record(kind, application, *row) for row in rows]

    async def set_record(self, record: Record, *, kept: float | None = None) -> Record:
        new_messages.check_record(record, kept)
        return await self._db.write(partial(set_record, record, kept), weight=len(record.value))

    async def remove_record(self, record: Record) -> None:
        await self._db.write(partial(remove_record, record))

    @threaded
    def due_records(
        self, kind: str, until: int, *, application: str | None = None, limit: int = 1000
    ) -> list[RecordDue]:
        with self._db.readers.lend() as connection:
            if application is None:
                rows: Any = connection.execute(_SELECT_DUE, (kind, until, limit)).fetchall()
            else:
                rows = connection.execute(_SELECT_DUE_OF_APPLICATION, (kind, application, until, limit)).fetchall()
        return [RecordDue(*row) for row in rows]


class SqliteLedger(Ledger):
    """The ledger in SQLite. ``now`` is never below the last id."""

    def __init__(self, database: Database, records: Records) -> None:
        super().__init__(records)
        self._db = database

    @threaded
    def now(self) -> int:
        return max(self._db.last_ticks(), self._db.clock())

    @threaded
    def ids_ahead(self) -> float:
        return self._db.ids_ahead()


def read_record(connection: Connection, kind: str, application: str, name: str) -> Record | None:
    row: Any = connection.execute(_SELECT_RECORD, (kind, application, name)).fetchone()
    return None if row is None else Record(kind, application, name, *row)


def set_record(record: Record, kept: float | None, transaction: Transaction) -> Record:
    """Sets a record, also for other documents that are kept as records."""
    _require_version(transaction.connection, record, record.version)
    new = replace(record, version=secrets.randbits(62) | 1)
    expires = None if kept is None else transaction.now + round(kept * TICKS_PER_SECOND)
    values = new.kind, new.application, new.name, new.value, new.due, new.version, expires
    transaction.connection.execute(_SET_RECORD, values)
    return new


def remove_record(record: Record, transaction: Transaction) -> None:
    _require_version(transaction.connection, record, record.version or -1)
    transaction.connection.execute(_DELETE_RECORD, (record.kind, record.application, record.name))


def _require_version(connection: Connection, record: Record, version: int) -> None:
    present = read_record(connection, record.kind, record.application, record.name)
    if (0 if present is None else present.version) != version:
        raise RecordChanged(record.name)
