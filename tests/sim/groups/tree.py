"""A coordination service in memory, and the sessions of members on it: in simulated time, or in a loop's time.

``tests/qdo/contract`` checks it against the contract of real ones. A session ends when the servers have received
nothing for its timeout, and some time later: never early. The lease of the ZooKeeper driver judges the client's side.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec.structs import replace

from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.group.zookeeper.handler import SessionLease
from qdo.group.zookeeper.tree import Applied, Change, Create, Link, NodeData, Outcome, State
from tests.sim.groups.nodes import Nodes

OWNERS = "/groups/group/owners/"
TIMEOUT = 3.0
"""Default seconds for which servers keep a silent session."""
LATE = 0.5
"""Min seconds by which they end it late."""
READING = 0.05
"""Seconds after a pause until received data is read. Timers that are due run first."""
TIME_TOLERANCE = 1e-6
"""Tolerance in seconds for equal instants."""
OPENING = 1.5
"""Seconds for which a new session tries to connect."""
MIN_LEASE_CHECK_SECONDS = 0.01
"""Min seconds between two checks of the lease."""
PINGS = 3
"""Pings per session timeout."""


class Scheduler(Protocol):
    """The scheduler of events. :class:`tests.sim.world.World` is one.

    Attributes:
        rng: The source of all random choices.
    """

    rng: random.Random

    @property
    def now(self) -> float:
        """The time in seconds."""

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        """Schedules work in ``seconds`` seconds."""

    def number(self) -> int:
        """Returns a number that it never returned before."""

    def random_time(self, mean: float) -> float:
        """Returns a random time with this mean."""


class LoopClock:
    """The time of the running event loop. Transport takes no time."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self._numbers = itertools.count()

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def after(self, seconds: float, work: Callable[[], None]) -> None:
        later(asyncio.get_running_loop(), seconds, work)

    def number(self) -> int:
        return next(self._numbers)

    def random_time(self, _mean: float) -> float:
        return 0.0


def later(loop: AbstractEventLoop, seconds: float, work: Callable[[], None]) -> None:
    """Schedules work on a loop. Without a delay the order of calls is kept."""
    if seconds > 0:
        loop.call_later(seconds, work)
    else:
        loop.call_soon_threadsafe(work)


class Observer(Protocol):
    """Sees all events of the tree, in their order."""

    def began(self, session: int, link: TreeLink) -> None:
        """A session has begun."""

    def ended(self, session: int) -> None:
        """A session has ended."""

    def changed(self, session: int, change: Change) -> None:
        """A session has made a change. Session 0 stands for the servers."""


class Tree(Nodes):
    """The servers of a group.

    Args:
        world: Their scheduler.
        observer: Notified of every change.
        tolerance: Max seconds between arrival and reading of an answer for a reader that was not delayed.
    """

    def __init__(self, world: Scheduler, observer: Observer | None = None, tolerance: float = TIME_TOLERANCE) -> None:
        super().__init__()
        self.world = world
        self.tolerance = tolerance
        self._observer = observer
        self._heard: dict[int, float] = {}
        self._links: dict[int, TreeLink] = {}

    def apply(self, session: int, change: Change) -> Outcome:
        """Makes a change for a session. Tells the observer only if it was applied."""
        outcome = super().apply(session, change)
        if isinstance(outcome, Applied) and self._observer is not None:
            self._observer.changed(session, change)
        return outcome

    @property
    def links(self) -> list[TreeLink]:
        return list(self._links.values())

    def begin(self, link: TreeLink) -> int:
        """Begins a session of a link and returns its number.

        Without messages it ends a while after the link's timeout.
        """
        session = next(self.sessions)
        self._links[session] = link
        if self._observer is not None:
            self._observer.began(session, link)
        self.note_life_sign(session)
        self._expire_later(session, link.timeout)
        return session

    def lives(self, session: int) -> bool:
        return session in self._heard

    def note_life_sign(self, session: int) -> None:
        self._heard[session] = self.world.now

    def end(self, session: int) -> None:
        """Ends a session, deletes its ephemeral nodes, tells the observer, and notifies the link.

        Does nothing if it has ended.
        """
        if self._heard.pop(session, None) is not None:
            super().end(session)
            if self._observer is not None:
                self._observer.ended(session)
            self._links.pop(session).ended_by_servers()

    def _expire_later(self, session: int, timeout: float) -> None:
        """Ends the session once nothing was heard of it for its timeout and a delay; checks again until then."""
        late = LATE + self.world.random_time(0.5)

        def check() -> None:
            if session not in self._heard:
                return
            if self.world.now - self._heard[session] >= timeout + late - 0.001:
                self.end(session)
            else:
                self._expire_later(session, timeout)

        self.world.after(self._heard[session] + timeout + late - self.world.now, check)


class Connection:
    """One connection of a session, until it breaks. Messages stay in order.

    Args:
        link: The client's side.

    Attributes:
        cut: Nothing arrives any more.
    """

    def __init__(self, link: TreeLink) -> None:
        self.cut = False
        self._link = link
        self._arrival = self._delivery = 0.0
        self._answering: float | None = None
        """When the request that the servers are working on was sent."""

    def send(self, work: Callable[[], None]) -> None:
        """Does work at the servers after a random time, which is a sign of life.

        The work is not done if the connection breaks or the session ends before.
        """
        world = self._link.tree.world
        self._arrival = max(self._arrival, world.now + world.random_time(self._link.latency))
        sent = self._link.loop.time()

        def arrive() -> None:
            if not self.cut and self._link.tree.lives(self._link.session):
                self._link.tree.note_life_sign(self._link.session)
                self._answering = sent
                work()
                self._answering = None

        world.after(self._arrival - world.now, arrive)

    def deliver(self, work: Callable[[], None]) -> None:
        """Does work at the client after a random time. A client that was paused meanwhile reads it a little later."""
        world = self._link.tree.world
        due = self._delivery = max(self._delivery, world.now + world.random_time(self._link.latency))
        sent = self._answering

        def arrive() -> None:
            if not self.cut:
                self._link.receive(self, work, sent)

        def read() -> None:
            if world.now <= due + self._link.tree.tolerance:
                arrive()
            else:
                self._delivery = max(self._delivery, world.now + READING)
                self._link.loop.call_later(self._delivery - world.now, arrive)

        later(self._link.loop, due - world.now, read)

    def tell(self, path: str) -> None:
        if not self.cut:
            self.deliver(lambda: self._link.tell(path))


class Host(Protocol):
    """The machine of a member.

    Attributes:
        name: The name of the machine.
        no_tree: Its packets do not reach the tree.
        latency: Mean seconds to the tree.
    """

    name: str
    no_tree: bool
    latency: float

    @property
    def loop(self) -> AbstractEventLoop:
        """The loop of the member that creates a link now."""

    def claimed(self, link: TreeLink, queue: str) -> None:
        """The tree has carried out a claim of a queue's partition, and answers."""


class LoopHost:
    """The process of a test. Its loop is the running one."""

    def __init__(self) -> None:
        self.name = "test"
        self.no_tree = False
        self.latency = 0.0

    @property
    def loop(self) -> AbstractEventLoop:
        return asyncio.get_running_loop()

    def claimed(self, link: TreeLink, queue: str) -> None:
        pass


def make_loop_tree() -> Tree:
    return Tree(LoopClock(), tolerance=math.inf)


class TreeLink(Link):
    """A session of a member.

    Args:
        tree: The servers.
        host: The machine of the member.
        timeout: Seconds without a sign of life after which the session ends.
        max_blocked_seconds: See the contract. Unused: there are no other processes.
    """

    def __init__(self, tree: Tree, host: Host, timeout: float = TIMEOUT, max_blocked_seconds: float = 0.0) -> None:
        super().__init__(max_blocked_seconds)
        self.tree = tree
        self.loop = host.loop
        self.name = host.name
        self._host = host
        self._number = tree.world.number()
        self._timeout = timeout
        self._lease = SessionLease(timeout, self.loop.time)
        self._state: State = "new"
        self._connection: Connection | None = None
        self._pending: dict[asyncio.Future[Any], None] = {}

    def __hash__(self) -> int:
        return self._number  # not the address, so that the seed fixes the order of sets

    @property
    def latency(self) -> float:
        return self._host.latency

    @property
    def state(self) -> State:
        return "lost" if self._state in {"connected", "suspended"} and self._lease.lapsed else self._state

    @property
    def timeout(self) -> float:
        return self._timeout

    @property
    def host(self) -> Host:
        return self._host

    @property
    def finished(self) -> bool:
        return self._state == "lost"

    async def open(self) -> None:
        """Begins a session. Raises CoordinationLost after a wait if the servers are cut off from this machine."""
        world = self.tree.world
        began = self.loop.time()
        await asyncio.sleep(world.random_time(self.latency))
        if self._host.no_tree:
            await asyncio.sleep(OPENING)
            raise CoordinationLost("the servers do not answer")
        self.session = self.tree.begin(self)
        self._lease.grant(self._timeout, began)
        self._connect()
        self._ping()

    def _connect(self) -> None:
        self._connection = Connection(self)
        self._set_state("connected")

    def _set_state(self, state: State) -> None:
        if state == "suspended":
            self._settled.clear()
        else:
            self._settled.set()
        self._state = state
        self.on_state(state)

    def tell(self, path: str) -> None:
        self.on_watch([path])

    def receive(self, connection: Connection, work: Callable[[], None], sent: float | None) -> None:
        """Handles data of the servers: the answer to a request sent at ``sent``, or an event."""
        if connection is self._connection and self._state == "connected":
            if sent is not None:
                self._lease.renew(sent)
            if self._lease.lapsed:
                self.end(_end_error())
            else:
                work()

    def ended_by_servers(self) -> None:
        if self._connection is not None:
            self._connection.deliver(lambda: self.end(_end_error()))

    def cut(self, notice: float) -> None:
        """Breaks the connection. The client notices after ``notice`` seconds."""
        connection = self._connection
        if connection is not None and not connection.cut:
            connection.cut = True
            self.loop.call_later(notice, self._suspend, connection)

    def _suspend(self, connection: Connection) -> None:
        """Reports that this connection broke and starts to reconnect. Ends the session if its lease has lapsed."""
        if self._state != "connected" or connection is not self._connection:
            return
        if self._lease.lapsed:
            self.end(_end_error())
            return
        self._connection = None
        self._fail(CoordinationLost("the connection broke"))
        self._set_state("suspended")
        self._reconnect()

    def _reconnect(self) -> None:
        if self._state != "suspended":
            return
        if self._lease.lapsed:
            self.end(_end_error())
        elif self._host.no_tree:
            self.loop.call_later(0.1 + self.tree.world.random_time(0.2), self._reconnect)
        elif not self.tree.lives(self.session):
            self.end(_end_error())
        else:
            self.tree.note_life_sign(self.session)
            self._lease.renew(self.loop.time())
            self._connect()

    def _ping(self) -> None:
        """Sends pings until the session ends, also while its connection is broken; ends it when its lease lapses."""
        if self._state == "lost":
            return
        if self._lease.lapsed:
            self.end(_end_error())
            return
        if self._state == "connected" and (connection := self._connection) is not None:
            connection.send(lambda: connection.deliver(lambda: None))
        self.loop.call_later(
            min(self._timeout / PINGS, max(MIN_LEASE_CHECK_SECONDS, self._lease.remaining + 0.001)), self._ping
        )

    async def close(self) -> None:
        self._leave(SessionLost("the session was ended"))
        await asyncio.sleep(self.tree.world.random_time(self.latency))

    def end(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._leave(why)
            self.on_state("lost")

    def _leave(self, _why: CoordinationError) -> None:
        """Becomes lost and fails pending requests. The servers learn of it only over an unbroken connection."""
        if self._state == "lost":
            return
        self._state = "lost"
        self._settled.set()
        self._fail(CoordinationLost("the session ended meanwhile"))
        if self._connection is not None:
            self._connection.send(lambda: self.tree.end(self.session))

    def _fail(self, error: CoordinationError) -> None:
        for future in self._pending:
            if not future.done():
                future.set_exception(error)
        self._pending.clear()

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        def read_node(connection: Connection, path: str) -> NodeData | None:
            node = self.tree.nodes.get(path)
            if watch and node is not None:
                self.tree.watches[path][connection] = None
            return node

        return await self._ask(read_node, paths)

    async def stat(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        def read_node(connection: Connection, path: str) -> NodeData | None:
            node = self.tree.nodes.get(path)
            if watch:
                self.tree.watches[path][connection] = None
            return node and replace(node, data=b"")

        return await self._ask(read_node, paths)

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        def read_names(connection: Connection, path: str) -> list[str] | None:
            if watch and path in self.tree.nodes:
                self.tree.child_watches[path][connection] = None
            return self.tree.names(path)

        return await self._ask(read_names, paths)

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        def apply_one(_: Connection, change: Change) -> Outcome:
            outcome = self.tree.apply(self.session, change)
            for operation in change:
                if isinstance(operation, Create) and operation.path.startswith(OWNERS) and operation.ephemeral:
                    self._host.claimed(self, operation.path.split("/")[-2])
            return outcome

        return await self._ask(apply_one, changes)

    async def sync(self, path: str) -> None:
        await self._ask(lambda _, __: None, [path])

    async def _ask(self, carry_out: Callable[[Connection, Any], Any], items: Iterable[Any]) -> list[Any]:
        """Carries out requests in order, in one message or two, and returns the answers.

        Requests of others may come between. Raises SessionLost after the session, and CoordinationLost at once while
        there is no connection.
        """
        state = self.state
        if state == "lost":
            raise _end_error()
        connection = self._connection
        if state != "connected" or connection is None:
            raise CoordinationLost("the servers cannot be reached now")
        requests = list(items)
        if not requests:
            return []
        future = self.loop.create_future()
        self._pending[future] = None
        answers: list[Any] = []
        rng = self.tree.world.rng
        first = rng.randrange(1, len(requests) + 1) if len(requests) > 1 else len(requests)

        def answered() -> None:
            if not future.done():
                future.set_result(answers)

        def rest() -> None:
            answers.extend(carry_out(connection, request) for request in requests[first:])
            connection.deliver(answered)

        def begin() -> None:
            answers.extend(carry_out(connection, request) for request in requests[:first])
            if first < len(requests):
                connection.send(rest)
            else:
                connection.deliver(answered)

        connection.send(begin)
        try:
            await future
        finally:
            self._pending.pop(future, None)
        return answers


def _end_error() -> SessionLost:
    return SessionLost("the session has ended")
