"""Where a queue lies that is moved, and a connection to it.

::

    /apps/orders              the queue, with a child for each item
    /apps/qdo-drain-orders    what a drain has taken out of it and not posted yet
    /apps/qdo-fill-orders     what a fill has put into it and not acknowledged yet

The names of the other two begin otherwise than the queue's, because Curator's QueueSharder takes each node for a part
of a queue that begins with ``queue-``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec

from qdo.coordination.tree import NodeData
from qdo.coordination.zookeeper import parse_url
from qdo.coordination.zookeeper.connection_options import checked_path
from qdo.coordination.zookeeper.driver import ZooKeeperLink
from qdo.errors import CuratorError

T = TypeVar("T")

WINDOW = 50
"""Max nodes that are read at a time: 50 MB with the default limit of the servers."""


class QueuePlace(NamedTuple):
    """A queue in ZooKeeper; ``path`` is counted from the root of the servers, ``shown`` as the caller gave it."""

    link: ZooKeeperLink
    path: str
    shown: str

    @property
    def drained(self) -> str:
        """The parent of the nodes that a drain has staged."""
        return self._beside("drain")

    @property
    def filled(self) -> str:
        """The node with the receipts that a fill has to acknowledge."""
        return self._beside("fill")

    def _beside(self, what: str) -> str:
        parent, _, name = self.path.rpartition("/")
        return f"{parent}/qdo-{what}-{name}"

    def child(self, name: str) -> str:
        return f"{self.path}/{name}"

    async def names(self) -> list[str]:
        """Returns the names of all children, in no order; raises CuratorError if there is no such node."""
        (names,) = await self.link.children([self.path])
        if names is None:
            raise CuratorError(
                f"ZooKeeper has no node {self.shown!r}. Compare the path with the one that the queue's program uses, "
                "and with the chroot of the connection."
            )
        return names

    async def read(self, names: list[str]) -> list[NodeData | None]:
        """Returns items; None for those that are gone."""
        return await self.link.read([self.child(name) for name in names])


def note_of(path: str, data: bytes, kind: type[T]) -> T:
    """Decodes a node that a drain or a fill has written beside a queue; raises CuratorError."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise CuratorError(
            f"The node {path!r} does not hold what this version of qdo writes there: {error}. If another version was "
            "interrupted, run that one again; otherwise keep a copy of the node, remove it, and run this again."
        ) from error


@asynccontextmanager
async def open_place(url: str, path: str, *, session_timeout: float | None = None) -> AsyncIterator[QueuePlace]:
    """Connects to the servers of a queue.

    Args:
        url: ``zookeeper://host:port,host:port/chroot?option=value``.
        path: Of the queue, within the chroot.
        session_timeout: Seconds; None: the default.

    Raises:
        InvalidArgument: The URL or the path cannot be used.
        CoordinationLost: No server answers.
    """
    checked_path("path", path)
    access = parse_url(url, session_timeout=session_timeout)
    link = ZooKeeperLink(access, None if access.tls is None else access.tls.context())
    try:
        await link.open()
        await link.sync("/")
        yield QueuePlace(link, access.chroot + path, path)
    finally:
        await link.close()
