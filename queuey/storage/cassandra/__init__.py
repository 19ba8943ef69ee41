"""The production store: partitioned Cassandra rows, read by time, safe under eventual consistency.

Modules by task:

* ids, write timestamps: :mod:`.time.clock`, which :mod:`.time.clock_watch` compares with the cluster's clocks;
* writes that are acknowledged within W of their ids or undone: :mod:`.write.writer`, :mod:`.write.undo_writes`;
* reads below a horizon, from all buckets that can hold a message: :mod:`.time.bucketing`, :mod:`.read.bucket_index`,
  :mod:`.read.slice_reads`;
* bulk export and import: :mod:`.tables.bulk`, :mod:`.write.bulk_load`; records of
  applications and of repeatable work: :mod:`.tables.records`;
* queues, whose rows no process uses longer than C: :mod:`.tables.queues`, :mod:`.catalogue.queue_cache`,
  :mod:`.statements.lightweight_transactions`;
* claim logs: :mod:`.tables.claim_logs`;
* posts with idempotency keys, and named messages: :mod:`.tables.names`, by the rules of :mod:`.write.post_keys` and
  :mod:`.write.name_steps`;
* waiting readers: :mod:`.read.watched_arrivals`, with the record of all processes in :mod:`.read.recent_writes`;
* removal of purged and deleted data: :mod:`.catalogue.garbage_collection`;
* the parts, and how they are connected: :mod:`.tables.connected`;
* the tables: ``cql/``, :mod:`.admin.migrations`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.model.ids import StoreClock, ticks_to_seconds
from queuey.model.messages import Acknowledgement, Queue
from queuey.storage import Store
from queuey.storage.cassandra.admin.migrations import schema_problem
from queuey.storage.cassandra.admin.node_settings import acknowledgement_of
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.garbage_collection import GarbageCollector
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import CassandraOptions, Level
from queuey.storage.cassandra.read import bucket_index, recent_writes
from queuey.storage.cassandra.read.recent_writes import RecentWrites
from queuey.storage.cassandra.read.watched_arrivals import PolledArrivals
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.tables import claim_logs, names
from queuey.storage.cassandra.tables.applications import CassandraApplications
from queuey.storage.cassandra.tables.bulk import CassandraBulk
from queuey.storage.cassandra.tables.claim_logs import CassandraClaimLogs
from queuey.storage.cassandra.tables.connected import StoreParts
from queuey.storage.cassandra.tables.counting import Counting
from queuey.storage.cassandra.tables.covers import CassandraCovers
from queuey.storage.cassandra.tables.groups import CassandraGroups
from queuey.storage.cassandra.tables.messages import CassandraMessages, SliceReader
from queuey.storage.cassandra.tables.names import CassandraKeyedPosts, CassandraNames
from queuey.storage.cassandra.tables.offsets import CassandraOffsets
from queuey.storage.cassandra.tables.queues import CassandraCatalogue
from queuey.storage.cassandra.tables.records import CassandraLedger, CassandraRecords
from queuey.storage.cassandra.time.clock import TICKS_PER_MICROSECOND, SteadyClock
from queuey.storage.cassandra.time.clock_watch import SELECT_NOW
from queuey.storage.cassandra.time.timing_in_force import PUBLISH_TAILS, READ_TIMING
from queuey.storage.deadlines import in_thread

__all__ = ["CassandraOptions", "CassandraStore", "Level", "open_store"]

T = TypeVar("T")

MAX_ACKNOWLEDGEMENT_AGE = 60.0
"""Max age of the cached commit log settings of the nodes, in seconds."""
MAX_CLOCK_DIFFERENCE = 60.0
"""Max S, in seconds."""
OPEN_TIMEOUT = 3.0
"""Timeout of opening, in seconds. The store then opens without Cassandra."""

STATEMENTS_TO_PREPARE = (
    *message_codec.INSERT,
    *message_codec.DELETE,
    *message_codec.SELECT_UP,
    *message_codec.SELECT_DOWN,
    *message_codec.SELECT_IDS_UP,
    *message_codec.SELECT_IDS_DOWN,
    queue_cache.SELECT_QUEUE,
    READ_TIMING,
    PUBLISH_TAILS,
    *bucket_index.STATEMENTS_TO_PREPARE,
    *recent_writes.STATEMENTS_TO_PREPARE,
    SELECT_NOW,
    *claim_logs.STATEMENTS_TO_PREPARE,
    *names.STATEMENTS_TO_PREPARE,
)
"""Statements that the loop's thread sends often, to be prepared ahead."""

_WRITE_HEARTBEAT = Statement("INSERT INTO heartbeats (process, seen_at, tails) VALUES (?, ?, ?) USING TIMESTAMP ?")
"""Concurrent health checks share a row: the write with the highest timestamp wins, whichever comes last."""
_SELECT_HEARTBEAT = Statement("SELECT seen_at FROM heartbeats WHERE process = ?")


class CassandraStore(Store):
    """A store on Cassandra. ``ping`` also checks clock, timing and schema; ``acknowledgement`` is cached."""

    name = "cassandra"
    waits_for_network = True
    ids_follow_clocks = True

    def __init__(
        self, url: str, options: CassandraOptions, clock: SteadyClock, *, driver: Callable[..., Driver] = Driver
    ) -> None:
        parts = self._parts = StoreParts(url, options, clock, schema_problem, STATEMENTS_TO_PREPARE, driver=driver)
        self._driver = parts.driver
        self._clock = clock
        self._options = options
        self._closing = parts.closing
        self._timing = parts.timing
        self._levels = parts.levels
        self._watch = parts.watch
        self._writer = parts.writer
        self._acknowledgement: tuple[float, Acknowledgement] | None = None
        reader = SliceReader(parts)
        counting = Counting(parts, reader)
        recent_writes = RecentWrites(parts.driver, clock, parts.process)
        self._arrivals = PolledArrivals(reader, clock, recent_writes, parts.driver.calls)
        store_clock, records = StoreClock(parts.watch.now_ticks), CassandraRecords(parts)
        applications, offsets = CassandraApplications(parts), CassandraOffsets(parts)
        claim_logs, messages = CassandraClaimLogs(parts), CassandraMessages(parts, reader, counting, self._arrivals)
        super().__init__(
            catalogue=CassandraCatalogue(parts, applications, self._arrivals),
            messages=messages,
            keyed_posts=CassandraKeyedPosts(parts, self._arrivals),
            names=CassandraNames(parts, self._arrivals),
            bulk=CassandraBulk(parts, reader, counting, messages),
            applications=applications,
            offsets=offsets,
            groups=CassandraGroups(parts, store_clock),
            ledger=CassandraLedger(parts, records),
            records=records,
            claim_logs=claim_logs,
            covers=CassandraCovers(parts),
            clock=store_clock,
        )
        self._garbage_collector = GarbageCollector(
            parts.driver,
            options,
            clock,
            parts.pending_deletes,
            parts.index,
            offsets.forget_offsets,
            claim_logs.remove_logs,
            parts.closing,
        )

    def ready(self, timeout: float) -> bool:
        """Waits for the connection up to ``timeout`` seconds, then checks the clock. Returns whether both are good."""
        with suppress(StoreUnavailable):
            return self._driver.ready(timeout) and (self._watch.sound() or self._driver.calls.run(self._watch.check()))
        return False

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._driver.loop.adopt(loop)

    async def ping(self) -> None:
        await in_thread(partial(self._run_in_time, self._write_and_read))

    def _run_in_time(self, work: Callable[[], T]) -> T:
        with self._parts.deadline.running():
            return work()

    def _write_and_read(self) -> None:
        # The check also fails for a wrong clock, and for a schema that is too old or too new.
        if self._closing.is_set():
            raise StoreClosed("the store is closed")
        now = self._clock.now()
        values = (
            self._parts.process,
            now,
            self._parts.tails.encode_measurements(self._timing.stored.change),
            now // TICKS_PER_MICROSECOND,
        )
        self._driver.run(_WRITE_HEARTBEAT, values, consistency=self._options.catalogue_write)
        rows = self._driver.run(_SELECT_HEARTBEAT, (self._parts.process,), consistency=self._options.catalogue_read)
        if not rows or rows[0][0] < now:
            raise StoreUnavailable("Cassandra did not return the row that was just written")
        if not self._timing.is_fresh(self._clock.boottime()):
            raise self._timing.refusal()
        problem = schema_problem(self._driver) or self._parts.clock_check.problem()
        if problem is not None:
            raise StoreUnavailable(problem)

    def close(self, timeout: float = 10.0) -> None:
        if self._closing.is_set():
            return
        until = self._clock.boottime() + timeout
        self._writer.close(timeout)
        self._closing.set()
        self._driver.calls.close(max(0.0, until - self._clock.boottime()))
        self._arrivals.close()
        self._parts.rows.close()
        self._driver.close()

    async def reap(self) -> int:
        return await self._driver.calls.run_async(self._garbage_collector.run(), long=True)

    async def acknowledgement(self) -> Acknowledgement:
        now = self._clock.boottime()
        if self._acknowledgement is None or now - self._acknowledgement[0] > MAX_ACKNOWLEDGEMENT_AGE:
            ask = partial(self._run_in_time, partial(acknowledgement_of, self._driver))
            self._acknowledgement = now, await in_thread(ask)
        return self._acknowledgement[1]

    def guarantee(self, queue: Queue) -> str:
        return self._levels.guarantee(queue)

    def read_delay(self, queue: Queue) -> float:
        return self._levels.delay(queue)

    @property
    def clock_difference(self) -> float:
        # The upper limit while the timing is unknown.
        if not self._timing.is_fresh(self._clock.boottime()):
            return MAX_CLOCK_DIFFERENCE
        return self._timing.stored.claim_margin(ticks_to_seconds(self._clock.now()))

    async def statistics(self) -> dict[str, float]:
        writer, undo_writer = self._writer, self._writer.undo_writer
        return {
            "store_reachable": float(self._driver.problem() is None),
            "store_requests_total": self._driver.requests,
            "store_batches_total": writer.batches,
            "store_messages_appended_total": writer.appended,
            "store_pending_messages": writer.pending,
            "store_late_writes_total": writer.late,
            "store_undo_writes_total": undo_writer.confirmed,
            "store_undo_writes_unknown_total": undo_writer.unknown,
            "store_undo_writes_abandoned_total": undo_writer.abandoned,
            "store_undo_writes_pending": undo_writer.pending,
            "store_skew_seconds": self._parts.clock_check.median,
            "store_skew_error_seconds": self._parts.clock_check.error,
            "store_skew_limit_seconds": self._parts.clock_check.limit,
            "store_skew_refusing": float(self._parts.clock_check.refusing),
            "store_transactions_doubted_total": self._parts.transactions.doubts,
            "store_queues_reaped_total": self._garbage_collector.reaped,
        }


def open_store(
    url: str,
    *,
    options: CassandraOptions | None = None,
    clock: SteadyClock | None = None,
    driver: Callable[..., Driver] = Driver,
) -> CassandraStore:
    """Opens the store in a keyspace.

    Returns after a few seconds even if Cassandra cannot be reached: calls then raise ``StoreUnavailable`` until it can.

    Args:
        url: ``cassandra://host1,host2/keyspace``.

    Raises:
        SettingsError: The URL or the options are invalid.
    """
    store = CassandraStore(url, options or CassandraOptions(), clock or SteadyClock(), driver=driver)
    store.ready(OPEN_TIMEOUT)
    return store
