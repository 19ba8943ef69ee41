"""Several processes on one real node, in a world whose time is moved by hand.

Every process has a store of its own on a machine of its own. Their clocks and the nodes' show the world's time, which
stands still until a test moves it: so what is late, stale or due is decided by the test alone, however slow the
machine is that it runs on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from queuey import ids
from queuey.errors import QueueyError, StoreUnavailable
from queuey.ids import EPOCH_TICKS, Position
from queuey.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore, Level
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.clock_watch import ClockWatch
from tests.cassandra.begun import page_of
from tests.cassandra.interposed import PATIENCE, Wire
from tests.contract.samples import Begun, begin
from tests.replacing import replace_in
from tests.waiting import PATIENCE_SECONDS

W, S, D, C = 3.0, 1.0, 5.0, 1.0
"""Write deadline, clock difference, read delay and age of rows: seconds of the world's time."""
OPTIONS: dict[str, Any] = {
    "row_age": C,
    "clock_difference": S,
    "levels": {"strong": Level(None, None, delay=D, deadline=W)},
    "heartbeat": None,
    "reap_interval": None,
    "timeout": PATIENCE,
    "deadline": 1e6,  # Tests let hours of the world's time go by while a call waits.
    "speculative": 0.0,
}
TTL = 3600

Attempt = Begun[list[Position]]


_QUARTER_HOUR = 900 * 10**9


class World:
    """The time of everybody, in nanoseconds since 1970.

    It begins 2 s after the next quarter of an hour, so that no bucket of 15 minutes or more ends while a test runs for
    some minutes: what is counted does not depend on the time of day.
    """

    def __init__(self) -> None:
        self._moved = 0
        self._lock = threading.Lock()
        self._began = (time.time_ns() // _QUARTER_HOUR + 1) * _QUARTER_HOUR + 2 * 10**9
        self._running: int | None = None

    def __call__(self) -> int:
        """Tells it."""
        run = 0 if self._running is None else time.monotonic_ns() - self._running
        return self._began + self._moved + run

    def advance(self, seconds: float) -> None:
        """Moves it."""
        with self._lock:
            self._moved += round(seconds * 1e9)

    def run(self) -> None:
        """Lets it go by itself, for what is to end by its deadlines."""
        self._running = time.monotonic_ns()

    def stand(self) -> None:
        """Lets it stand still again."""
        now, self._running = self(), None
        self._moved = now - self._began

    def uuid(self) -> UUID:
        """Tells it as a node does."""
        return UUID(hex=ids.to_hex((self() // 100 + EPOCH_TICKS, 0)))


class Machine:
    """The clocks of one machine.

    Args:
        world: What they show.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._started = world() - 10**12
        self.lag = 0.0
        """Seconds that its boot time has stood still while the world's went on."""
        self.wrong = 0.0
        """Seconds that its wall clock is ahead of the world's."""

    def fall_behind(self, seconds: float) -> None:
        """Sets all its clocks back; ahead if negative."""
        self.lag += seconds
        self.wrong -= seconds

    def boottime(self) -> int:
        """Nanoseconds since it was started."""
        return self._world() - self._started - round(self.lag * 1e9)

    def wall(self) -> int:
        """Nanoseconds since 1970."""
        return self._world() + round(self.wrong * 1e9)


@dataclass
class Process:
    """A store, the machine it runs on, and its way to Cassandra."""

    store: CassandraStore
    machine: Machine
    wire: Wire
    attempts: list[Attempt] = field(default_factory=list)
    """The appends that were begun."""

    def check_clock(self) -> bool:
        """Compares the clock with the node's, as is done several times a second; returns whether it is sound."""
        return self.store._driver.calls.run(self.store._watch.check())

    def post(self, queue: Queue, *items: NewMessage, after: Position | None = None) -> Attempt:
        """Begins an append."""
        attempt = begin(self.store.messages.append(queue, items or (message(),), after=after))
        self.attempts.append(attempt)
        return attempt


class Reader:
    """Reads a partition from its beginning, each time from where it stopped.

    Args:
        process: Reads.
        queue: Is read.
        start: The first position of interest.
    """

    def __init__(self, process: Process, queue: Queue, start: Position = ids.FIRST, *, partition: int = 1) -> None:
        self._store = process.store
        self.queue = queue
        self.partition = partition
        self.cursor = start
        self.seen: list[Position] = []
        self.bodies: list[str] = []

    def go_on(self) -> list[Position]:
        """Reads everything that is to be had; returns what is new."""
        found: list[Position] = []
        while True:
            part = Slice(self.partition, self.cursor)
            page = page_of(self._store, self.queue, part)
            found += [one.position for one in page.messages]
            self.bodies += [str(one.body) for one in page.messages]
            assert page.next is not None
            self.cursor = page.next
            if not page.more:
                break
        self.seen += found
        return found

    def missed(self, attempts: Sequence[Attempt]) -> list[str]:
        """Says which acknowledged messages were passed without being shown (G1)."""
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
        url: The keyspace.
        application: Its name.
        world: Their time.
    """

    url: str
    application: str
    world: World = field(default_factory=World)
    processes: list[Process] = field(default_factory=list)

    def start(self, **options: Any) -> Process:  # noqa: ANN401 - options of any type
        """Starts one more process."""
        machine = Machine(self.world)
        clock = Clock(machine.boottime, machine.wall)
        wire = Wire(self.world.uuid)
        store = CassandraStore(self.url, CassandraOptions(**(OPTIONS | options)), clock, driver=wire.driver)
        store._arrivals._record.note = lambda _keys: None  # Nothing is sent here but what a test asks for.
        store._driver.loop.sleep = self._let_pass  # type: ignore[method-assign]
        process = Process(store, machine, wire)
        self.processes.append(process)
        assert store.ready(PATIENCE), bridge.run(store.statistics())
        return process

    async def _let_pass(self, seconds: float) -> None:
        """Waits, which takes no time: the world's goes on instead."""
        self.world.advance(seconds + 1e-6)  # What is left by rounding must not be waited for again and again.

    def queue(self, process: Process, **spec: Any) -> Queue:  # noqa: ANN401 - fields of any type
        """Makes a queue."""
        if not bridge.run(process.store.applications.has_application(self.application)):
            bridge.run(process.store.applications.create_application(self.application))
        queue, _ = bridge.run(process.store.catalogue.create_queue(self.application, "queue", QueueSpec(**spec)))
        return queue

    def close(self) -> None:
        """Ends all processes in good order."""
        self.world.run()
        with contextlib.ExitStack() as closing:
            for process in self.processes:
                process.wire.clear()
                closing.callback(process.store.close)


def message(text: str = "x", partition: int = 1, ttl: int = TTL, delay: float = 0.0) -> NewMessage:
    """A message."""
    return NewMessage(text, partition, ttl, None, delay)


def end_of(attempt: Attempt) -> str:
    """Waits for the end of an append and names it: ``acknowledged``, ``none``, ``unknown`` or the error's code."""
    error = attempt.exception(PATIENCE)
    if error is None:
        return "acknowledged"
    if isinstance(error, StoreUnavailable):
        return error.outcome
    assert isinstance(error, QueueyError), error
    return error.code


def playing(url: str, application: str) -> Iterator[Scene]:
    """Sets a scene and takes it down again. Nodes may take as long as they like to tell their time."""
    scene = Scene(url, application)
    with replace_in(ClockWatch, ClockWatch.timeout, PATIENCE):
        try:
            yield scene
        finally:
            scene.close()
