"""The contract of a coordination service: a tree of versioned nodes, as in ZooKeeper, and one session on it.

A node has data, a version that rises with each change of the data, and children. An ephemeral node is deleted when the
session that created it ends. A change is a sequence of operations on nodes that are applied all or not at all.

**States of a session**::

    new ──► connected ◄──► suspended
                │              │
                └──► lost ◄────┘      final: a link is never used for a second session

A session is lost when the service says so, when the service has not answered for the session timeout, or when the link
is closed. If the connection breaks, each unanswered request is in doubt: it raises ``CoordinationLost``, and is not
sent again.

Group state (:mod:`qdo.group.zookeeper.session`) uses only this contract. :mod:`qdo.group.zookeeper` implements it.
A new implementation has to pass ``tests/qdo/contract``.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from qdo.errors import CoordinationError, CoordinationLost, SessionLost

ANY_VERSION = -1
"""Matches every version."""
MAX_NODE_BYTES = 1_000_000
"""Max bytes of a node. ZooKeeper closes the connection at about 1 MiB for a packet, which has overhead around it."""
MAX_WAIT_SECONDS = 1.5
"""Timeout of :meth:`Link.wait`, in seconds."""
MAX_OPERATIONS = 128
MAX_BUNDLE_BYTES = 256 * 1024
"""Max bytes of one bundle: a quarter of what a server accepts in one packet."""
OPERATION_OVERHEAD_BYTES = 64
"""Number of bytes of an operation besides its path and data, roughly: numbers and access lists."""
UNREPORTED_POLL_INTERVAL = 0.01
"""Interval between polls of a connection that is broken but not reported yet, in seconds."""
MAX_MISSING_LEVELS = 64
"""Max levels of missing parents to create; if more are missing, another program must be deleting them meanwhile."""


class Create(msgspec.Struct, frozen=True, gc=False):
    """Creates a node. The session's end deletes it if it is ephemeral. An ephemeral node has no children.

    ``sequence`` is for Curator's queues: ZooKeeper appends a number to the name. Other trees need not support it.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(msgspec.Struct, frozen=True, gc=False):
    """Replaces the data of a node that has the given version; the version rises by one."""

    path: str
    data: bytes
    version: int


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Deletes a node."""

    path: str
    data: bytes = b""
    """Always empty."""


class Check(msgspec.Struct, frozen=True, gc=False):
    """Requires that a node exists, at the given version or at any."""

    path: str
    version: int = ANY_VERSION
    data: bytes = b""
    """Always empty."""


Operation: TypeAlias = Create | SetData | Delete | Check
Change: TypeAlias = tuple[Operation, ...]


class RejectionReason(enum.Enum):
    NO_NODE = "a node is missing"
    NODE_EXISTS = "a node is there already"
    BAD_VERSION = "a node has another version"
    NOT_EMPTY = "a node holds others"


class Rejection(NamedTuple):
    """A change that was not applied.

    Attributes:
        why: The reason.
        at: The index of the operation that failed.
    """

    why: RejectionReason
    at: int


class Applied(msgspec.Struct, frozen=True, gc=False):
    """A change that was applied.

    Attributes:
        versions: The node's version after each operation, or 0 if it has none.
        created: The paths of created nodes, if the tree completed one of their names; :meth:`Link.apply_each` leaves
            them out.
    """

    versions: tuple[int, ...]
    created: tuple[str, ...] = ()


Outcome: TypeAlias = Applied | Rejection


class NodeData(msgspec.Struct, frozen=True, gc=False):
    """A node as read.

    Attributes:
        data: The node's data; empty if only its existence was requested.
        version: The version of the data.
        changed: A number that grows with transactions. Two states of a path differ in it or in ``version``.
        session: The session that created the node if it is ephemeral, else 0.
    """

    data: bytes
    version: int
    changed: int
    session: int


State: TypeAlias = Literal["new", "connected", "suspended", "lost"]


class Link(abc.ABC):
    """One session on a tree, for its whole life. Create and use it in one event loop.

    Args:
        max_blocked_seconds: Seconds for which a helper process keeps the session alive while this program is blocked; 0
            means no helper process.

    Attributes:
        max_blocked_seconds: See above.
        session: The unique number of the session, as in :class:`NodeData` of the ephemeral nodes that it created.
        on_state: Called when the state changes, but not for ``lost`` after :meth:`close`.
        on_watch: Called with the paths of watched nodes that changed, before later requests are answered. A watch
            reports one change.
    """

    session: int = 0

    def __init__(self, max_blocked_seconds: float) -> None:
        self.max_blocked_seconds = max_blocked_seconds
        self.on_state: Callable[[State], None] = lambda _: None
        self.on_watch: Callable[[list[str]], None] = lambda _: None
        self._settled = asyncio.Event()
        """Set while the link is connected or the session is lost."""

    @property
    @abc.abstractmethod
    def state(self) -> State:
        """The present state, even if ``on_state`` was not called for it yet."""

    @property
    @abc.abstractmethod
    def timeout(self) -> float:
        """Seconds without a heartbeat after which the service ends the session."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Whether the link has freed all its resources."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Connects.

        Raises:
            CoordinationLost: The service did not answer in time.
            CoordinationRefused: The service does not accept the credentials.
            CoordinationIncompatible: The service does not hold a tree of Qdo.
        """

    async def wait(self) -> State:
        """Waits up to ``MAX_WAIT_SECONDS`` for a broken connection to recover; returns the state after that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._settled.wait()
                while self.state == "suspended":  # detected, but not reported yet
                    await asyncio.sleep(UNREPORTED_POLL_INTERVAL)
                    await self._settled.wait()
        return self.state

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the session; waits for the service's confirmation if it can be reached. Never raises; idempotent."""

    async def abandon(self) -> None:
        """Ends the session, or lets it expire if the service cannot be reached now. Never raises."""
        await self.close()

    @abc.abstractmethod
    def end(self, why: CoordinationError) -> None:
        """Ends the session at once and reports it; later requests raise the error."""

    @abc.abstractmethod
    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """Returns nodes, or None for those that do not exist. Only existing nodes are watched.

        This method and the following ones raise ``CoordinationLost``, ``SessionLost`` and ``CoordinationRefused``.
        """

    @abc.abstractmethod
    async def stat(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """Returns nodes without their data, or None for those that do not exist. All of them are watched."""

    @abc.abstractmethod
    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """Returns the names of each node's children, or None if the node does not exist.

        Existing nodes are watched for added and deleted children.
        """

    async def count(self, paths: Iterable[str]) -> list[int | None]:
        return [None if names is None else len(names) for names in await self.children(paths)]

    @abc.abstractmethod
    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        """Applies changes independently of each other, in order; returns the outcome of each.

        Raises:
            CoordinationLost: Each change may or may not have been applied.
            SessionLost: No change was applied.
            CoordinationRefused: The credentials do not allow one of the changes; each of the others may or may not have
                been applied.
        """

    async def apply_each(self, changes: Iterable[Change]) -> list[Outcome]:
        """Applies changes that do not depend on each other, in any order; see :meth:`apply`.

        A transaction costs ZooKeeper a round of agreement and the client a packet. So several changes are sent as one
        bundle. If a bundle is refused because of one change, all its changes are sent again one by one.
        """
        todo = list(changes)
        if len(todo) == 1:
            return await self.apply(todo)
        bundles = [todo[s] for s in split_into_bundles(todo)]
        outcomes: list[Outcome | None] = []
        for joined, outcome in zip(bundles, await self.apply(map(join_changes, bundles)), strict=True):
            if isinstance(outcome, Applied):
                outcomes += split_outcome(outcome, joined)
            else:
                outcomes += [outcome] if len(joined) == 1 else [None] * len(joined)
        again = [change for change, outcome in zip(todo, outcomes, strict=True) if outcome is None]
        try:
            later = iter(await self.apply(again))
        except SessionLost as error:
            if any(isinstance(outcome, Applied) for outcome in outcomes):
                raise CoordinationLost("the session ended after a part of the changes") from error
            raise
        return [next(later) if outcome is None else outcome for outcome in outcomes]

    @abc.abstractmethod
    async def sync(self, path: str) -> None:
        """Makes later reads see all changes made under a path so far, and no session that has ended."""


Connect: TypeAlias = Callable[[float], Link]
"""Makes a link, not yet open; the argument is ``max_blocked_seconds``."""


def parent_path(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def split_into_bundles(changes: Sequence[Change], max_operations: int = MAX_OPERATIONS) -> Iterator[slice]:
    first, operations, weight = 0, 0, 0
    for index, change in enumerate(changes):
        more = estimate_bytes(change)
        if index > first and (operations + len(change) > max_operations or weight + more > MAX_BUNDLE_BYTES):
            yield slice(first, index)
            first, operations, weight = index, 0, 0
        operations += len(change)
        weight += more
    if first < len(changes):
        yield slice(first, len(changes))


def estimate_bytes(change: Change) -> int:
    return sum(OPERATION_OVERHEAD_BYTES + len(operation.path) + len(operation.data) for operation in change)


def join_changes(changes: Sequence[Change]) -> Change:
    return tuple(operation for change in changes for operation in change)


def split_outcome(done: Applied, changes: Sequence[Change]) -> Iterator[Applied]:
    start = 0
    for change in changes:
        yield Applied(done.versions[start : start + len(change)])
        start += len(change)


async def make_nodes(link: Link, paths: Iterable[str], max_missing_levels: int = MAX_MISSING_LEVELS) -> None:
    """Creates container nodes and their missing parents. Existing nodes are left as they are.

    Tries the given paths first and goes up only as far as parents are missing: the credentials may not allow requests
    further up.
    """
    missing = list(dict.fromkeys(path for path in paths if path != "/"))
    outcomes = await link.apply((Create(path),) for path in missing)
    orphans = [path for path, outcome in zip(missing, outcomes, strict=True) if lacks_parent(outcome)]
    if orphans and max_missing_levels:
        await make_nodes(link, map(parent_path, orphans), max_missing_levels - 1)
        await make_nodes(link, orphans, max_missing_levels - 1)


def lacks_parent(outcome: Outcome) -> bool:
    return isinstance(outcome, Rejection) and outcome.why is RejectionReason.NO_NODE


def yield_attempts(what: str, max_attempts: int = 25) -> Iterator[int]:
    """Yields once for each attempt at a change that may conflict with concurrent changes.

    Raises:
        CoordinationLost: All ``max_attempts`` attempts conflicted. The caller may try again later.
    """
    yield from range(max_attempts)
    raise CoordinationLost(f"too many concurrent changes of {what}; try again later")
