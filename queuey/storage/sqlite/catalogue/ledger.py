"""The ledger of the embedded store."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from queuey.errors import Conflict
from queuey.ids import TICKS_MAX, TICKS_PER_SECOND
from queuey.storage import IDENTITY, Ledger
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction

KEPT = 30 * 86_400 * TICKS_PER_SECOND
"""Number of ticks after its last change at which the sweep removes an entry."""

_LAST = "SELECT last_ticks FROM clock"
_FIND = "SELECT value FROM ledger WHERE work = ? AND piece = ?"
_SET = (
    "INSERT INTO ledger (work, piece, value, changed_ticks) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (work, piece) DO UPDATE SET value = excluded.value, changed_ticks = excluded.changed_ticks"
)


class SqliteLedger(Ledger):
    _db: Database

    def now(self) -> int:
        with self._db.readers.reading() as connection:
            row: Any = connection.execute(_LAST).fetchone()
        last: int = row[0]
        return max(last, self._db.clock())

    def ids_ahead(self) -> float:
        return max(0, self.now() - self._db.clock()) / TICKS_PER_SECOND

    def entry(self, work: str, piece: int) -> bytes | None:
        with self._db.readers.reading() as connection:
            return _find(connection, work, piece)

    def enter(self, work: str, piece: int, value: bytes, *, expected: bytes | None) -> bytes:
        return self._enter(work, piece, value, expected=expected)

    def identity(self) -> str:
        found = self.entry(IDENTITY, 0)
        if found is None:
            found = self._enter(IDENTITY, 0, uuid4().hex.encode(), expected=None, changed=TICKS_MAX)
        return found.decode()

    def _enter(self, work: str, piece: int, value: bytes, *, expected: bytes | None, changed: int = 0) -> bytes:
        """Enters a value; ``changed`` counts for the sweep, now unless given."""

        def change(transaction: Transaction) -> bytes:
            present = _find(transaction.connection, work, piece)
            if present != expected:
                if present is None:
                    message = f"piece {piece} of {work!r} is not in the ledger any more"
                    raise Conflict(message)
                return present
            transaction.connection.execute(_SET, (work, piece, value, changed or transaction.now))
            return value

        return self._db.writer.perform(change)


def _find(connection: Connection, work: str, piece: int) -> bytes | None:
    row: Any = connection.execute(_FIND, (work, piece)).fetchone()
    return None if row is None else bytes(row[0])
