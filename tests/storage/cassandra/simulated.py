"""A driver on the simulated cluster that answers at once, for tests of single parts of the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from queuey.model.errors import StoreUnavailable
from queuey.storage.cassandra.cluster import Done, Driver, Encoded, Host, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.store_loop import Calls, StoreLoop
from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.deadlines import Deadline
from tests.sim.cassandra.cluster import Cluster, NetworkFaults
from tests.sim.world import World

T = TypeVar("T")
AnyRequest = StatementRequest | Encoded
BOOTED = 1_750_000_000.0
"""Boot time of the test's machine, in seconds since 1970."""
LONGEST_CALL = 60.0
"""Simulated seconds after which a call counts as stuck."""


class HandLoop(StoreLoop):
    """A loop in the test's thread. Calls run at once, and timers as the world's time advances.

    Args:
        world: The world of the timers.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def call(self, call: Callable[..., object], *args: object) -> None:
        call(*args)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Runs a call at once, but never within another call."""
        self._calls.append((call, args))
        if not self._is_waking:
            with self.turn():
                pass

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Runs one turn of the loop; calls for the next turn are made after it."""
        self._is_waking = True
        yield
        while self._calls:
            call, args = self._calls.popleft()
            call(*args)
        self._is_waking = False

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        def ring() -> None:
            call()

        self._world.after(seconds, ring)


class FaultlessDriver(Driver):
    """Sends requests to a simulated cluster without faults, unless the test adds some.

    An answer takes 1 ms of the world's time.

    Args:
        seed: Seed of all randomness.

    Attributes:
        sent: All requests, also those that fail or wait.
        fail: Returns the error that a request fails with, or None if it is answered.
        held: Whether requests wait until the test answers them.
        waiting: Functions that answer the waiting requests, in order.
        ahead: Seconds by which the wall clock of the test's machine is ahead.
        centres: The data centre of each node.
    """

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.world.now = BOOTED
        self.cluster = Cluster(self.world, NetworkFaults(slow=1e-6))
        for node in self.cluster.nodes:
            node.offset = 0.0
        self.sent: list[AnyRequest] = []
        self.fail: Callable[[AnyRequest], StoreUnavailable | None] = lambda _request: None
        self.held = False
        self.waiting: list[Callable[[], None]] = []
        self.ahead = 0.0
        self.centres = ["dc1"] * len(self.cluster.nodes)
        self._deadline = Deadline(math.inf)
        self.loop: HandLoop = HandLoop(self.world)
        self.calls = Calls(self.loop, self._deadline)

    def clock(self) -> SteadyClock:
        return SteadyClock(
            boottime=lambda: round((self.world.now - BOOTED + 1000.0) * 1e9),
            wall=lambda: round((self.world.now + self.ahead) * 1e9),
        )

    def advance(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def run_to_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a call to its end while the world's time advances. Returns its result, or raises its error."""
        ends: list[tuple[Any, Any]] = []
        self.calls.begin(work, lambda *end: ends.append(end))
        until = self.world.now + LONGEST_CALL
        while not ends and self.world.now < until:
            self.advance(0.01)
        [(result, error)] = ends
        if error is not None:
            raise error
        value: T = result
        return value

    def count(self, statements: Iterable[Statement]) -> int:
        return sum(request.statement in {*statements} for request in self.sent)

    def send(self, request: AnyRequest, done: Done) -> None:
        self.sent.append(request)
        if self.held:
            self.waiting.append(partial(self._answer, request, done))
        else:
            self._answer(request, done)

    def _answer(self, request: AnyRequest, done: Done) -> None:
        ends: list[tuple[Rows | None, StoreUnavailable | None]] = []
        if (error := self.fail(request)) is None:
            self.cluster.ask(request, lambda *end: ends.append(end))
            self.world.run(self.world.now + 0.001)
        done(*(ends[0] if ends else (None, error or StoreUnavailable("no answer"))))

    def prepare(self, statements: Iterable[Statement]) -> None:
        """See the base class. All statements are prepared."""

    def problem(self) -> str | None:
        return None

    def hosts(self) -> list[Host]:
        up = self.cluster.up()
        nodes = zip(self.cluster.nodes, self.centres, strict=False)
        return [Host(node.address, centre, up=node in up) for node, centre in nodes]

    def replication(self) -> dict[str, int]:
        return {"dc1": len(self.cluster.nodes)}
