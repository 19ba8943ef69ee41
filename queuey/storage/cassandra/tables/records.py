"""Records in Cassandra, in four shards: a change is a lightweight transaction on the record's row.

Due records are found by reading four Cassandra partitions for each kind, however many applications have records. Each
shard has some records of every application. So processes can change records of one application concurrently.
"""

from __future__ import annotations

import heapq
import zlib
from operator import attrgetter

from msgspec.structs import replace

from queuey.model.errors import RecordChanged
from queuey.model.messages import Record, RecordDue
from queuey.storage import Records, new_messages
from queuey.storage.cassandra.cluster import Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.statements.lightweight_transactions import new_number
from queuey.storage.cassandra.tables.connected import StoreParts

SHARDS = 4
_ROWS_PER_TURN = 2_000
"""Max rows that one turn of the loop processes."""

_WHERE_RECORD = "kind = ? AND shard = ? AND application = ? AND name = ?"
_SELECT_RECORD = Statement(f"SELECT value, due, version FROM records WHERE {_WHERE_RECORD}")
_SELECT_RECORDS = Statement(
    "SELECT name, value, due, version FROM records WHERE kind = ? AND shard = ? AND application = ? AND name >= ? "
    "LIMIT ?"
)
_INSERT_RECORD = Statement(
    "INSERT INTO records (kind, shard, application, name, value, due, version) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "IF NOT EXISTS",
    idempotent=False,
)
_UPDATE_RECORD = Statement(
    f"UPDATE records SET value = ?, due = ?, version = ? WHERE {_WHERE_RECORD} IF version = ?", idempotent=False
)
_DELETE_RECORD = Statement(f"DELETE FROM records WHERE {_WHERE_RECORD} IF version = ?", idempotent=False)
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
        self._transactions = parts.transactions

    @store_call()
    async def record(self, kind: str, application: str, name: str) -> Record | None:
        values = kind, _shard(application, name), application, name
        rows = await self._driver.ask(StatementRequest(_SELECT_RECORD, values, self._options.catalogue_serial))
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
    async def set_record(self, record: Record) -> Record:
        new_messages.check_record(record)
        new = replace(record, version=new_number())
        row = record.kind, _shard(record.application, record.name), record.application, record.name
        async with self._transactions.turn(("record", *row)):
            if record.version:
                values = new.value, new.due, new.version, *row, record.version
                result = await self._transactions.run(_UPDATE_RECORD, values, new.version)
            else:
                # A refused insert would return the whole row with its key, so the row is read by this request.
                read_back = StatementRequest(_SELECT_RECORD, row, self._options.catalogue_serial)
                result = await self._transactions.run(
                    _INSERT_RECORD, (*row, new.value, new.due, new.version), new.version, read_back=read_back
                )
        result.require(RecordChanged(record.name), f"record {record.name!r}")
        return new

    @store_call()
    async def remove_record(self, record: Record) -> None:
        row = record.kind, _shard(record.application, record.name), record.application, record.name
        async with self._transactions.turn(("record", *row)):
            read_back = StatementRequest(_SELECT_RECORD, row, self._options.catalogue_serial)
            result = await self._transactions.run(_DELETE_RECORD, (*row, record.version), read_back=read_back)
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


def _shard(application: str, name: str) -> int:
    return zlib.crc32(f"{application}/{name}".encode()) % SHARDS
