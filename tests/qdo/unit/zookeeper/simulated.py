"""A tree in memory: nodes, transactions, ephemeral nodes, watches that fire once.

``tests/qdo/contract/test_tree.py`` holds it to what the real ones do. It is for groups of hundreds of members, whose
requests are counted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from qdo.coordination import Coordinator
from qdo.coordination.changes import apply_bundled
from qdo.coordination.tree import (
    ANY,
    Applied,
    Change,
    Check,
    Create,
    Delete,
    Link,
    NodeData,
    Operation,
    Outcome,
    Rejection,
    RejectionReason,
    SetData,
    State,
    parent,
)
from qdo.errors import CoordinationError, CoordinationLost, SessionLost

Wanted = TypeVar("Wanted")


class Watcher(Protocol):
    """Hears of nodes that change."""

    def tell(self, path: str) -> None:
        """A watched node has changed, or its children have."""


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
        self.watches: dict[str, dict[Watcher, None]] = defaultdict(dict)
        self.child_watches: dict[str, dict[Watcher, None]] = defaultdict(dict)
        self.sessions = itertools.count(1)

    def names(self, path: str) -> list[str] | None:
        """Returns the names of the nodes in a node."""
        return sorted(self._below[path]) if path in self.nodes else None

    def apply(self, session: int, change: Change) -> Outcome:
        """Makes a change, all of it or nothing."""
        before: list[tuple[str, NodeData | None]] = []
        changed: list[tuple[str, bool]] = []
        versions = []
        self.transactions += 1
        for at, operation in enumerate(change):
            if (why := self._refuse(operation)) is not None:
                for path, node in reversed(before):
                    self._restore(path, node)
                return Rejection(why, at)
            before.append((operation.path, self.nodes.get(operation.path)))
            versions.append(self._do(session, operation, changed))
        self._report(changed)
        return Applied(tuple(versions))

    def end(self, session: int) -> None:
        """Removes what a session has made for itself."""
        for path in [path for path, node in self.nodes.items() if node.session == session]:
            self.apply(0, (Delete(path),))

    def _restore(self, path: str, node: NodeData | None) -> None:
        above, _, name = path.rpartition("/")
        if node is None:
            del self.nodes[path]
            self._below[above or "/"].discard(name)
        else:
            self.nodes[path] = node
            self._below[above or "/"].add(name)

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
            told = self.watches.pop(path, {})
            above = parent(path)
            for link in told:
                link.tell(path)
            for link in self.child_watches.pop(above, {}) if listed else ():
                link.tell(above)


class SimulatedLink(Link):
    """One session; see the contract."""

    state: State = "new"
    timeout: float = 10.0

    def __init__(self, servers: Servers) -> None:
        super().__init__(0.0)
        self.session = next(servers.sessions)
        self.allowed: int | None = None
        """So many transactions until it dies; None: any number."""
        self._servers = servers

    @property
    def finished(self) -> bool:
        """See the contract."""
        return self.state == "lost"

    async def open(self) -> None:
        """See the contract."""
        self.state = "connected"

    def tell(self, path: str) -> None:
        """Tells of a watched node that has changed."""
        if self.state == "connected":
            self.on_watch([path])

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """See the contract."""
        return [self._one("read", path, watch=watch and path in self._servers.nodes) for path in await self._ask(paths)]

    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """See the contract."""
        found = [self._one("look", path, watch=watch) for path in await self._ask(paths)]
        return [node and replace(node, data=b"") for node in found]

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """See the contract."""
        wanted = await self._ask(paths)
        self._servers.asked["children"] += len(wanted)
        for path in wanted if watch else ():
            if path in self._servers.nodes:
                self._servers.child_watches[path][self] = None
        return [self._servers.names(path) for path in wanted]

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        """See the contract."""
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

    async def apply_each(self, changes: Iterable[Change]) -> list[Outcome]:
        """See the contract."""
        return await apply_bundled(self, changes)

    async def sync(self, path: str) -> None:
        """See the contract."""

    async def close(self) -> None:
        """See the contract."""
        self._leave()

    def end(self, why: CoordinationError) -> None:
        """See the contract."""
        if self.state != "lost":
            self._leave()
            self.on_state("lost")

    def _leave(self) -> None:
        self.state = "lost"
        self._servers.end(self.session)

    def _one(self, kind: str, path: str, *, watch: bool) -> NodeData | None:
        self._servers.asked[kind] += 1
        if watch:
            self._servers.watches[path][self] = None
        return self._servers.nodes.get(path)

    async def _ask(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        if self.state == "lost":
            raise SessionLost("the session has ended")
        await asyncio.sleep(0)
        return list(wanted)


async def opened(servers: Servers) -> Coordinator:
    """Returns an open coordinator."""
    coordinator = Coordinator("group", lambda _: SimulatedLink(servers), SimulatedLink.timeout)
    await coordinator.open()
    return coordinator
