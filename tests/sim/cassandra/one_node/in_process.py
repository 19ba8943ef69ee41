"""A cluster of one node within the process, which answers at once: the Cassandra on which the contract suite runs.

It is the :class:`.cluster.Cluster` of the histories without faults, in the time of its stores. Its requests come from
real threads, one at a time. Each driver has one thread that brings the answers, as the real driver has.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from msgspec import structs

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.model.messages import Queue, Slice
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.admin.migrations import MigrationEnvironment, migrate
from queuey.storage.cassandra.cluster import Done, Driver, Encoded, Host, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions, DataCentreTarget
from queuey.storage.cassandra.cluster.store_loop import Calls, StoreLoop
from queuey.storage.cassandra.statements.message_codec import INSERT
from queuey.storage.cassandra.time.clock import SteadyClock, boottime_ns
from queuey.storage.deadlines import Deadline
from tests.servers.keyspaces import HandClock, HandedStore
from tests.sim.cassandra import cql
from tests.sim.cassandra.cluster import Answer, Cluster, NetworkFaults
from tests.sim.world import Work, World

T = TypeVar("T")
_CREATED = re.compile(r'CREATE (KEYSPACE|TABLE) IF NOT EXISTS "?(\w+)')


class SkippingTime:
    """The time of a node and its stores: the real time plus the skipped time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._skipped = 0

    def boottime(self) -> int:
        with self._lock:
            return boottime_ns() + self._skipped

    def wall(self) -> int:
        with self._lock:
            return time.time_ns() + self._skipped

    def skip_to(self, wall: int, safe: Callable[[], bool]) -> None:
        """Skips to a time (nanoseconds since 1970) if that is safe. The time cannot be read meanwhile."""
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
        return self._time.wall() / 1e9

    @now.setter
    def now(self, _: float) -> None: ...

    def after(self, seconds: float, work: Work) -> None:
        work()

    def random_time(self, mean: float) -> float:
        return 0.0


class InProcessCluster(Cluster):
    """One node, shared by all stores of a test.

    Attributes:
        time: The time of the node and its stores.
        stores: The opened stores.
    """

    def __init__(self) -> None:
        self.time = SkippingTime()
        self.stores: list[CassandraStore] = []
        super().__init__(PresentWorld(self.time), NetworkFaults(slow=0.0), nodes=1)
        self._stored_at = 0
        self.nodes[0].offset = 0.0
        self.committed = self.nodes[0].data  # conditions also see unconditional writes
        self._lock = threading.Lock()
        self._insert("INSERT INTO system_views.settings (name, value) VALUES (?, ?)", "commitlog_sync", "batch")

    def ask(self, request: StatementRequest | Encoded, end: Done) -> None:
        """Carries out a request at once. Unprepared statements can only change the schema."""
        with self._lock:
            if request.statement in INSERT:
                self._stored_at = self.time.wall()
            if request.statement.prepared:
                super().ask(request, end)
            else:
                self._change_schema(request.statement.cql)
                end([], None)

    def let_pass(self, delay: float, quiet: float) -> None:
        """Skips a read delay after the last stored message, unless a write is running.

        Args:
            delay: Seconds.
            quiet: Seconds in which nothing must have been stored.
        """
        if self.time.wall() >= self._stored_at + quiet * 1e9:
            self.time.skip_to(self._stored_at + round(delay * 1e9), self._nothing_is_written)

    def leap(self, seconds: float) -> bool:
        """Skips time, unless a write is running. Returns whether the time has passed."""
        target = self.time.wall() + round(seconds * 1e9)
        self.time.skip_to(target, self._nothing_is_written)
        return self.time.wall() >= target

    def _nothing_is_written(self) -> bool:
        # Do not call statistics here: they read the time, which is locked.
        return not any(store._writer.pending for store in self.stores)

    def _read(self, request: StatementRequest | Encoded, values: Sequence[Any], needed: int, end: Answer) -> None:
        self._ask_one(self.nodes[0], request, lambda rows, _error: end(rows or []), values)

    def _change_schema(self, text: str) -> None:
        """Records a created keyspace or table. The columns of all tables come from the schema files."""
        if (match := _CREATED.match(text)) is None:
            assert text.startswith("ALTER TABLE"), text
        elif match[1] == "KEYSPACE":
            replication = dict(re.findall(r"'(\w+)': '(\w+)'", text))
            self._insert(
                "INSERT INTO system_schema.keyspaces (keyspace_name, replication) VALUES (?, ?)", match[2], replication
            )
        else:
            assert match[2] in cql.TABLES
            self._insert(
                "INSERT INTO system_schema.tables (keyspace_name, table_name) VALUES (?, ?)", KEYSPACE, match[2]
            )

    def _insert(self, text: str, *values: object) -> None:
        self._write(self._changes([(cql.command(text), values)]), 1, lambda: None)


class InProcessDriver(Driver):
    """A driver to an :class:`InProcessCluster`.

    Args:
        target: The keyspace. All keyspaces have the same tables and rows.
        options: Its ``timeout`` is an upper bound of a call's time.
        verify: See the base class.
        keyspace: See the base class.
        deadline: See the base class.
        cluster: The cluster to send to.
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
        self._ended = False
        self.loop = StoreLoop()
        self.calls = Calls(self.loop, self._deadline)
        self._problem_found = verify(self) if keyspace else None

    def ready(self, timeout: float) -> bool:
        return self._problem_found is None

    def problem(self) -> str | None:
        return "the store is closed" if self._ended else self._problem_found

    def send(self, request: StatementRequest | Encoded, done: Done) -> None:
        """Sends a request at once. Fails if the driver is closed or the deadline is used up."""
        if self._ended:
            done(None, StoreClosed("the store is closed"))
            return
        try:
            self._deadline.time_left(self._options.timeout)
        except StoreUnavailable as error:
            done(None, error)
            return
        if not request.statement.reads:
            self._deadline.mark_sent()
        self.requests += 1
        self._nodes.ask(request, lambda rows, error: self.loop.soon(done, rows, error))

    def prepare(self, statements: Iterable[Statement]) -> None:
        """See the base class. All statements are prepared."""

    def hosts(self) -> list[Host]:
        return [Host(node.address, "dc1", up=True) for node in self._nodes.nodes]

    def await_pools(self, timeout: float) -> None:
        pass

    def await_schema_agreement(self) -> bool:
        return True

    def replication(self) -> Mapping[str, int]:
        return {"dc1": 1}

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self.loop.close()


class InProcessStore(CassandraStore):
    """A store whose reads do not wait for the read delay of their consistency level: it is skipped before they begin.

    A queue's own delay is not skipped: messages are not shown before it. Reads ahead ignore it.

    Args:
        cluster: The cluster with its data.
        options: The store's options.
        hand: A clock that tests move by hand.
    """

    def __init__(
        self, cluster: InProcessCluster, options: CassandraOptions, hand: Callable[[], int] | None = None
    ) -> None:
        times = cluster.time.boottime, cluster.time.wall
        clock = SteadyClock(*times) if hand is None else HandClock(hand, *times)
        self._nodes = cluster
        self._by_hand = hand is not None
        super().__init__(TARGET.url, options, clock, driver=partial(InProcessDriver, cluster=cluster))
        messages: Any = self.messages
        catalogue: Any = self.catalogue
        messages.read = self._skip_delay_before(messages.read)
        messages.inspect = self._skip_delay_before(messages.inspect)
        messages._reader.read = self._skip_delay_before(messages._reader.read)
        wait = catalogue._wait_for_others
        catalogue._wait_for_others = lambda: self._leap(wait)
        cluster.stores.append(self)

    async def _leap(self, wait: Callable[[], Awaitable[None]]) -> None:
        if not self._nodes.leap(self._timing.stored.assumed.row_age):
            await wait()

    def _skip_delay_before(self, method: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        async def call(queue: Queue, *slices: Sequence[Slice], **named: bool) -> T:
            self._skip_delay(queue, *chain.from_iterable(slices))
            return await method(queue, *slices, **named)

        return call

    def _skip_delay(self, queue: Queue, *parts: Slice) -> None:
        """Skips the level's read delay, unless the queue has its own or the delay is longer than LONGEST_SKIP.

        For reads ahead, it is skipped even if the queue has its own, but not before ``QUIET`` seconds after the last
        message.
        """
        ahead = any(part.ahead for part in parts)
        if queue.read_delay is None or ahead:
            delay = self.read_delay(structs.replace(queue, read_delay=None))
            if delay <= LONGEST_SKIP:
                self._nodes.let_pass(delay, QUIET if ahead else 0.0)

    @property
    def clock_difference(self) -> float:
        return HandedStore.clock_difference if self._by_hand else super().clock_difference


LONGEST_SKIP = 5.0
"""Max read delay that is skipped, in seconds. No test waits for a longer one, and some claims live for less."""
QUIET = 1.0
"""Seconds after the last message until a claim skips the read delay. What it delivers before that is delivered before
the delay is over, as on a real node."""
KEYSPACE = "simulated"
TARGET = DataCentreTarget(("127.0.0.1",), KEYSPACE)


def make_cluster() -> InProcessCluster:
    cluster = InProcessCluster()
    migrate(
        TARGET,
        CassandraOptions(),
        replication="1",
        running=MigrationEnvironment(driver=partial(InProcessDriver, cluster=cluster)),
    )
    return cluster
