"""Several processes on one real node, in a world whose time the test controls.

Every process has its own store on its own machine. Their clocks and the nodes' clocks show the world's time, which
stands still until the test advances it. So only the test decides what is late, stale or due, however slow the machine
is that it runs on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from queuey.model import ids
from queuey.model.errors import QueueyError, StoreUnavailable
from queuey.model.ids import EPOCH_TICKS, Position
from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore, Level
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.clock_watch import ClockWatch
from tests.contract.samples import BegunCall, begin
from tests.replacing import replace_in
from tests.storage.cassandra.begun import driver_of, page_of
from tests.storage.cassandra.interposed import WAIT_TIMEOUT, Wire
from tests.waiting import PATIENCE_SECONDS

W, S, D, C = 3.0, 1.0, 5.0, 1.0
"""Write deadline, clock difference, read delay and max row age, in seconds of the world's time."""
OPTIONS: dict[str, Any] = {
    "row_age": C,
    "clock_difference": S,
    "levels": {"strong": Level(None, None, delay=D, deadline=W)},
    "heartbeat": None,
    "reap_interval": None,
    "timeout": WAIT_TIMEOUT,
    "deadline": 1e6,  # Tests let hours of the world's time pass while a call waits.
    "speculative": 0.0,
}
TTL = 3600

Attempt = BegunCall[list[Position]]


_QUARTER_HOUR = 900 * 10**9


class World:
    """The common time, in nanoseconds since 1970.

    It begins 2 s after the next quarter of an hour, so no bucket of 15 minutes or more ends while a test runs for some
    minutes: counts do not depend on the time of day.
    """

    def __init__(self) -> None:
        self._moved = 0
        self._lock = threading.Lock()
        self._began = (time.time_ns() // _QUARTER_HOUR + 1) * _QUARTER_HOUR + 2 * 10**9
        self._running: int | None = None

    def __call__(self) -> int:
        run = 0 if self._running is None else time.monotonic_ns() - self._running
        return self._began + self._moved + run

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._moved += round(seconds * 1e9)

    def run(self) -> None:
        """Lets the time run with the real clock, for calls that end at their deadlines."""
        self._running = time.monotonic_ns()

    def stop(self) -> None:
        now, self._running = self(), None
        self._moved = now - self._began

    def uuid(self) -> UUID:
        return UUID(hex=ids.to_hex((self() // 100 + EPOCH_TICKS, 0)))


class Machine:
    """The clocks of one machine.

    Args:
        world: The time that they show.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._started = world() - 10**12
        self.lag = 0.0
        """Seconds that the boot time lags behind the world's time."""
        self.wrong = 0.0
        """Seconds that the wall clock is ahead of the world's."""

    def fall_behind(self, seconds: float) -> None:
        """Sets all clocks back; forward if negative."""
        self.lag += seconds
        self.wrong -= seconds

    def boottime(self) -> int:
        return self._world() - self._started - round(self.lag * 1e9)

    def wall(self) -> int:
        return self._world() + round(self.wrong * 1e9)


@dataclass
class Process:
    """A store, the machine it runs on, and its wire to Cassandra."""

    store: CassandraStore
    machine: Machine
    wire: Wire
    attempts: list[Attempt] = field(default_factory=list)
    """The appends that were begun."""

    def check_clock(self) -> bool:
        """Compares the clock with the node's, as is done several times a second; returns whether it is sound."""
        return driver_of(self.store).calls.run(self.store._watch.check())

    def post(self, queue: Queue, *items: NewMessage, after: Position | None = None) -> Attempt:
        attempt = begin(self.store.messages.append(queue, items or (message(),), after=after))
        self.attempts.append(attempt)
        return attempt


class Reader:
    """Reads a partition from its beginning, continuing each time at its cursor.

    Args:
        process: Reads.
        queue: Is read.
        start: The first position that is read.
    """

    def __init__(self, process: Process, queue: Queue, start: Position = ids.FIRST, *, partition: int = 1) -> None:
        self._store = process.store
        self.queue = queue
        self.partition = partition
        self.cursor = start
        self.seen: list[Position] = []
        self.bodies: list[str] = []

    def read_more(self) -> list[Position]:
        """Reads to the end of the partition; returns the new positions."""
        positions: list[Position] = []
        while True:
            part = Slice(self.partition, self.cursor)
            page = page_of(self._store, self.queue, part)
            positions += [message.position for message in page.messages]
            self.bodies += [str(message.body) for message in page.messages]
            assert page.next is not None
            self.cursor = page.next
            if not page.more:
                break
        self.seen += positions
        return positions

    def find_missed(self, attempts: Sequence[Attempt]) -> list[str]:
        """Returns acknowledged messages that were passed without being shown (G1)."""
        seen = set(self.seen)
        return [
            f"acknowledged, below the cursor, never shown: {ids.to_hex(position)}"
            for attempt in attempts
            if end_of(attempt) == "acknowledged"
            for position in attempt.result(PATIENCE_SECONDS)
            if position < self.cursor and position not in seen
        ]


@dataclass
class Scene:
    """The processes of one test, which share one application.

    Attributes:
        url: The URL of the keyspace.
        application: The name of the application.
        world: The time of the processes.
    """

    url: str
    application: str
    world: World = field(default_factory=World)
    processes: list[Process] = field(default_factory=list)

    def start(self, **options: Any) -> Process:  # noqa: ANN401 - options of any type
        """Starts a process on a machine of its own, and waits until its store is ready.

        The store sends no requests but those of the test, and where it would sleep, the world's time advances.
        """
        machine = Machine(self.world)
        clock = SteadyClock(machine.boottime, machine.wall)
        wire = Wire(self.world.uuid)
        store = CassandraStore(self.url, CassandraOptions(**(OPTIONS | options)), clock, driver=wire.driver)
        store._arrivals._record.add_keys = lambda _keys: None  # Only requests of the test are sent.
        driver_of(store).loop.sleep = self._let_pass  # type: ignore[method-assign]
        process = Process(store, machine, wire)
        self.processes.append(process)
        assert store.ready(WAIT_TIMEOUT), bridge.run(store.statistics())
        return process

    async def _let_pass(self, seconds: float) -> None:
        self.world.advance(seconds + 1e-6)  # Avoids waiting again and again for a remainder left by rounding.

    def queue(self, process: Process, **spec: Any) -> Queue:  # noqa: ANN401 - fields of any type
        """Creates the queue ``queue``, and before the application if it does not exist."""
        if not bridge.run(process.store.applications.has_application(self.application)):
            bridge.run(process.store.applications.create_application(self.application))
        queue, _ = bridge.run(process.store.catalogue.create_queue(self.application, "queue", QueueSpec(**spec)))
        return queue

    def close(self) -> None:
        self.world.run()
        with contextlib.ExitStack() as closing:
            for process in self.processes:
                process.wire.clear()
                closing.callback(process.store.close)


def message(text: str = "x", partition: int = 1, ttl: int = TTL, delay: float = 0.0) -> NewMessage:
    return NewMessage(text, partition, ttl, None, delay)


def end_of(attempt: Attempt) -> str:
    """Waits until an append ends and names its end: ``acknowledged``, ``none``, ``unknown`` or the error's code."""
    error = attempt.exception(WAIT_TIMEOUT)
    if error is None:
        return "acknowledged"
    if isinstance(error, StoreUnavailable):
        return error.outcome
    assert isinstance(error, QueueyError), error
    return error.code


def open_scene(url: str, application: str) -> Iterator[Scene]:
    scene = Scene(url, application)
    with replace_in(ClockWatch, ClockWatch.timeout, WAIT_TIMEOUT):
        try:
            yield scene
        finally:
            scene.close()
