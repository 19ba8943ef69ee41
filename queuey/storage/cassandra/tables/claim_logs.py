"""Claim logs in Cassandra.

An append is one conditional batch on the log's ``last_number``: it writes the entry, truncates earlier entries, and
names a snapshot. It runs in the loop and blocks no thread. Once a node may have begun an append, it is not sent again
here: a caller in doubt repeats it until Cassandra answers that it was applied or refused.
"""

from __future__ import annotations

from queuey.model.errors import StoreUnavailable
from queuey.model.messages import LogEntry, LogPage, Queue
from queuey.storage.cassandra.cluster import Driver, InDoubt, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import store_call
from queuey.storage.cassandra.protocol.requests import Call
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.tables.covers import DELETE_ALL_COVERS
from queuey.storage.contracts.claim_logs import MAX_ENTRY_BYTES, MAX_PAGE_ENTRIES, MAX_SNAPSHOT_BYTES, ClaimLogs
from queuey.storage.new_messages import check_length, check_partition

_WHERE = "WHERE qid = ? AND partition = ?"
_ADVANCE_NUMBER = Statement(f"UPDATE claims SET last_number = ? {_WHERE} IF last_number = ?", idempotent=False)
_ADVANCE_AND_NAME = Statement(
    f"UPDATE claims SET last_number = ?, snapshot_number = ? {_WHERE} IF last_number = ?", idempotent=False
)
_INSERT_ENTRY = Statement("INSERT INTO claims (qid, partition, number, body) VALUES (?, ?, ?, ?)", idempotent=False)
_INSERT_HEAD = Statement("INSERT INTO claims (qid, partition, number) VALUES (?, ?, -1)", idempotent=False)
_DELETE_ENTRIES_BELOW = Statement(f"DELETE FROM claims {_WHERE} AND number >= 0 AND number < ?", idempotent=False)
_SELECT_HEAD = Statement(f"SELECT last_number, snapshot_number, number FROM claims {_WHERE} AND number = -1")
_SELECT_ENTRIES = Statement(
    f"SELECT last_number, number, body FROM claims {_WHERE} AND number >= ? LIMIT {MAX_PAGE_ENTRIES}"
)
_SELECT_SNAPSHOT = Statement(f"SELECT body FROM claim_snapshots {_WHERE} AND number = ?")
_INSERT_SNAPSHOT = Statement("INSERT INTO claim_snapshots (qid, partition, number, body) VALUES (?, ?, ?, ?)")
_DELETE_OLDER_SNAPSHOTS = Statement(f"DELETE FROM claim_snapshots {_WHERE} AND number < ?")
_DELETE_NUMBERS = Statement(
    f"DELETE last_number, snapshot_number FROM claims {_WHERE} IF last_number = ?", idempotent=False
)
_DELETE_LOG = Statement(f"DELETE FROM claims {_WHERE} AND number >= -1", idempotent=False)
_DELETE_ALL_SNAPSHOTS = Statement(f"DELETE FROM claim_snapshots {_WHERE}")

STATEMENTS_TO_PREPARE = (
    _ADVANCE_NUMBER,
    _ADVANCE_AND_NAME,
    _INSERT_ENTRY,
    _INSERT_HEAD,
    _DELETE_ENTRIES_BELOW,
    _SELECT_HEAD,
    _SELECT_ENTRIES,
    _SELECT_SNAPSHOT,
    _DELETE_OLDER_SNAPSHOTS,
)

_TIMEOUT_MESSAGE = "Cassandra did not give the claim log in time"
_MAX_READ_ATTEMPTS = 5
"""Max attempts of one read; an attempt fails if the snapshot is replaced between its steps."""


class CassandraClaimLogs(ClaimLogs):
    """Claim logs on Cassandra.

    An append is one conditional batch, which is sent once. Earlier snapshots are then removed without waiting.
    """

    def __init__(self, parts: StoreParts) -> None:
        self._driver = parts.driver
        self._options = parts.options
        self._levels = parts.levels
        self._rows = parts.rows
        self._transactions = parts.transactions
        self._watch = parts.watch

    @store_call(_TIMEOUT_MESSAGE)
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
        if not self._watch.sound() or self._rows.find_cached(queue) is None:
            await self._watch.require_sound()
            await self._rows.find_current(queue)
        key = (queue.qid, partition)
        (advance, values), *further = _make_batch(key, entry, snapshot, truncate_below)
        levels = self._options.catalogue_write, self._options.catalogue_serial
        rows = await self._driver.ask(StatementRequest(advance, values, *levels, further=further))
        if not rows:
            raise InDoubt("Cassandra did not answer whether the entry was appended")
        applied = bool(rows[0][0])
        if applied and snapshot is not None:
            # Nothing refers to earlier snapshots now. If this fails, the next snapshot removes them.
            forget = StatementRequest(_DELETE_OLDER_SNAPSHOTS, (*key, snapshot), self._options.catalogue_write)
            self._driver.send(forget, lambda *_: None)
        return applied

    @store_call(_TIMEOUT_MESSAGE)
    async def read_log(self, queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        check_partition(queue, partition)
        await self._rows.find_current(queue)
        consistency = self._options.catalogue_serial if newest else self._levels.log_read_level()
        return await _read_page(self._driver, (queue.qid, partition), first, consistency)

    @store_call()
    async def write_snapshot(self, queue: Queue, partition: int, number: int, body: bytes) -> None:
        check_partition(queue, partition)
        check_length("snapshot", body, MAX_SNAPSHOT_BYTES)
        await self._rows.find_current(queue)
        values = queue.qid, partition, number, body
        await self._driver.ask(StatementRequest(_INSERT_SNAPSHOT, values, self._options.catalogue_write))

    def claims_refusal(self, queue: Queue) -> str | None:
        return self._levels.claims_refusal(queue)

    async def remove_logs(self, qid: int, partitions: int) -> None:
        keys = [(qid, partition) for partition in range(1, partitions + 1)]
        heads = await self._driver.ask_all(
            [StatementRequest(_SELECT_HEAD, key, self._options.catalogue_read) for key in keys]
        )
        for key, head in zip(keys, heads, strict=True):
            if head:
                await self._remove_log(key, head[0][0])

    async def _remove_log(self, key: tuple[int, int], last: int | None) -> None:
        """Removes snapshots and covers, and the log last: while it exists, an interrupted removal starts again."""
        for statement in (_DELETE_ALL_SNAPSHOTS, DELETE_ALL_COVERS):
            await self._driver.ask(StatementRequest(statement, key, self._options.catalogue_write))
        while last is not None:
            result = await self._transactions.run(_DELETE_NUMBERS, (*key, last), further=[(_DELETE_LOG, key)])
            # If refused, the log was removed before, or an append in doubt has been applied.
            last = result.row[-1] if result.row else None


def _make_batch(key: tuple[int, int], entry: LogEntry, snapshot: int | None, truncate_below: int | None) -> list[Call]:
    expected = entry.number - 1 or None
    advance: Call = (_ADVANCE_NUMBER, (entry.number, *key, expected))
    if snapshot is not None:
        advance = (_ADVANCE_AND_NAME, (entry.number, snapshot, *key, expected))
    calls: list[Call] = [advance, (_INSERT_ENTRY, (*key, entry.number, entry.body))]
    if expected is None:
        calls.append((_INSERT_HEAD, key))
    if truncate_below is not None:
        calls.append((_DELETE_ENTRIES_BELOW, (*key, min(truncate_below, entry.number))))
    return calls


async def _read_page(driver: Driver, key: tuple[int, int], first: int, consistency: str) -> LogPage:
    def entries(first: int) -> StatementRequest:
        return StatementRequest(_SELECT_ENTRIES, (*key, first), consistency)

    if first > 1:
        rows = await driver.ask(entries(first))
        if rows and (rows[0][1], rows[-1][1]) == (first, first + len(rows) - 1):
            return _make_page(rows)
    for _ in range(_MAX_READ_ATTEMPTS):
        head = await driver.ask(StatementRequest(_SELECT_HEAD, key, consistency))
        last, named = head[0][:2] if head else (None, None)
        if last is None or last < first:
            return LogPage(last or 0, [])
        if named is None or named < first:
            rows = await driver.ask(entries(first))
            return _make_page(rows, last)
        snapshot, rows = await driver.ask_all(
            [StatementRequest(_SELECT_SNAPSHOT, (*key, named), consistency), entries(named + 1)]
        )
        if snapshot:
            return _make_page(rows, last, LogEntry(named, snapshot[0][0]))
        # An entry has named another snapshot since the head was read, and this one was removed.
    raise StoreUnavailable("the claim log is replaced faster than it can be read")


def _make_page(rows: Rows, last: int = 0, snapshot: LogEntry | None = None) -> LogPage:
    entries = [LogEntry(number, body) for _, number, body in rows]
    return LogPage(max([last, *(row[0] for row in rows[-1:])]), entries, snapshot)
