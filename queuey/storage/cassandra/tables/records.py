"""Records and the ledger in Cassandra: a change is a lightweight transaction on the record's row.

A kind has four shards. Due records are found by reading four Cassandra partitions for each kind, however many
applications have records. Each shard has some records of every application. So processes can change records of one
application concurrently. Entries of the ledger are spread over 2^31 shards, because they are never listed.
"""

from __future__ import annotations

import heapq
import zlib
from math import ceil
from operator import attrgetter

from msgspec.structs import replace

from queuey.model.errors import RecordChanged, StoreClosed
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Record, RecordDue
from queuey.storage import Ledger, Records, new_messages
from queuey.storage.cassandra.cluster import Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.statements.lightweight_transactions import DocumentStatements, new_number
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.time import bucketing
from queuey.storage.contracts.records import LEDGER_KIND

SHARDS = 4
_ROWS_PER_TURN = 2_000
"""Max rows that one turn of the loop processes."""

_LEDGER_SHARDS = 1 << 31
_RECORDS = DocumentStatements("records", "kind, shard, application, name", "value, due", expires=True)
_SELECT_RECORDS = Statement(
    "SELECT name, value, due, version FROM records WHERE kind = ? AND shard = ? AND application = ? AND name >= ? "
    "LIMIT ?"
)
_SELECT_DUE_TIMES = Statement("SELECT application, name, due, version FROM records WHERE kind = ? AND shard = ?")
_SELECT_DUE_TIMES_OF_APPLICATION = Statement(
    "SELECT application, name, due, version FROM records WHERE kind = ? AND shard = ? AND application = ?"
)


class CassandraRecords(Records):
    """Records on Cassandra.

    ``record`` reads serially, so a change in doubt is finished or discarded first. ``due_records`` reads
    all records of the kind or the application, without values.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._clock = parts.clock
        self._transactions = parts.transactions

    @store_call()
    async def record(self, kind: str, application: str, name: str) -> Record | None:
        key = _make_key(kind, application, name)
        rows = await self._driver.ask(StatementRequest(_RECORDS.find, key, self._options.catalogue_serial))
        return Record(kind, application, name, *rows[0]) if rows else None

    @store_call()
    async def records(self, kind: str, application: str, *, start: str = "", limit: int = 100) -> list[Record]:
        level = self._options.catalogue_read
        requests = [
            StatementRequest(_SELECT_RECORDS, (kind, shard, application, start, limit), level)
            for shard in range(SHARDS)
        ]
        records = [Record(kind, application, *row) for rows in await self._driver.ask_all(requests) for row in rows]
        # Cassandra orders names by their bytes, and so does the merge.
        return heapq.nsmallest(limit, records, key=lambda record: record.name.encode())

    @store_call()
    async def set_record(self, record: Record, *, kept: float | None = None) -> Record:
        new_messages.check_record(record, kept)
        new = replace(record, version=new_number())
        ttl = 0 if kept is None else max(1, min(ceil(kept), bucketing.max_cassandra_ttl(self._clock.now())))
        key = _make_key(record.kind, record.application, record.name)
        result = await self._transactions.set_document(
            _RECORDS, key, (ttl, new.value, new.due), new.version, record.version or None
        )
        result.require(RecordChanged(record.name), f"record {record.name!r}")
        return new

    @store_call()
    async def remove_record(self, record: Record) -> None:
        key = _make_key(record.kind, record.application, record.name)
        result = await self._transactions.remove_document(_RECORDS, key, record.version)
        # If the record exists after a doubt, it was changed before, or this call removed it and it was created again.
        result.require(RecordChanged(record.name), f"record {record.name!r}")

    @store_call()
    async def due_records(
        self, kind: str, until: int, *, application: str | None = None, limit: int = 1000
    ) -> list[RecordDue]:
        # Cost: reads all records of the kind, or of the application, without values.
        level = self._options.catalogue_read
        if application is None:
            requests = [StatementRequest(_SELECT_DUE_TIMES, (kind, shard), level) for shard in range(SHARDS)]
        else:
            requests = [
                StatementRequest(_SELECT_DUE_TIMES_OF_APPLICATION, (kind, shard, application), level)
                for shard in range(SHARDS)
            ]
        due: list[RecordDue] = []
        for rows in await self._driver.ask_all(requests):
            for first in range(0, len(rows), _ROWS_PER_TURN):
                due += [RecordDue(*row) for row in rows[first : first + _ROWS_PER_TURN] if row[2] <= until]
                await self._driver.loop.next_turn()
        return heapq.nsmallest(limit, due, key=attrgetter("due"))


class CassandraLedger(Ledger):
    def __init__(self, parts: StoreParts, records: Records) -> None:
        super().__init__(records)
        self._driver = parts.driver
        self._clock = parts.clock
        self._closing = parts.closing
        self._generator = parts.generator
        self._watch = parts.watch

    @store_call()
    async def now(self) -> int:
        if self._closing.is_set():
            raise StoreClosed("the store is closed")
        await self._watch.require_sound()
        return self._clock.now()

    async def ids_ahead(self) -> float:
        return max(0, self._generator.next_time() - self._clock.now()) / TICKS_PER_SECOND


def _make_key(kind: str, application: str, name: str) -> tuple[str, int, str, str]:
    shards = _LEDGER_SHARDS if kind == LEDGER_KIND else SHARDS
    return kind, zlib.crc32(f"{application}/{name}".encode()) % shards, application, name
