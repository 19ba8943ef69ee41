"""Records of the embedded store: a row each, compared and set in one write transaction."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from msgspec.structs import replace

from queuey.errors import RecordChanged
from queuey.messages import Record, RecordDue
from queuey.storage import Records, items
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

_FIND = "SELECT value, due, version FROM records WHERE kind = ? AND application = ? AND name = ?"
_LIST = (
    "SELECT name, value, due, version FROM records WHERE kind = ? AND application = ? AND name >= ? "
    "ORDER BY name LIMIT ?"
)
_SET = "INSERT OR REPLACE INTO records (kind, application, name, value, due, version) VALUES (?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM records WHERE kind = ? AND application = ? AND name = ?"
_DUE = "SELECT application, name, due, version FROM records WHERE kind = ? AND due <= ? ORDER BY due LIMIT ?"
_DUE_OF = (
    "SELECT application, name, due, version FROM records WHERE kind = ? AND application = ? AND due <= ? "
    "ORDER BY due LIMIT ?"
)


class SqliteRecords(Records):
    _db: Database

    def record(self, kind: str, application: str, name: str) -> Record | None:
        with self._db.readers.reading() as connection:
            row: Any = connection.execute(_FIND, (kind, application, name)).fetchone()
        return None if row is None else Record(kind, application, name, *row)

    def records(self, kind: str, application: str, *, start: str = "", limit: int = 100) -> list[Record]:
        with self._db.readers.reading() as connection:
            rows: Any = connection.execute(_LIST, (kind, application, start, limit)).fetchall()
        return [Record(kind, application, *row) for row in rows]

    def set_record(self, record: Record) -> Record:
        items.check_record(record)
        new = replace(record, version=secrets.randbits(62) | 1)
        self._db.writer.perform(partial(_set, record.version, new), weight=len(record.value))
        return new

    def remove_record(self, record: Record) -> None:
        self._db.writer.perform(partial(_remove, record))

    def due_records(
        self, kind: str, until: int, *, application: str | None = None, limit: int = 1000
    ) -> list[RecordDue]:
        with self._db.readers.reading() as connection:
            if application is None:
                rows: Any = connection.execute(_DUE, (kind, until, limit)).fetchall()
            else:
                rows = connection.execute(_DUE_OF, (kind, application, until, limit)).fetchall()
        return [RecordDue(*row) for row in rows]


def _compare(connection: Connection, record: Record, version: int) -> None:
    row: Any = connection.execute(_FIND, (record.kind, record.application, record.name)).fetchone()
    if (0 if row is None else row[2]) != version:
        raise RecordChanged(record.name)


def _set(version: int, new: Record, transaction: Transaction) -> None:
    _compare(transaction.connection, new, version)
    values = new.kind, new.application, new.name, new.value, new.due, new.version
    transaction.connection.execute(_SET, values)


def _remove(record: Record, transaction: Transaction) -> None:
    _compare(transaction.connection, record, record.version or -1)
    transaction.connection.execute(_REMOVE, (record.kind, record.application, record.name))
