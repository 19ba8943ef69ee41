"""The ledger in Cassandra: one row for each piece of work, changed by lightweight transactions only.

A change requires the token (column ``version``) that was read with the value it replaces, and writes a new token. So a
change in doubt can be sent again, whatever values callers choose, and a value that returns (A, B, A) is not mistaken
for one that never changed.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple
from uuid import uuid4

from queuey.model.errors import Conflict, InvalidRequest, StoreBusy, StoreClosed
from queuey.model.ids import TICKS_PER_SECOND
from queuey.storage import IDENTITY, LEDGER_TTL, Ledger
from queuey.storage.cassandra.cluster import Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.statements.lightweight_transactions import new_number
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.time import bucketing

NO_EXPIRY = 0
"""Default TTL: the entry never expires."""
MAX_WORK_BYTES = 500
"""Max bytes of a work's name."""
_MAX_PIECES = 1 << 63

_SELECT_ENTRY = Statement("SELECT version, value FROM ledger WHERE work = ? AND piece = ?")
_UPDATE_ENTRY = Statement(
    "UPDATE ledger USING TTL ? SET value = ?, version = ? WHERE work = ? AND piece = ? IF version = ?", idempotent=False
)


class LedgerEntry(NamedTuple):
    version: int | None
    value: bytes | None


NOTHING = LedgerEntry(None, None)


class CassandraLedger(Ledger):
    """The ledger on Cassandra. A change raises StoreBusy if others keep changing the entry."""

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._closing = parts.closing
        self._generator = parts.generator
        self._transactions = parts.transactions
        self._watch = parts.watch

    @store_call()
    async def now(self) -> int:
        if self._closing.is_set():
            raise StoreClosed("the store is closed")
        await self._watch.require_sound()
        return self._clock.now()

    async def ids_ahead(self) -> float:
        return max(0, self._generator.next_time() - self._clock.now()) / TICKS_PER_SECOND

    @store_call()
    async def entry(self, work: str, piece: int) -> bytes | None:
        _check_piece(work, piece)
        return (await self._read_entry(work, piece)).value

    @store_call()
    async def enter(
        self, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: float = LEDGER_TTL
    ) -> bytes:
        _check_piece(work, piece)
        seconds = min(LEDGER_TTL, ceil(kept), bucketing.max_cassandra_ttl(self._clock.now()))
        return await self._write_entry(work, piece, value, expected=expected, kept=seconds)

    @store_call()
    async def identity(self) -> str:
        # The identity is an entry that never expires.
        stored_id = (await self._read_entry(IDENTITY, 0)).value
        if stored_id is None:
            stored_id = await self._write_entry(IDENTITY, 0, uuid4().hex.encode(), expected=None, kept=NO_EXPIRY)
        return stored_id.decode()

    async def _write_entry(self, work: str, piece: int, value: bytes, *, expected: bytes | None, kept: int) -> bytes:
        """Writes an entry if its value is ``expected``; returns its value afterwards.

        Raises Conflict if the entry is gone, StoreBusy if it keeps changing.
        """
        until = self._clock.boottime() + self._options.catalogue_deadline
        async with self._transactions.turn(("ledger", work, piece)):
            while True:
                present = await self._read_entry(work, piece)
                if present.value is None and expected is not None:
                    raise Conflict(f"piece {piece} of {work!r} is not in the ledger any more")
                if present.value is not None and (present.value == value or present.value != expected):
                    return present.value
                token = new_number()
                values = kept, value, token, work, piece, present.version
                if (await self._transactions.run(_UPDATE_ENTRY, values, token)).is_done:
                    return value
                # Another caller was faster, or this change was applied and then replaced: the present entry decides.
                if self._clock.boottime() > until:
                    raise StoreBusy("other callers keep changing this entry of the ledger")

    async def _read_entry(self, work: str, piece: int) -> LedgerEntry:
        """Finishes or discards a change whose outcome is unknown, then reads the entry.

        A plain read may miss a change that a majority accepted before its writer died. That change could take effect
        later, after decisions that were made without it.
        """
        rows = await self._driver.ask(StatementRequest(_SELECT_ENTRY, (work, piece), self._options.catalogue_serial))
        version, value = rows[0] if rows else NOTHING
        return NOTHING if version is None or value is None else LedgerEntry(version, value)


def _check_piece(work: str, piece: int) -> None:
    if not 0 < len(work.encode()) <= MAX_WORK_BYTES:
        raise InvalidRequest({"work": f"must have 1 to {MAX_WORK_BYTES} bytes"})
    if not 0 <= piece < _MAX_PIECES:
        raise InvalidRequest({"piece": "must be an integer from 0"})
