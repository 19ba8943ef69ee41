"""The production store: partitioned Cassandra rows, read by time, safe under eventual consistency.

What promises what:

* ids, write stamps: :mod:`.clocks.id_generator`, on the clock of :mod:`.clocks.clock`, which
  :mod:`.clocks.clock_watch` compares with the cluster's;
* writes that are acknowledged within W of their ids or taken back: :mod:`.write.writer`, :mod:`.write.undo_writes`;
* reads below a horizon from all buckets that can hold a message: :mod:`.bucketing`, :mod:`.bucket_index`,
  :mod:`.read.reading`;
* whole ranges in and out: :mod:`.store.bulk`, :mod:`.write.bulk_load`; records of work that is done again:
  :mod:`.catalogue.ledger`; documents of applications: :mod:`.catalogue.records`;
* queues, whose rows no process uses longer than C: :mod:`.catalogue.queues`, :mod:`.catalogue.queue_cache`,
  :mod:`.lightweight_transactions`;
* claim logs: :mod:`.store.claim_logs`;
* posts with idempotency keys: :mod:`.store.keyed_posts`, by the rules of :mod:`.write.post_keys`; named messages:
  :mod:`.store.names`, by the rules of :mod:`.write.names`, shown by :mod:`.store.named_values`;
* waiting readers: :mod:`.waiting.arrivals`, by what :mod:`.waiting.recent_writes` records of all processes;
* what purges and deletes leave: :mod:`.catalogue.pending_deletes`, :mod:`.admin.garbage_collection`;
* the tables: ``cql/``, :mod:`.admin.migrations`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from queuey.errors import Outcome, StoreClosed, StoreUnavailable
from queuey.ids import TICKS_PER_SECOND, ticks_to_seconds
from queuey.messages import Acknowledgement, Queue
from queuey.storage import Store
from queuey.storage.cassandra import bucket_index, message_codec
from queuey.storage.cassandra.admin.garbage_collection import GarbageCollector
from queuey.storage.cassandra.admin.migrations import schema_problem
from queuey.storage.cassandra.admin.node_settings import acknowledgement_of
from queuey.storage.cassandra.bucket_index import BucketIndex
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.catalogue.applications import CassandraApplications
from queuey.storage.cassandra.catalogue.ledger import CassandraLedger
from queuey.storage.cassandra.catalogue.offsets import CassandraOffsets, OffsetTable
from queuey.storage.cassandra.catalogue.pending_deletes import PendingDeletes
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache
from queuey.storage.cassandra.catalogue.queue_index import QueueIndex
from queuey.storage.cassandra.catalogue.queues import CassandraCatalogue
from queuey.storage.cassandra.catalogue.records import CassandraRecords
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.clock_check import ClockCheck
from queuey.storage.cassandra.clocks.clock_watch import ClockWatch
from queuey.storage.cassandra.clocks.id_generator import TICKS_PER_MICROSECOND, IdGenerator, Stamps
from queuey.storage.cassandra.clocks.light_checks import NOW
from queuey.storage.cassandra.clocks.tails import WRITE as TELL_TAILS
from queuey.storage.cassandra.clocks.tails import Tails
from queuey.storage.cassandra.clocks.timing_in_force import READ as READ_TIMING
from queuey.storage.cassandra.clocks.timing_in_force import TimingInForce
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Driver, Statement
from queuey.storage.cassandra.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.options import CassandraOptions, Level, parse_url
from queuey.storage.cassandra.read.empty_ranges import EmptyRanges
from queuey.storage.cassandra.store import claim_logs, keyed_posts, names
from queuey.storage.cassandra.store.bulk import CassandraBulk
from queuey.storage.cassandra.store.claim_logs import CassandraClaimLogs, ClaimLogRemoval
from queuey.storage.cassandra.store.covers import CassandraCovers
from queuey.storage.cassandra.store.keyed_posts import CassandraKeyedPosts
from queuey.storage.cassandra.store.names import CassandraNames
from queuey.storage.cassandra.waiting import recent_writes
from queuey.storage.cassandra.waiting.arrivals import PolledArrivals
from queuey.storage.cassandra.waiting.recent_writes import RecentWrites
from queuey.storage.cassandra.write.reserving_writer import ReservingWriter
from queuey.storage.cassandra.write.row_changes import StoreParts
from queuey.storage.deadlines import Deadline, Done, bounded

__all__ = ["CassandraOptions", "CassandraStore", "Level", "open_store"]

ASKED_EVERY = 60.0
"""Max age of what is known of the nodes' commit logs, in seconds."""
LARGEST = 60.0
"""Max S, in seconds."""
START = 3.0
"""Timeout of opening, in seconds, after which it goes on without Cassandra."""

PREPARED = (
    *message_codec.INSERT,
    *message_codec.DELETE,
    *message_codec.UP,
    *message_codec.DOWN,
    *message_codec.IDS_UP,
    *message_codec.IDS_DOWN,
    queue_cache.FIND,
    READ_TIMING,
    TELL_TAILS,
    *bucket_index.PREPARED,
    *recent_writes.PREPARED,
    NOW,
    *claim_logs.PREPARED,
    *keyed_posts.PREPARED,
    *names.PREPARED,
)
"""Statements that the loop's thread sends often, prepared ahead."""

_BEAT = Statement("INSERT INTO heartbeats (process, seen_at, tails) VALUES (?, ?, ?) USING TIMESTAMP ?")
"""Several checks at once share a row: of their writes the one with the latest time stays, whichever comes last."""
_BEATS = Statement("SELECT seen_at FROM heartbeats WHERE process = ?")


@bounded
class CassandraStore(
    CassandraCatalogue,
    CassandraBulk,
    CassandraKeyedPosts,
    CassandraNames,
    CassandraApplications,
    CassandraOffsets,
    CassandraLedger,
    CassandraRecords,
    CassandraClaimLogs,
    CassandraCovers,
    Store,
):
    name = "cassandra"

    def __init__(
        self, url: str, options: CassandraOptions, clock: Clock, *, driver: Callable[..., Driver] = Driver
    ) -> None:
        self._options = options
        self._clock = clock
        self._closing = threading.Event()
        self._process = uuid4().hex
        self._deadline = Deadline(options.deadline, clock.boottime)
        self._timing = TimingInForce(options, clock)
        self._driver = driver(parse_url(url), options, verify=self._problem, deadline=self._deadline)
        self._transactions = LightweightTransactions(self._driver, options, clock.boottime)
        self._rows = QueueCache(self._driver, options, self._timing, clock, self._transactions)
        self._index = QueueIndex(self._driver, options)
        self._pending_deletes = PendingDeletes(self._driver, options)
        self._offsets = OffsetTable(self._driver, options, clock, self._transactions)
        self._known = {}
        self._bucket_index = BucketIndex(self._driver, clock, options.cached_queues, self._timing)
        self._empty_ranges = EmptyRanges(options.cached_queues)
        self._generator = IdGenerator(clock)
        self._stamps = Stamps(clock, lambda: self._timing.assumed.clock_difference)
        self._levels = ConsistencyLevels(options, self._driver.replication, self._timing)
        self._clock_check = ClockCheck(clock, lambda: self._timing.kept.clock_difference)
        self._clock_check.jumped = self._forget
        self._tails = Tails(clock, lambda: self._clock_check.offset_bound)
        self._watch = ClockWatch(
            self._driver,
            clock,
            self._clock_check,
            options.heartbeat,
            timing=self._timing,
            beat=self._beat,
        )
        self._writer = ReservingWriter(
            self._driver,
            options,
            clock,
            generator=self._generator,
            queue_rows=self._rows,
            bucket_index=self._bucket_index,
            watch=self._watch,
            levels=self._levels,
            timing=self._timing,
            tails=self._tails,
        )
        self._parts = StoreParts(self._driver, options, clock, self._levels, self._writer, self._transactions)
        record = RecentWrites(self._driver, clock, self._process)
        self._arrivals = PolledArrivals(self, clock, record, self._driver.calls)
        self._acknowledgement: tuple[float, Acknowledgement] | None = None
        self._garbage_collector = GarbageCollector(
            self._driver,
            options,
            clock,
            self._pending_deletes,
            self._offsets,
            ClaimLogRemoval(self._driver, options, self._transactions),
            self._closing,
        )

    def ready(self, timeout: float) -> bool:
        with suppress(StoreUnavailable):
            return self._driver.ready(timeout) and (self._watch.sound() or self._driver.calls.run(self._watch.check()))
        return False

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._driver.loop.adopt(loop)

    def ended(self, begin: Callable[[Done], Callable[[], Outcome]]) -> Any:  # noqa: ANN401 - of the call
        return self._driver.calls.wait(begin, "Cassandra did not finish the write in time")

    def ping(self) -> None:
        # Also red: a clock that is off, a schema that is too old or too new.
        if self._closing.is_set():
            raise StoreClosed("the store is closed")
        at = self._clock.now()
        values = self._process, at, self._tails.text(self._timing.stored.change), at // TICKS_PER_MICROSECOND
        self._driver.run(_BEAT, values, consistency=self._options.catalogue_write)
        found = self._driver.run(_BEATS, (self._process,), consistency=self._options.catalogue_read)
        if not found or found[0][0] < at:
            raise StoreUnavailable("Cassandra did not give back what was written")
        if not self._timing.fresh(self._clock.boottime()):
            raise self._timing.refusal()
        problem = schema_problem(self._driver) or self._clock_check.complaint()
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
        self._rows.close()
        self._driver.close()

    def reap(self) -> int:
        """Removes what purged and deleted queues left, as far as it is old enough; returns from how many."""
        return self._driver.calls.run_long(self._garbage_collector.run())

    def acknowledgement(self) -> Acknowledgement:
        now = self._clock.boottime()
        if self._acknowledgement is None or now - self._acknowledgement[0] > ASKED_EVERY:
            self._acknowledgement = now, acknowledgement_of(self._driver)
        return self._acknowledgement[1]

    def guarantee(self, queue: Queue) -> str:
        return self._levels.guarantee(queue)

    def read_delay(self, queue: Queue) -> float:
        return self._levels.delay(queue)

    def ids_ahead(self) -> float:
        return max(0, self._generator.next_time() - self._clock.now()) / TICKS_PER_SECOND

    @property
    def clock_difference(self) -> float:
        # While it is not known, more than it may ever be.
        if not self._timing.fresh(self._clock.boottime()):
            return LARGEST
        return self._timing.stored.claim_margin(ticks_to_seconds(self._clock.now()))

    def _problem(self, driver: Driver) -> str | None:
        """Returns why the keyspace cannot be used; if it can, prepares what is sent often."""
        problem = schema_problem(driver) or driver.calls.run(self._timing.renew(driver))
        if problem is None:
            driver.prepare(PREPARED)
        return problem

    def _forget(self) -> None:
        self._rows.forget_all()
        self._bucket_index.forget_all()

    def _beat(self) -> None:
        self._timing.refresh(self._driver)
        if self._options.follow:
            self._tails.tell(self._driver, self._process, self._options.catalogue_write, self._timing.stored.change)

    def statistics(self) -> dict[str, float]:
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
            "store_skew_seconds": self._clock_check.median,
            "store_skew_error_seconds": self._clock_check.error,
            "store_skew_limit_seconds": self._clock_check.limit,
            "store_skew_refusing": float(self._clock_check.refusing),
            "store_transactions_doubted_total": self._transactions.doubts,
            "store_queues_reaped_total": self._garbage_collector.reaped,
        }


def open_store(
    url: str,
    *,
    options: CassandraOptions | None = None,
    clock: Clock | None = None,
    driver: Callable[..., Driver] = Driver,
) -> CassandraStore:
    """Opens the store in a keyspace.

    Returns although Cassandra is not there, after a few seconds: calls then raise ``StoreUnavailable`` until it is.

    Args:
        url: ``cassandra://host1,host2/keyspace``.
        options: How it works.
        clock: For tests.
        driver: For tests: makes the way to Cassandra, called as :class:`Driver`.

    Raises:
        SettingsError: The URL or the options cannot be used.
    """
    store = CassandraStore(url, options or CassandraOptions(), clock or Clock(), driver=driver)
    store.ready(START)
    return store
