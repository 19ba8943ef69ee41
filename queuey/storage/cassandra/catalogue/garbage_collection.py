"""Removes the data of purged and deleted queues.

A purge or delete records a pending delete before it makes a queue's messages unreachable. Later, when no process can
still write with the old row, garbage collection removes the messages, a whole Cassandra partition by one delete. Then
it removes their bucket index and claim logs, the offsets of a deleted queue, and the pending delete last. Every step
may be repeated, by several processes at once and after a crash: a qid is never reused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import FIRST, TICKS_PER_SECOND, Position
from queuey.storage.cassandra.catalogue.queue_cache import CachedQueue
from queuey.storage.cassandra.catalogue.queue_index import QueueIndex
from queuey.storage.cassandra.cluster import Driver, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.statements.message_codec import uuid_of
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import Bucket
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.deadlines import StoreCall

log = logging.getLogger(__name__)

SHARDS = 16
_PAGE_SIZE = 100

_ADD_PENDING_DELETE = Statement(
    "INSERT INTO pending_deletes (shard, deleted_at, qid, uid, partitions, home_class, longest_ttl, application, name) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SELECT_OLDER = Statement(
    "SELECT deleted_at, qid, uid, partitions, home_class, longest_ttl, application, name FROM pending_deletes "
    "WHERE shard = ? AND deleted_at > ? AND deleted_at < ? LIMIT ?"
)
_REMOVE_PENDING_DELETE = Statement("DELETE FROM pending_deletes WHERE shard = ? AND deleted_at = ?")
_SELECT_IDS_IN_USE = Statement("SELECT uid, qid FROM queues WHERE application = ? AND name = ?")
_SELECT_BUCKETS = Statement("SELECT width_index, start, ttl_class FROM bucket_index WHERE qid = ? AND partition = ?")
_DELETE_BUCKET = tuple(
    Statement(f"DELETE FROM messages_{name} WHERE qid = ? AND partition = ? AND bucket = ?") for name in bucketing.NAMES
)
_DELETE_BUCKET_RECORDS = Statement("DELETE FROM bucket_index WHERE qid = ? AND partition = ?")
_MAX_FAILURES = 3
_MAX_DELETES_IN_FLIGHT = 100
"""Max deletes in flight: the nodes have other work to do."""
_BUCKETS_PER_TURN = 2000


class PendingDelete(msgspec.Struct, frozen=True):
    """Messages to be removed, unless their qid is still the queue's.

    Attributes:
        recorded_at: When it was recorded, as an id's position.
        uid: Uid of a deleted queue, so its offsets go as well; None for a purge.
        partitions, home_class, longest_ttl: Values of the queue at that time; they say where its messages are.
    """

    recorded_at: ids.Position
    qid: int
    uid: int | None
    partitions: int
    home_class: int
    longest_ttl: int
    application: str
    name: str


class PendingDeletes:
    def __init__(self, driver: Driver, options: CassandraOptions) -> None:
        self._driver = driver
        self._options = options

    async def add(self, row: CachedQueue, now: int, *, deleted: bool) -> PendingDelete:
        """Records a pending delete, before a purge or delete makes messages unreachable."""
        queue, uid = row.queue, row.queue.uid if deleted else None
        values_of_queue = queue.qid, uid, queue.partitions, row.home_class, row.longest_ttl
        pending = PendingDelete((now, ids.random_low()), *values_of_queue, queue.application, queue.name)
        _, *columns = msgspec.structs.astuple(pending)
        values = pending.qid % SHARDS, uuid_of(pending.recorded_at), *columns
        await self._driver.ask(StatementRequest(_ADD_PENDING_DELETE, values, self._options.catalogue_write))
        return pending

    async def read_older(
        self, ticks: int, shard: int, after: ids.Position
    ) -> tuple[list[PendingDelete], ids.Position | None]:
        values = shard, uuid_of(after), uuid_of((ticks, ids.LOW_MIN)), _PAGE_SIZE
        answer = await self._driver.ask(StatementRequest(_SELECT_OLDER, values, self._options.catalogue_read))
        rows = [(ids.parse_position(deleted_at.hex), *columns) for deleted_at, *columns in answer]
        # A row without a qid is a late write to a pending delete that was removed.
        page = [PendingDelete(*row) for row in rows if row[1] is not None]
        return page, rows[-1][0] if len(rows) == _PAGE_SIZE else None

    async def remove(self, pending: PendingDelete) -> None:
        values = pending.qid % SHARDS, uuid_of(pending.recorded_at)
        await self._driver.ask(StatementRequest(_REMOVE_PENDING_DELETE, values, self._options.catalogue_write))


class GarbageCollector:
    """The garbage collection job, in the thread of the store's loop."""

    def __init__(
        self,
        driver: Driver,
        options: CassandraOptions,
        clock: SteadyClock,
        pending_deletes: PendingDeletes,
        index: QueueIndex,
        forget_offsets: Callable[[int], Awaitable[None]],
        remove_logs: Callable[[int, int], Awaitable[None]],
        closing: threading.Event,
    ) -> None:
        self._driver = driver
        self._options = options
        self._clock = clock
        self._pending_deletes = pending_deletes
        self._index = index
        self._forget_offsets = forget_offsets
        self._remove_logs = remove_logs
        self._closing = closing
        self.reaped = 0
        if options.reap_interval is not None:
            driver.loop.call(driver.loop.later, options.reap_interval, self._begin_run)

    async def run(self) -> int:
        """Processes the pending deletes that are old enough. Returns how many had messages to remove.

        A failed one stays for the next run; the third failure is raised.
        """
        before, failures = self.reaped, 0
        ticks = self._clock.now() - round(self._options.reap_after * TICKS_PER_SECOND)
        for shard in range(SHARDS):
            after: Position | None = FIRST
            while after is not None:
                page, after = await self._pending_deletes.read_older(ticks, shard, after)
                for pending in page:
                    if self._closing.is_set():
                        return self.reaped - before
                    try:
                        await self._remove_data(pending)
                    except StoreUnavailable:
                        # One failure must not hold up the rest. Several mean that Cassandra is the cause.
                        failures += 1
                        if failures == _MAX_FAILURES:
                            raise
                        log.info(
                            "The data of queue %s of %s could not be removed; garbage collection will try again.",
                            pending.name,
                            pending.application,
                            exc_info=True,
                        )
        return self.reaped - before

    def _begin_run(self) -> None:
        if not self._closing.is_set():
            self._driver.calls.begin(self.run(), self._end_run, StoreCall())

    def _end_run(self, _: object, error: Exception | None) -> None:
        if error is not None:
            log.info(
                "The data of purged and deleted queues could not be removed; garbage collection will try again: %s",
                error,
            )
        if self._options.reap_interval is not None and not self._driver.calls.is_closed:
            self._driver.loop.later(self._options.reap_interval, self._begin_run)

    async def _remove_data(self, pending: PendingDelete) -> None:
        """Removes what no queue uses any more, then the pending delete itself, so that a failure is repeated."""
        uid, qid = await self._read_in_use(pending)
        if qid != pending.qid:
            for partition in range(1, pending.partitions + 1):
                await self._remove_messages(pending, partition)
            await self._remove_logs(pending.qid, pending.partitions)
            self.reaped += 1
        if pending.uid is not None and uid != pending.uid:
            await self._forget_offsets(pending.uid)
            await self._index.remove(pending.application, pending.name, pending.uid)  # Unless the delete has done so.
        await self._pending_deletes.remove(pending)

    async def _read_in_use(self, pending: PendingDelete) -> tuple[int | None, int | None]:
        """Returns uid and qid of the queue that has the name now, or None for both.

        Reads with serial consistency, which first completes or discards a change of the row that is still in doubt. A
        pending delete whose purge was never applied is removed, so that purge must not be applied later.
        """
        name = pending.application, pending.name
        rows = await self._driver.ask(StatementRequest(_SELECT_IDS_IN_USE, name, self._options.catalogue_serial))
        return (rows[0][0], rows[0][1]) if rows else (None, None)

    async def _remove_messages(self, pending: PendingDelete, part: int) -> None:
        write = self._options.catalogue_write
        recorded = await self._driver.ask(
            StatementRequest(_SELECT_BUCKETS, (pending.qid, part), self._options.catalogue_read)
        )
        await self._remove_buckets(pending, part, unrecorded_buckets(pending, self._clock.now()))
        for first in range(0, len(recorded), _BUCKETS_PER_TURN):
            await self._driver.loop.next_turn()
            time_buckets = [
                bucketing.bucket_of(start, ttl_class, width_index)
                for width_index, start, ttl_class in recorded[first : first + _BUCKETS_PER_TURN]
                if width_index is not None  # A partition with a low watermark and no bucket gives one row without them.
            ]
            await self._remove_buckets(pending, part, time_buckets)
        if recorded:
            await self._driver.ask(StatementRequest(_DELETE_BUCKET_RECORDS, (pending.qid, part), write))

    async def _remove_buckets(self, pending: PendingDelete, partition: int, time_buckets: Sequence[Bucket]) -> None:
        removals = [
            StatementRequest(
                _DELETE_BUCKET[time_bucket.ttl_class],
                (pending.qid, partition, time_bucket.code),
                self._options.catalogue_write,
            )
            for time_bucket in time_buckets
        ]
        await self._driver.ask_all(removals, max_in_flight=_MAX_DELETES_IN_FLIGHT)


def unrecorded_buckets(pending: PendingDelete, now: int) -> list[Bucket]:
    """Returns the unrecorded buckets of each partition that may hold messages alive at ``now`` (ticks).

    Messages of the home class were written before the pending delete was recorded, or a little later by processes with
    the old row. Their ids are no further in the past or future than the class lets messages live.
    """
    span = bucketing.CLASSES[pending.home_class] * TICKS_PER_SECOND
    return bucketing.home_buckets(pending.home_class, now - span, max(pending.recorded_at[0] + span, now - span) + 1)
