"""Bulk access to the embedded store: scans, loads and measures."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from queuey.model import ids
from queuey.model.errors import TooLate
from queuey.model.ids import LOW_MIN, TICKS_MAX, Position
from queuey.model.messages import Measure, Message, Queue, Slice
from queuey.storage import Bulk, Messages, range_scans
from queuey.storage.deadlines import in_thread, iterate_in_thread
from queuey.storage.new_messages import check_partition, check_text
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database, threaded
from queuey.storage.sqlite.messages import apply_read_delay, sample_horizon
from queuey.storage.sqlite.slice_reads import FROM_LIVE_RANGE, FROM_POSITION, find_bounds, read_live_keys
from queuey.storage.sqlite.transaction import Row, Transaction

if TYPE_CHECKING:
    from pyarrow import RecordBatch

LOADED_AT_ONCE = 1000
MAX_MEASURED_QUEUES = 500
"""Max queues that are measured in one snapshot."""
MAX_MEASURED_MESSAGES = 50_000
"""Max messages of one partition that are counted in one snapshot (approximate)."""
SPARE_ROWS = 8
"""Number of rows to read beyond the expected count of a partition, because window counts are estimates."""
_END: Position = (TICKS_MAX + 1, LOW_MIN)

_SELECT_PARTITION_COUNTS = (
    "SELECT queue_partition, sum(message_count), min(max(first_ticks, ?2 - longest_ttl)) FROM json_each(?1) AS asked "
    "CROSS JOIN expiry_windows ON queue_partition >= asked.value << 8 AND queue_partition < (asked.value + 1) << 8 "
    "WHERE expired_by > ?2 "
    "GROUP BY queue_partition ORDER BY queue_partition"
)
_SELECT_TOTALS_OF_FIRST_ROWS = (
    "SELECT count(*), sum(size), min(ticks), max(ticks), min(low), max(low), min(expires) "  # noqa: S608 - constants only
    f"FROM (SELECT queue_partition, ticks, low, expires, octet_length(body) AS size {FROM_POSITION} LIMIT ?) WHERE "
    "queue_partition = ?"
)
"""Selects totals of the partition among the first rows from a position on."""
_SELECT_NEXT_KEY = f"SELECT queue_partition, ticks, low {FROM_POSITION} LIMIT 1 OFFSET ?"
_SELECT_LIVE_TOTALS = f"SELECT count(*), sum(octet_length(body)) {FROM_LIVE_RANGE}"
_SELECT_OLDEST = f"SELECT ticks, low {FROM_LIVE_RANGE} ORDER BY ticks, low LIMIT 1"
_SELECT_NEWEST = f"SELECT ticks, low {FROM_LIVE_RANGE} ORDER BY ticks DESC, low DESC LIMIT 1"


class SqliteBulk(Bulk):
    """Bulk access in SQLite.

    A load has a transaction for each ``LOADED_AT_ONCE`` messages, and ``load_unread`` has one. Measures are exact.
    """

    def __init__(self, database: Database, messages: Messages) -> None:
        self._db = database
        self._messages = messages

    def scan(self, queue: Queue, part: Slice) -> AsyncIterator[list[Message]]:
        return range_scans.scan(self._messages, queue, part)

    async def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> AsyncIterator[RecordBatch]:
        from queuey.storage import arrow_format  # noqa: PLC0415 - needs Arrow, which only pipelines install

        if bodies:
            async for messages in self.scan(queue, part):
                yield arrow_format.batch_from_messages(messages)
            return
        lower = part.lower
        while keys := await self._read_keys(queue, msgspec.structs.replace(part, lower=lower)):
            yield arrow_format.batch_from_columns(*([key[number] for key in keys] for number in (1, 2, 3)))
            lower = ids.following(keys[-1][1:3])

    def measure(self, queues: Sequence[Queue]) -> AsyncIterator[list[Measure]]:
        return iterate_in_thread(measure(self._db, queues))

    async def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        return await in_thread(partial(self._load_chunks, queue, messages))

    @threaded
    def horizon(self, queue: Queue) -> int:
        with self._db.readers.lend() as connection:
            safe = sample_horizon(self._db, connection, queue)
        return apply_read_delay(queue, safe, self._db.clock())

    @threaded
    def _read_keys(self, queue: Queue, requested: Slice) -> list[Any]:
        with self._db.readers.lend() as connection:
            where = self._make_range_parameters(connection, queue, requested)
            return [key for keys in read_live_keys(connection, *where, limit=requested.limit) for key in keys]

    def _make_range_parameters(
        self, connection: Connection, queue: Queue, requested: Slice
    ) -> tuple[int, int, int, int, int, int]:
        safe = sample_horizon(self._db, connection, queue)
        now = self._db.clock()
        qp = queue.qid << 8 | requested.partition if 0 < requested.partition <= queue.partitions else -1
        lower, upper = find_bounds(
            connection, qp, requested, apply_read_delay(queue, safe, now) if requested.keeps_read_delay else safe, now
        )
        return (qp, *lower, *upper, now)

    @threaded
    def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        count = 0
        end = part.lower
        with self._db.readers.lend() as connection:
            where = self._make_range_parameters(connection, queue, part)
            for keys in read_live_keys(connection, *where, limit=part.limit):
                count += len(keys)
                end = ids.following(keys[-1][1:3])
        return count, end if count >= part.limit else max(part.lower, where[3:5])

    def _load_chunks(self, queue: Queue, messages: Iterable[Message]) -> int:
        written = 0
        remaining = iter(messages)
        while chunk := list(islice(remaining, LOADED_AT_ONCE)):
            _check_messages(queue, chunk)

            def work(transaction: Transaction, some: list[Message] = chunk) -> int:
                transaction.verify(queue)
                return _load_alive(transaction, queue, some)

            written += self._db.writer.perform(work)
        return written

    async def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        messages = list(messages)
        _check_messages(queue, messages)
        lowest = min((message.ticks for message in messages), default=None)

        def work(transaction: Transaction) -> int:
            transaction.verify(queue)
            if lowest is None:
                return 0
            if lowest <= transaction.last:
                raise TooLate(written=False)
            return _load_alive(transaction, queue, messages)

        return await self._db.write(work)


def _check_messages(queue: Queue, messages: Sequence[Message]) -> None:
    for message in messages:
        check_partition(queue, message.partition)
        check_text(message.body)


def _load_alive(transaction: Transaction, queue: Queue, messages: Sequence[Message]) -> int:
    """Stores unexpired messages, replacing others with the same ids. Returns how many were unexpired."""
    # Otherwise ids up to now would count as ahead of the clock.
    transaction.advance()
    alive = [message for message in messages if message.expires > transaction.last]
    base = queue.qid << 8
    # Keyed by id: the last of several messages with the same id is stored.
    rows: dict[tuple[int, int, int], Row] = {}
    for message in alive:
        key = (base | message.partition, message.ticks, message.low)
        rows[key] = (*key, message.expires, message.body, row_codec.encode_meta(message.meta))
    transaction.put_all(list(rows.values()))
    return len(alive)


def measure(
    database: Database, queues: Sequence[Queue], *, messages: int = MAX_MEASURED_MESSAGES
) -> Iterator[list[Measure]]:
    """Measures queues, at most ``messages`` of a partition in one snapshot; see the storage contract.

    Each partition is counted by one execution of a prepared statement. For queues with few messages this is as cheap as
    one statement for many queues, which would have to sort. Each snapshot covers only one chunk of queues, or one chunk
    of a partition's messages, because the write-ahead log cannot start over while a snapshot is held.
    """
    for start in range(0, len(queues), MAX_MEASURED_QUEUES):
        yield from _measure_queues(database, queues[start : start + MAX_MEASURED_QUEUES], messages)


def _measure_queues(database: Database, queues: Sequence[Queue], messages: int) -> Iterator[list[Measure]]:
    """Yields a list of measures for each queue; it is empty if the queue's row is out of date.

    Large partitions are counted on in further snapshots.
    """
    now = database.clock()
    complete: defaultdict[int, list[Measure]] = defaultdict(list)
    large: defaultdict[int, list[tuple[int, Measure | None, Position]]] = defaultdict(list)
    with _snapshot(database) as connection:
        current = [_is_current(database, connection, queue) for queue in queues]
        qids = json.dumps([queue.qid for queue, is_current in zip(queues, current, strict=True) if is_current])
        held: Any = connection.execute(_SELECT_PARTITION_COUNTS, (qids, now)).fetchall()
        for qp, count, ticks in held:
            measured, border = _measure_chunk(
                connection, qp, (ticks, LOW_MIN), min(max(0, count) + SPARE_ROWS, messages), now
            )
            if border is not None:
                large[qp >> 8].append((qp, measured, border))
            elif measured is not None:
                complete[qp >> 8].append(measured)
    for queue, is_current in zip(queues, current, strict=True):
        if not is_current:
            yield []
        elif queue.qid in large:
            more = [_measure_rest(database, qp, first, border, now, messages) for qp, first, border in large[queue.qid]]
            with _snapshot(database) as connection:
                kept = _is_current(database, connection, queue)
            measures = complete[queue.qid] + [m for m in more if m is not None]
            yield sorted(measures, key=lambda m: m.partition) if kept else []
        else:
            yield complete[queue.qid]


@contextlib.contextmanager
def _snapshot(database: Database) -> Iterator[Connection]:
    with database.readers.lend() as connection:
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("COMMIT")


def _is_current(database: Database, connection: Connection, queue: Queue) -> bool:
    if queue.version == database.refresh_catalogue_version(connection):
        return True
    return row_codec.find_queue(connection, queue.application, queue.name, queue.version) == queue


def _measure_chunk(
    connection: Connection, qp: int, lower: Position, limit: int, now: int
) -> tuple[Measure | None, Position | None]:
    """Measures live messages among ``limit`` rows of a partition.

    Returns:
        The measure, or None without live messages; and the next position of the partition, or None at its end.
    """
    sums: Any = connection.execute(_SELECT_TOTALS_OF_FIRST_ROWS, (qp, *lower, limit, qp)).fetchone()
    count, size, first, last, low, high, ended = sums
    following: Any = connection.execute(_SELECT_NEXT_KEY, (qp, *lower, limit)).fetchone() if count == limit else None
    border: Position | None = following[1:] if following is not None and following[0] == qp else None
    if not count:
        return None, border
    oldest: Any = (first, low)
    newest: Any = (last, high)
    where = (qp, *lower, *(border or _END), now)
    if ended <= now:
        [(count, size)] = connection.execute(_SELECT_LIVE_TOTALS, where).fetchall()
        if not count:
            return None, border
    if low != high or ended <= now:
        # Several processes made the ids, or some rows have expired: min and max may come from different messages.
        oldest = connection.execute(_SELECT_OLDEST, where).fetchone()
        newest = connection.execute(_SELECT_NEWEST, where).fetchone()
    return Measure(qp & 0xFF, count, size, exact=True, oldest=oldest, newest=newest), border


def _measure_rest(
    database: Database, qp: int, total: Measure | None, border: Position | None, now: int, messages: int
) -> Measure | None:
    while border is not None:
        with _snapshot(database) as connection:
            chunk, border = _measure_chunk(connection, qp, border, messages, now)
        if chunk is not None:
            total = chunk if total is None else _merge_measures(total, chunk)
    return total


def _merge_measures(total: Measure, added: Measure) -> Measure:
    count, size = total.count + added.count, total.size + added.size
    return Measure(total.partition, count, size, exact=True, oldest=total.oldest, newest=added.newest)
