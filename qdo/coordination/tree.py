"""The contract of a coordination service: a tree of nodes with versions, as ZooKeeper has it, and one session on it.

A node has data, a version that goes up with each change of the data, and children. An ephemeral node is gone when the
session that made it ends. A change consists of operations on nodes that are done all or not at all.

**States of a session**::

    new ──► connected ◄──► suspended
                │              │
                └──► lost ◄────┘      final: a link is never used for a second session

The session is lost when the service says so, when nothing was heard from the service for the session's time, or when
the link is closed. A request whose answer is missing when the connection breaks is in doubt: it raises
``CoordinationLost``, and nothing is sent a second time.

Group state (:mod:`qdo.coordination.session`) stands on this alone. :mod:`qdo.coordination.zookeeper` implements
it. A new implementation has to pass ``tests/qdo/contract``.
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

ANY = -1
"""Version that every node has."""
NODE_LIMIT = 1_000_000
"""Max bytes of a node; a server of ZooKeeper breaks the connection at about 1 MiB with all that is around it."""
MAX_WAIT_SECONDS = 1.5
"""Timeout in seconds of :meth:`Link.wait`."""
MOST_OPERATIONS = 128
MOST_BYTES = 256 * 1024
"""Max bytes of one bundle: a quarter of what a server accepts in one packet."""
OVERHEAD = 64
"""Number of bytes of an operation beside its path and its data, roughly: numbers and access lists."""
UNREPORTED_SECONDS = 0.01
"""Interval in seconds between looks at a connection that is seen to be broken, which was not reported yet."""


class Create(msgspec.Struct, frozen=True, gc=False):
    """Makes a node, which is gone with the session if it is ephemeral. No other node can be in an ephemeral one.

    ``sequence`` is for queues of Curator: ZooKeeper completes the name by a number. Other trees need not.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetData(msgspec.Struct, frozen=True, gc=False):
    """Replaces the data of a node that has a version; its version goes up by one."""

    path: str
    data: bytes
    version: int


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Removes a node."""

    path: str
    data: bytes = b""
    """Always empty."""


class Check(msgspec.Struct, frozen=True, gc=False):
    """Demands that a node is there, at any version or at one."""

    path: str
    version: int = ANY
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
    """A change that did not happen.

    Attributes:
        why: The reason.
        at: The number of the operation that failed, from 0.
    """

    why: RejectionReason
    at: int


class Applied(msgspec.Struct, frozen=True, gc=False):
    """A change that happened.

    Attributes:
        versions: For each operation the version of the node afterwards, 0 where there is none.
        created: The paths of the nodes that it made, if the tree has completed the name of one; :meth:`Link.apply_each`
            leaves them out.
    """

    versions: tuple[int, ...]
    created: tuple[str, ...] = ()


Outcome: TypeAlias = Applied | Rejection


class NodeData(msgspec.Struct, frozen=True, gc=False):
    """A node as it was read.

    Attributes:
        data: Empty when only its presence was asked for.
        version: Of the data.
        changed: A number that grows with transactions. Two states of a path differ in it or in the version.
        session: The session that made it if it is ephemeral, else 0.
    """

    data: bytes
    version: int
    changed: int
    session: int


State: TypeAlias = Literal["new", "connected", "suspended", "lost"]


class Link(abc.ABC):
    """One session on a tree, from its beginning to its end. To be made and used in one event loop.

    Args:
        outlast: Seconds for which a helper process keeps the session alive while this program is held up; 0: there is
            none.

    Attributes:
        outlast: As given.
        session: Its number, never that of another; in :class:`NodeData` of the ephemeral nodes that it made.
        on_state: Called when the state changes; not for ``lost`` by :meth:`close`.
        on_watch: Called with the paths of watched nodes that changed, before later requests are answered. A watch
            reports one change.
    """

    session: int = 0

    def __init__(self, outlast: float) -> None:
        self.outlast = outlast
        self.on_state: Callable[[State], None] = lambda _: None
        self.on_watch: Callable[[list[str]], None] = lambda _: None
        self._settled = asyncio.Event()
        """The connection is there, or the session is lost."""

    @property
    @abc.abstractmethod
    def state(self) -> State:
        """The present state, also if ``on_state`` was not called for it yet."""

    @property
    @abc.abstractmethod
    def timeout(self) -> float:
        """Seconds without a sign of life after which the service ends the session."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """Nothing of it is left but this object."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Connects.

        Raises:
            CoordinationLost: Not within the time allowed.
            CoordinationRefused: The service does not accept the credentials.
            CoordinationIncompatible: What is there is no tree of ours.
        """

    async def wait(self) -> State:
        """Waits a little for a connection that broke to be back; returns the state that it has then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await self._settled.wait()
                while self.state == "suspended":  # seen by looking, and not reported yet
                    await asyncio.sleep(UNREPORTED_SECONDS)
                    await self._settled.wait()
        return self.state

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the session; waits until the service knows, if it can be reached. Never raises; idempotent."""

    async def abandon(self) -> None:
        """Ends the session, or leaves its end to the service if that cannot be reached now. Never raises."""
        await self.close()

    @abc.abstractmethod
    def end(self, why: CoordinationError) -> None:
        """Ends the session at once and reports it; requests raise the error from then on."""

    @abc.abstractmethod
    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """Returns nodes, None for those that are not there; only those that are there are watched.

        This method and the following ones raise ``CoordinationLost``, ``SessionLost`` and ``CoordinationRefused``.
        """

    @abc.abstractmethod
    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """Returns nodes without their data, None for those that are not there; all of them are watched."""

    @abc.abstractmethod
    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """Returns the names of the nodes inside of nodes, None for those that are not there.

        Watched are nodes that are there, for children that come and go.
        """

    async def count(self, paths: Iterable[str]) -> list[int | None]:
        """Returns how many nodes are inside of each node, None if it does not exist."""
        return [None if names is None else len(names) for names in await self.children(paths)]

    @abc.abstractmethod
    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        """Makes changes, each for itself, in order; returns the outcome of each.

        Raises:
            CoordinationLost: Each was made or not.
            SessionLost: None was made.
            CoordinationRefused: The credentials do not allow one; each of the rest was made or not.
        """

    async def apply_each(self, changes: Iterable[Change]) -> list[Outcome]:
        """Makes changes that do not depend on each other, each for itself, in any order; see :meth:`apply`.

        A transaction costs ZooKeeper a round of agreement and the client a packet. So several changes go in bundles;
        when a bundle is refused because of one of them, each is sent again for itself.
        """
        todo = list(changes)
        if len(todo) == 1:
            return await self.apply(todo)
        bundles = [todo[part] for part in bundle(todo)]
        outcomes: list[Outcome | None] = []
        for joined, outcome in zip(bundles, await self.apply(map(join, bundles)), strict=True):
            if isinstance(outcome, Applied):
                outcomes += split(outcome, joined)
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
        """Makes later reads see all that others changed under a path before, and no session that has ended."""


Connect: TypeAlias = Callable[[float], Link]
"""Makes a link that is not open, for ``outlast``."""


def parent(path: str) -> str:
    """Returns the path of the node that a node lies in; the root lies in itself."""
    return path.rpartition("/")[0] or "/"


def bundle(changes: Sequence[Change], most: int = MOST_OPERATIONS) -> Iterator[slice]:
    """Yields which changes go together, in order."""
    first, operations, weight = 0, 0, 0
    for index, change in enumerate(changes):
        more = size(change)
        if index > first and (operations + len(change) > most or weight + more > MOST_BYTES):
            yield slice(first, index)
            first, operations, weight = index, 0, 0
        operations += len(change)
        weight += more
    if first < len(changes):
        yield slice(first, len(changes))


def size(change: Change) -> int:
    """Returns about how many bytes a change takes."""
    return sum(OVERHEAD + len(each.path) + len(each.data) for each in change)


def join(changes: Sequence[Change]) -> Change:
    return tuple(operation for change in changes for operation in change)


def split(done: Applied, changes: Sequence[Change]) -> Iterator[Applied]:
    """Yields the outcome of each of the changes that were joined."""
    at = 0
    for change in changes:
        yield Applied(done.versions[at : at + len(change)])
        at += len(change)
