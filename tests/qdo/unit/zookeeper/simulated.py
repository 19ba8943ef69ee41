"""ZooKeeper in memory, as far as sessions of members see it: nodes, transactions, ephemeral nodes, watches.

A watch fires once.

That the real one behaves like it is held by the coordination suite; this is for groups of hundreds of members, whose
requests are counted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from qdo.coordination import Coordinator, Listen, Member
from qdo.coordination.zookeeper.driver import State
from qdo.coordination.zookeeper.paths import GroupPaths, parent
from qdo.coordination.zookeeper.session import ZooKeeperSession
from qdo.coordination.zookeeper.transactions import (
    ANY,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    NodeData,
    Operation,
    Outcome,
    Rejection,
    RejectionReason,
    SetData,
)
from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from tests.qdo.unit.group.scripted import Stub

Wanted = TypeVar("Wanted")
TREE = GroupPaths("/qdo", "group")


class Servers:
    """The nodes and who watches them.

    Attributes:
        nodes: By path.
        asked: How many requests there were of each kind.
        largest: The bytes of the largest node that there ever was.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeData] = {"/": NodeData(b"", 0, 0, 0)}
        self.asked: Counter[str] = Counter()
        self.largest = 0
        self.transactions = 0
        self._below: dict[str, set[str]] = defaultdict(set)
        self.watches: dict[str, set[SimulatedLink]] = defaultdict(set)
        self.child_watches: dict[str, set[SimulatedLink]] = defaultdict(set)
        self.sessions = itertools.count(1)

    def names(self, path: str) -> list[str] | None:
        """Returns the names of the nodes in a node."""
        return sorted(self._below[path]) if path in self.nodes else None

    def apply(self, session: int, change: Change) -> Outcome:
        """Makes a change, all of it or nothing."""
        before, below = dict(self.nodes), {path: set(names) for path, names in self._below.items()}
        changed: list[tuple[str, bool]] = []
        versions = []
        self.transactions += 1
        for at, operation in enumerate(change):
            if (why := self._refuse(operation)) is not None:
                self.nodes, self._below = before, defaultdict(set, below)
                return Rejection(why, at)
            versions.append(self._do(session, operation, changed))
        self._report(changed)
        return Applied(tuple(versions))

    def end(self, session: int) -> None:
        """Removes what a session has made for itself."""
        for path in [path for path, node in self.nodes.items() if node.session == session]:
            self.apply(0, (Delete(path),))

    def _refuse(self, operation: Operation) -> RejectionReason | None:
        node = self.nodes.get(operation.path)
        if isinstance(operation, Create):
            if node is not None:
                return RejectionReason.NODE_EXISTS
            return None if parent(operation.path) in self.nodes else RejectionReason.NO_NODE
        if node is None:
            return RejectionReason.NO_NODE
        if isinstance(operation, Delete):
            return RejectionReason.NOT_EMPTY if self._below[operation.path] else None
        return None if operation.version in {ANY, node.version} else RejectionReason.BAD_VERSION

    def _do(self, session: int, operation: Operation, changed: list[tuple[str, bool]]) -> int:
        path = operation.path
        above, _, name = path.rpartition("/")
        match operation:
            case Create(_, data, ephemeral):
                self.nodes[path] = NodeData(data, 0, self.transactions, session if ephemeral else 0)
                self._below[above or "/"].add(name)
                changed.append((path, True))
            case SetData(_, data, _):
                node = self.nodes[path]
                self.nodes[path] = NodeData(data, node.version + 1, self.transactions, node.session)
                changed.append((path, False))
            case Delete(_):
                del self.nodes[path]
                self._below[above or "/"].discard(name)
                changed.append((path, True))
            case Check():
                pass
        self.largest = max(self.largest, len(operation.data))
        return self.nodes[path].version if path in self.nodes else 0

    def _report(self, changed: Iterable[tuple[str, bool]]) -> None:
        for path, listed in changed:
            told = self.watches.pop(path, set())
            above = parent(path)
            for link in told:
                link.tell(path)
            for link in self.child_watches.pop(above, set()) if listed else ():
                link.tell(above)


class SimulatedLink:
    """One session; in the place of the driver's link."""

    def __init__(self, servers: Servers) -> None:
        self.session = next(servers.sessions)
        self.state: State = "connected"
        self.on_state: Callable[[State], None] = lambda _: None
        self.on_watch: Callable[[list[str]], None] = lambda _: None
        self.allowed: int | None = None
        """So many transactions until it dies; None: any number."""
        self._servers = servers

    def tell(self, path: str) -> None:
        """Tells of a watched node that has changed."""
        if self.state == "connected":
            self.on_watch([path])

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """See the driver: only nodes that are there are watched."""
        return [self._one("read", path, watch=watch and path in self._servers.nodes) for path in await self._ask(paths)]

    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """See the driver."""
        return [self._one("look", path, watch=watch) for path in await self._ask(paths)]

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """See the driver."""
        wanted = await self._ask(paths)
        self._servers.asked["children"] += len(wanted)
        for path in wanted if watch else ():
            self._servers.child_watches[path].add(self)
        return [self._servers.names(path) for path in wanted]

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        """See the driver."""
        outcomes = []
        for change in await self._ask(changes):
            if self.allowed == 0:
                self.end(SessionLost("it died"))
                raise CoordinationLost("it died meanwhile")
            if self.allowed is not None:
                self.allowed -= 1
            self._servers.asked["apply"] += 1
            outcomes.append(self._servers.apply(self.session, change))
        return outcomes

    async def close(self) -> None:
        """See the driver."""
        self._leave()

    def end(self, _: CoordinationError) -> None:
        """See the driver."""
        if self.state != "lost":
            self._leave()
            self.on_state("lost")

    def _leave(self) -> None:
        self.state = "lost"
        self._servers.end(self.session)

    def _one(self, kind: str, path: str, *, watch: bool) -> NodeData | None:
        self._servers.asked[kind] += 1
        if watch:
            self._servers.watches[path].add(self)
        return self._servers.nodes.get(path)

    async def _ask(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        if self.state == "lost":
            raise SessionLost("the session has ended")
        await asyncio.sleep(0)
        return list(wanted)


class SimulatedCoordinator(Stub, Coordinator):
    """Members of one process, each with a session of its own."""

    group = "group"
    session_timeout = 10.0

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    async def open(self) -> None:
        """See the contract."""

    async def close(self) -> None:
        """See the contract."""

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> ZooKeeperSession:
        """See the contract."""
        link = SimulatedLink(self._servers)
        session = ZooKeeperSession(link, TREE, member, listen)  # type: ignore[arg-type] # does what a link does
        await session.join(replace=replace)
        return session
