"""The parts of one open store: its connection, its clock, and what the contracts share above the tables.

:class:`StoreParts` makes the parts in the order of their dependencies. Each contract of the store is an object made of
some of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from uuid import uuid4

from queuey.storage.cassandra.catalogue.garbage_collection import PendingDeletes
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache
from queuey.storage.cassandra.catalogue.queue_index import QueueIndex
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import CassandraOptions, parse_url
from queuey.storage.cassandra.read.bucket_index import BucketIndex
from queuey.storage.cassandra.read.slice_reads import EmptyRanges
from queuey.storage.cassandra.statements.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.statements.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.time.clock import IdGenerator, Stamps, SteadyClock
from queuey.storage.cassandra.time.clock_check import ClockCheck
from queuey.storage.cassandra.time.clock_watch import ClockWatch
from queuey.storage.cassandra.time.timing_in_force import Tails, TimingInForce
from queuey.storage.cassandra.write.reserving_writer import ReservingWriter
from queuey.storage.deadlines import Deadline


class StoreParts:
    """A store's connection and its parts.

    Args:
        problem: Returns why the schema of the keyspace cannot be used, or None if it can.
        prepared: Statements that are prepared when the store connects.
    """

    def __init__(
        self,
        url: str,
        options: CassandraOptions,
        clock: SteadyClock,
        problem: Callable[[Driver], str | None],
        prepared: Iterable[Statement],
        *,
        driver: Callable[..., Driver] = Driver,
    ) -> None:
        self.options = options
        self.clock = clock
        self.closing = threading.Event()
        """Set when the store is being closed: waits end, and no answer comes from memory."""
        self.process = uuid4().hex
        self.deadline = Deadline(options.deadline, clock.boottime)
        self.timing = TimingInForce(options, clock)
        self._schema_problem = problem
        self._prepared = tuple(prepared)
        self.driver = driver(parse_url(url), options, verify=self._verify_keyspace, deadline=self.deadline)
        self.transactions = LightweightTransactions(self.driver, options, clock.boottime)
        self.rows = QueueCache(self.driver, options, self.timing, clock, self.transactions)
        self.index = QueueIndex(self.driver, options)
        self.pending_deletes = PendingDeletes(self.driver, options)
        self.bucket_index = BucketIndex(self.driver, clock, options.cached_queues, self.timing)
        self.empty_ranges = EmptyRanges(options.cached_queues)
        self.generator = IdGenerator(clock)
        self.stamps = Stamps(clock, partial(attrgetter("stored.assumed.clock_difference"), self.timing))
        self.levels = ConsistencyLevels(options, self.driver.replication, self.timing)
        self.clock_check = ClockCheck(clock, partial(attrgetter("stored.kept.clock_difference"), self.timing))
        self.clock_check.on_jump = self._forget_cached
        self.tails = Tails(clock, lambda: self.clock_check.offset_bound)
        self.watch = ClockWatch(
            self.driver, clock, self.clock_check, options.heartbeat, timing=self.timing, beat=self._refresh_and_publish
        )
        self.writer = ReservingWriter(
            self.driver,
            options,
            clock,
            generator=self.generator,
            queue_rows=self.rows,
            bucket_index=self.bucket_index,
            watch=self.watch,
            levels=self.levels,
            timing=self.timing,
            tails=self.tails,
        )

    def _verify_keyspace(self, driver: Driver) -> str | None:
        problem = self._schema_problem(driver) or driver.calls.run(self.timing.renew(driver))
        if problem is None:
            driver.prepare(self._prepared)
        return problem

    def _forget_cached(self) -> None:
        self.rows.forget_all()
        self.bucket_index.forget_all()

    def _refresh_and_publish(self) -> None:
        self.timing.refresh(self.driver)
        if self.options.follow:
            self.tails.publish(self.driver, self.process, self.options.catalogue_write, self.timing.stored.change)
