"""What the contracts of one open store work with: its connection, its clock, and the parts between them and the tables.

Every contract of the store is a class on top of :class:`ConnectedStore`, which makes the parts in the order in which
they need each other.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from uuid import uuid4

from queuey.messages import Queue
from queuey.storage.cassandra.bucket_index import BucketIndex
from queuey.storage.cassandra.catalogue.garbage_collection import PendingDeletes
from queuey.storage.cassandra.catalogue.queue_cache import QueueCache
from queuey.storage.cassandra.catalogue.queue_index import QueueIndex
from queuey.storage.cassandra.clocks.clock import Clock, IdGenerator, Stamps
from queuey.storage.cassandra.clocks.clock_check import ClockCheck
from queuey.storage.cassandra.clocks.clock_watch import ClockWatch
from queuey.storage.cassandra.clocks.timing_in_force import Tails, TimingInForce
from queuey.storage.cassandra.consistency_levels import ConsistencyLevels
from queuey.storage.cassandra.driver import Driver
from queuey.storage.cassandra.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.options import CassandraOptions, parse_url
from queuey.storage.cassandra.read.reading import EmptyRanges
from queuey.storage.cassandra.waiting.arrivals import PolledArrivals, ReadableStore
from queuey.storage.cassandra.waiting.recent_writes import RecentWrites
from queuey.storage.cassandra.write.reserving_writer import ReservingWriter
from queuey.storage.cassandra.write.row_changes import StoreParts
from queuey.storage.deadlines import Deadline


class ConnectedStore(ReadableStore):
    """A store's connection and its parts.

    Args:
        url: ``cassandra://host1,host2/keyspace``.
        options: How the store works.
        clock: Its clock.
        driver: Makes the way to Cassandra.
    """

    def __init__(
        self, url: str, options: CassandraOptions, clock: Clock, *, driver: Callable[..., Driver] = Driver
    ) -> None:
        self._options = options
        self._clock = clock
        self._closing = threading.Event()
        """Set when the store is being closed: waiting ends, and nothing is answered from memory."""
        self._process = uuid4().hex
        self._deadline = Deadline(options.deadline, clock.boottime)
        self._timing = TimingInForce(options, clock)
        self._driver = driver(parse_url(url), options, verify=self._problem, deadline=self._deadline)
        self._transactions = LightweightTransactions(self._driver, options, clock.boottime)
        self._rows = QueueCache(self._driver, options, self._timing, clock, self._transactions)
        self._index = QueueIndex(self._driver, options)
        self._pending_deletes = PendingDeletes(self._driver, options)
        self._bucket_index = BucketIndex(self._driver, clock, options.cached_queues, self._timing)
        self._empty_ranges = EmptyRanges(options.cached_queues)
        self._generator = IdGenerator(clock)
        self._stamps = Stamps(clock, lambda: self._timing.assumed.clock_difference)
        self._levels = ConsistencyLevels(options, self._driver.replication, self._timing)
        self._clock_check = ClockCheck(clock, self._timing.clock_difference)
        self._clock_check.jumped = self._forget
        self._tails = Tails(clock, lambda: self._clock_check.offset_bound)
        self._watch = ClockWatch(
            self._driver, clock, self._clock_check, options.heartbeat, timing=self._timing, beat=self._beat
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
        self._known_applications: dict[str, float] = {}
        """When it was last certain that an application exists (boot time). Names that do not exist are not here."""
        self._noted_groups: set[tuple[int, str]] = set()
        """Groups of queues (uid) that are known to be listed."""
        self._parts = StoreParts(self._driver, options, clock, self._levels, self._writer, self._transactions)
        record = RecentWrites(self._driver, clock, self._process)
        self._arrivals = PolledArrivals(self, clock, record, self._driver.calls)

    @abstractmethod
    def _problem(self, driver: Driver) -> str | None:
        """Returns why the keyspace cannot be used; if it can, prepares what is sent often."""

    def _forget(self) -> None:
        self._rows.forget_all()
        self._bucket_index.forget_all()

    def _beat(self) -> None:
        self._timing.refresh(self._driver)
        if self._options.follow:
            self._tails.tell(self._driver, self._process, self._options.catalogue_write, self._timing.stored.change)

    def read_delay(self, queue: Queue) -> float:
        return self._levels.delay(queue)
