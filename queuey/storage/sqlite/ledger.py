"""The ledger, and records of applications, in the embedded store.

A ledger entry is one row, and so is a record. Both are compared and set in one write transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from queuey.model.errors import Conflict, RecordChanged
from queuey.model.ids import TICKS_MAX, TICKS_PER_SECOND
from queuey.model.messages import Record, RecordDue
from queuey.storage import IDENTITY, LEDGER_TTL, Ledger, Records, new_messages
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.transaction import Transaction

LEDGER_TTL_TICKS = LEDGER_TTL * TICKS_PER_SECOND
"""Number of ticks after its last change at which the sweep removes a ledger entry. An entry to be kept for a shorter
time is stored with an earlier change."""

_SELECT_ENTRY = "SELECT value FROM ledger WHERE work = ? AND piece = ?"
_SET_ENTRY = (
    "INSERT INTO ledger (work, piece, value, changed_ticks) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (work, piece) DO UPDATE SET value = excluded.value, changed_ticks = excluded.changed_ticks"
)
_SELECT_RECORD = "SELECT value, due, version FROM records WHERE kind = ? AND application = ? AND name = ?"
_SELECT_RECORDS = (
    "SELECT name, value, due, version FROM records WHERE kind = ? AND application = ? AND name >= ? "
    "ORDER BY name LIMIT ?"
)
_SET_RECORD = "INSERT OR REPLACE INTO records (kind, application, name, value, due, version) VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_RECORD = "DELETE FROM records WHERE kind = ? AND application = ? AND name = ?"
_SELECT_DUE = "SELECT application, name, due, version FROM records WHERE kind = ? AND due <= ? ORDER BY due LIMIT ?"
_SELECT_DUE_OF_APPLICATION = (
    "SELECT application, name, due, version FROM records WHERE kind = ? AND application = ? AND due <= ? "
    "ORDER BY due LIMIT ?"
)


class SqliteLedger(Ledger):
    """The ledger in SQLite. ``now`` is never below the last id. The entry with the store's identity never expires."""

    def __init__(self, database: Database) -> None:
        self._db = database

    @threaded
    def now(self) -> int:
        return max(self._db.last_ticks(), self._db.clock())

    @threaded
    def ids_ahead(self) -> float:
        return self._db.ids_ahead()

    @threaded
    def entry(self, work: str, piece: int) -> bytes | None:
        with self._db.readers.lend() as connection:
            return _read_entry(connection, work, piece)

    async def identity(self) -> str:
        stored = await self.entry(IDENTITY, 0)
        if stored is None:
            stored = await self._enter(IDENTITY, 0, uuid4().hex.encode(), None, lambda _now: TICKS_MAX)
        return stored.decode()

    async def enter(
        self, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
    ) -> bytes:
        shortened = max(0, LEDGER_TTL_TICKS - round(kept * TICKS_PER_SECOND))
        return await self._enter(work, piece, value, expected, lambda now: now - shortened)

    async def _enter(
        self, work: str, piece: int, value: bytes, expected: bytes | None, changed: Callable[[int], int]
    ) -> bytes:
        """Sets a value if the present one is ``expected``, else returns the present one; raises Conflict if none is.

        ``changed`` turns the clock into the time from which ``LEDGER_TTL`` counts (ticks).
        """

        def change(transaction: Transaction) -> bytes:
            present = _read_entry(transaction.connection, work, piece)
            if present != expected:
                if present is None:
                    message = f"Piece {piece} of {work!r} is no longer in the ledger"
                    raise Conflict(message)
                return present
            transaction.connection.execute(_SET_ENTRY, (work, piece, value, changed(transaction.now)))
            return value

        return await self._db.write(change)


class SqliteRecords(Records):
    def __init__(self, database: Database) -> None:
        self._db = database

    @threaded
    def record(self, kind: str, application: str, name: str) -> Record | None:
        with self._db.readers.lend() as connection:
            row: Any = connection.execute(_SELECT_RECORD, (kind, application, name)).fetchone()
        return None if row is None else Record(kind, application, name, *row)

    @threaded
    def records(self, kind: str, application: str, *, start: str = "", limit: int = 100) -> list[Record]:
        with self._db.readers.lend() as connection:
            rows: Any = connection.execute(_SELECT_RECORDS, (kind, application, start, limit)).fetchall()
        return [Record(kind, application, *row) for row in rows]

    async def set_record(self, record: Record) -> Record:
        new_messages.check_record(record)
        new = replace(record, version=secrets.randbits(62) | 1)
        await self._db.write(partial(_set_record, record.version, new), weight=len(record.value))
        return new

    async def remove_record(self, record: Record) -> None:
        await self._db.write(partial(_remove_record, record))

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


def _read_entry(connection: Connection, work: str, piece: int) -> bytes | None:
    row: Any = connection.execute(_SELECT_ENTRY, (work, piece)).fetchone()
    return None if row is None else bytes(row[0])


def _require_version(connection: Connection, record: Record, version: int) -> None:
    """Raises ``RecordChanged`` unless the stored record has a version; 0 stands for a missing record."""
    row: Any = connection.execute(_SELECT_RECORD, (record.kind, record.application, record.name)).fetchone()
    if (0 if row is None else row[2]) != version:
        raise RecordChanged(record.name)


def _set_record(version: int, new: Record, transaction: Transaction) -> None:
    _require_version(transaction.connection, new, version)
    values = new.kind, new.application, new.name, new.value, new.due, new.version
    transaction.connection.execute(_SET_RECORD, values)


def _remove_record(record: Record, transaction: Transaction) -> None:
    _require_version(transaction.connection, record, record.version or -1)
    transaction.connection.execute(_DELETE_RECORD, (record.kind, record.application, record.name))
