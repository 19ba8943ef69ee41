"""A cluster of one node within the process, which answers at once: the Cassandra on which the contract suite runs.

It is the :class:`.cluster.Cluster` of the histories without anything that goes wrong, in the time of its stores. Its
requests come from real threads, one at a time, and each driver has one thread that brings the answers, as with the real
driver.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from msgspec import structs

from queuey.errors import StoreClosed, StoreUnavailable
from queuey.messages import Queue, Slice
from queuey.storage.calls import Deadline
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.admin.migrations import Running, migrate
from queuey.storage.cassandra.clocks.clock import Clock, boottime_ns
from queuey.storage.cassandra.driver import Done, Driver, Encoded, Host, Request, Rows, Statement
from queuey.storage.cassandra.driver.store_loop import Calls, StoreLoop
from queuey.storage.cassandra.message_codec import INSERT
from queuey.storage.cassandra.options import CassandraOptions, DataCentreTarget
from tests.servers.keyspaces import HandClock, HandedStore
from tests.sim.cassandra import cql
from tests.sim.cassandra.cluster import Cluster, Weather
from tests.sim.world import Work, World

T = TypeVar("T")
_CREATED = re.compile(r'CREATE (KEYSPACE|TABLE) IF NOT EXISTS "?(\w+)')


class SkippingTime:
    """The time of a node and its stores: the real one, ahead by what was skipped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skipped = 0

    def boottime(self) -> int:
        """Returns nanoseconds since boot."""
        with self._lock:
            return boottime_ns() + self._skipped

    def wall(self) -> int:
        """Returns nanoseconds since 1970."""
        with self._lock:
            return time.time_ns() + self._skipped

    def skip_to(self, wall: int, safe: Callable[[], bool]) -> None:
        """Goes on to a time (nanoseconds since 1970) at once, if that is safe; nobody reads the time meanwhile."""
        with self._lock:
            ahead = wall - time.time_ns() - self._skipped
            if ahead > 0 and safe():
                self._skipped += ahead


class PresentWorld(World):
    """A world in which everything happens at once.

    Args:
        time: Its time.
    """

    def __init__(self, time: SkippingTime) -> None:
        self._time = time
        super().__init__(0)

    @property
    def now(self) -> float:
        """See the base class."""
        return self._time.wall() / 1e9

    @now.setter
    def now(self, _: float) -> None: ...

    def at(self, seconds: float, work: Work) -> None:
        """See the base class."""
        work()

    def some(self, mean: float) -> float:
        """See the base class."""
        return 0.0


class InProcessCluster(Cluster):
    """One node, for all stores of a test.

    Attributes:
        time: Its time and that of its stores.
        stores: Those that were opened.
    """

    def __init__(self) -> None:
        self.time = SkippingTime()
        self.stores: list[CassandraStore] = []
        super().__init__(PresentWorld(self.time), Weather(slow=0.0), nodes=1)
        self._stored_at = 0
        self.nodes[0].offset = 0.0
        self.committed = self.nodes[0].data  # So that conditions are about what was written without any as well.
        self._lock = threading.Lock()
        self._insert("INSERT INTO system_views.settings (name, value) VALUES (?, ?)", "commitlog_sync", "batch")

    def ask(self, request: Request | Encoded, end: Callable[[Rows | None, StoreUnavailable | None], None]) -> None:
        """See the base class."""
        with self._lock:
            if request.statement in INSERT:
                self._stored_at = self.time.wall()
            if request.statement.prepared:
                super().ask(request, end)
            else:
                self._change_schema(request.statement.cql)
                end([], None)

    def let_pass(self, delay: float, quiet: float) -> None:
        """Lets a read delay of what was stored last be over, unless a write is on its way.

        Args:
            delay: Seconds.
            quiet: Seconds in which nothing must have been stored.
        """
        if self.time.wall() >= self._stored_at + quiet * 1e9:
            self.time.skip_to(self._stored_at + round(delay * 1e9), self._nothing_is_written)

    def leap(self, seconds: float) -> bool:
        """Lets time pass, unless a write is on its way; returns whether it has."""
        target = self.time.wall() + round(seconds * 1e9)
        self.time.skip_to(target, self._nothing_is_written)
        return self.time.wall() >= target

    def _nothing_is_written(self) -> bool:
        # Statistics would read the time, which stands still meanwhile.
        return not any(store._writer.pending for store in self.stores)

    def _read(
        self, request: Request | Encoded, values: Sequence[Any], needed: int, end: Callable[[Rows], None]
    ) -> None:
        self._ask_one(self.nodes[0], request, lambda rows, _error: end(rows or []), values)

    def _change_schema(self, text: str) -> None:
        """Records what was made; the columns of all tables are known from the files that make them."""
        if (made := _CREATED.match(text)) is None:
            assert text.startswith("ALTER TABLE"), text
        elif made[1] == "KEYSPACE":
            replication = dict(re.findall(r"'(\w+)': '(\w+)'", text))
            self._insert(
                "INSERT INTO system_schema.keyspaces (keyspace_name, replication) VALUES (?, ?)", made[2], replication
            )
        else:
            assert made[2] in cql.TABLES
            self._insert(
                "INSERT INTO system_schema.tables (keyspace_name, table_name) VALUES (?, ?)", KEYSPACE, made[2]
            )

    def _insert(self, text: str, *values: object) -> None:
        self._write(self._changes([(cql.command(text), values)]), 1, lambda: None)


class InProcessDriver(Driver):
    """A driver to an :class:`InProcessCluster`.

    Args:
        target: The keyspace; all have the same tables and rows.
        options: Its ``timeout`` counts where a call has less time left.
        verify: See the base class.
        keyspace: See the base class.
        deadline: See the base class.
        cluster: Where requests go.
    """

    def __init__(
        self,
        target: DataCentreTarget,
        options: CassandraOptions,
        *,
        verify: Callable[[Driver], str | None] = lambda _: None,
        keyspace: bool = True,
        deadline: Deadline | None = None,
        cluster: InProcessCluster,
    ) -> None:
        self.target = target
        self.requests = 0
        self._deadline = deadline or Deadline(float("inf"))
        self._options = options
        self._nodes = cluster
        self._prepared_statements: set[Statement] = set()
        self._ended = False
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.loop = StoreLoop()
        self.calls = Calls(self.loop, self._deadline)
        self._thread = threading.Thread(target=self._bring, name="simulated-driver", daemon=True)
        self._thread.start()
        self._problem_found = verify(self) if keyspace else None

    def _bring(self) -> None:
        while (answer := self._answers.get()) is not None:
            answer()

    def ready(self, timeout: float) -> bool:
        """See the base class."""
        return self._problem_found is None

    def problem(self) -> str | None:
        """See the base class."""
        return "the store is closed" if self._ended else self._problem_found

    def send(self, request: Request | Encoded, done: Done) -> None:
        """See the base class."""
        if self._ended:
            done(None, StoreClosed("the store is closed"))
            return
        try:
            self._prepare_when_used(request)
            self._deadline.left(self._options.timeout)
        except StoreUnavailable as error:
            done(None, error)
            return
        if not request.statement.reads:
            self._deadline.sent()
        self.requests += 1
        if isinstance(request, Encoded) or request.further or request.statement.frequent:
            self._nodes.ask(request, lambda rows, error: self.loop.soon(done, rows, error))
        else:
            self._nodes.ask(request, lambda rows, error: self._answers.put(partial(done, rows, error)))

    def _prepare_when_used(self, request: Request | Encoded) -> None:
        """Prepares statements; the thread that brings the answers would wait for one of them in vain."""
        if request.statement not in self._prepared_statements:
            if threading.current_thread() is self._thread:
                raise StoreUnavailable("a statement that was not prepared cannot be asked from the driver's own thread")
            self._prepared_statements.add(request.statement)

    def prepare(self, statements: Iterable[Statement]) -> None:
        """See the base class."""
        self._prepared_statements.update(statements)

    def hosts(self) -> list[Host]:
        """See the base class."""
        return [Host(node.address, "dc1", up=True) for node in self._nodes.nodes]

    def await_pools(self, timeout: float) -> None:
        """See the base class."""

    def agrees(self) -> bool:
        """See the base class."""
        return True

    def replication(self) -> Mapping[str, int]:
        """See the base class."""
        return {"dc1": 1}

    def close(self) -> None:
        """See the base class. What was answered is told first."""
        if not self._ended:
            self._ended = True
            self._answers.put(None)
            self.loop.close()
            if threading.current_thread() is not self._thread:
                self._thread.join(10.0)


class InProcessStore(CassandraStore):
    """A store whose reads do not wait for the read delay of their consistency level: it passes before they begin.

    A queue's own delay does not: what is to be seen only later is not seen before.

    Args:
        cluster: Where its data lies.
        options: How it works.
        hand: A clock that is moved by hand.
    """

    def __init__(
        self, cluster: InProcessCluster, options: CassandraOptions, hand: Callable[[], int] | None = None
    ) -> None:
        times = cluster.time.boottime, cluster.time.wall
        clock = Clock(*times) if hand is None else HandClock(hand, *times)
        self._nodes = cluster
        self._by_hand = hand is not None
        super().__init__(TARGET.url, options, clock, driver=partial(InProcessDriver, cluster=cluster))
        messages: Any = self.messages
        catalogue: Any = self.catalogue
        messages.read = self._passing_before(messages.read)
        messages.inspect = self._passing_before(messages.inspect)
        messages._reader.poll = self._passing_before(messages._reader.poll)
        wait = catalogue._wait_for_others
        catalogue._wait_for_others = lambda: self._leap(wait)
        cluster.stores.append(self)

    async def _leap(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Lets the age pass that rows may have."""
        if not self._nodes.leap(self._timing.assumed.row_age):
            await wait()

    def _passing_before(self, method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """Returns a method before each call of which a read delay passes."""

        async def call(queue: Queue, *slices: Sequence[Slice], **named: bool) -> T:
            self._let_pass(queue, *chain.from_iterable(slices))
            return await method(queue, *slices, **named)

        return call

    def _let_pass(self, queue: Queue, *parts: Slice) -> None:
        ahead = any(part.ahead for part in parts)
        if queue.read_delay is None or ahead:
            delay = self.read_delay(structs.replace(queue, read_delay=None))
            if delay <= LONGEST_SKIP:
                self._nodes.let_pass(delay, QUIET if ahead else 0.0)

    @property
    def clock_difference(self) -> float:
        """See the base class."""
        return HandedStore.clock_difference if self._by_hand else super().clock_difference


LONGEST_SKIP = 5.0
"""Seconds of a read delay that passes at once; no test waits for a longer one, and claims live for less than some."""
QUIET = 1.0
"""Seconds after the last message until a claim waits for nothing but the read delay: what it delivers before that is
delivered before the delay is over, as on a real node."""
KEYSPACE = "simulated"
TARGET = DataCentreTarget(("127.0.0.1",), KEYSPACE)


def make() -> InProcessCluster:
    """Returns a cluster with a keyspace, made as ``queuey migrate`` makes it."""
    cluster = InProcessCluster()
    migrate(
        TARGET, CassandraOptions(), replication="1", running=Running(driver=partial(InProcessDriver, cluster=cluster))
    )
    return cluster
