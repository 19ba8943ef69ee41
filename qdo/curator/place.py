"""Access to a queue that is drained, filled or peeked at: its paths, a connection, and its items.

::

    /apps/orders              the queue, with a child for each item
    /apps/qdo-drain-orders    batches that a drain has removed from the queue and not posted yet
    /apps/qdo-fill-orders     receipts of messages that a fill has put and not acknowledged yet

These names do not begin with the queue's name, because Curator's QueueSharder treats every node that begins with
``queue-`` as a shard of the queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

import msgspec

from qdo.curator.nodes import RECIPES, Child, RecipeNodes
from qdo.errors import BadItem, CuratorError
from qdo.group.zookeeper.connection_options import check_node_path
from qdo.group.zookeeper.connection_options import parse as parse_url
from qdo.group.zookeeper.link import ZooKeeperLink
from qdo.group.zookeeper.tree import NodeData

T = TypeVar("T")

MAX_NODES_PER_READ = 50
"""Max nodes that are read at a time: 50 MB with the default limit of the servers."""


class QueuePlace(NamedTuple):
    """A queue in ZooKeeper; ``path`` begins at the root of the servers, ``shown`` is the path that the caller gave."""

    link: ZooKeeperLink
    path: str
    shown: str

    @property
    def staging_path(self) -> str:
        return self._sibling_path("drain")

    @property
    def receipts_path(self) -> str:
        return self._sibling_path("fill")

    def _sibling_path(self, job: str) -> str:
        parent, _, name = self.path.rpartition("/")
        return f"{parent}/qdo-{job}-{name}"

    def child_path(self, name: str) -> str:
        return f"{self.path}/{name}"

    async def read_names(self) -> list[str]:
        (names,) = await self.link.children([self.path])
        if names is None:
            raise CuratorError(
                f"ZooKeeper has no node {self.shown!r}. Compare the path with the one that the queue's program uses, "
                "and with the chroot of the connection."
            )
        return names

    async def read(self, names: list[str]) -> list[NodeData | None]:
        return await self.link.read([self.child_path(name) for name in names])


def decode_node(path: str, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise CuratorError(
            f"The node {path!r} is not in the format of this version of qdo: {error}. If another version was "
            "interrupted, run that one again; otherwise keep a copy of the node, remove it, and run this again."
        ) from error


@asynccontextmanager
async def open_place(url: str, path: str, *, session_timeout: float | None = None) -> AsyncIterator[QueuePlace]:
    """Connects to the servers of a queue.

    Args:
        url: ``zookeeper://host:port,host:port/chroot?option=value``.
        path: Path of the queue, within the chroot.
        session_timeout: Seconds; the default timeout if None.

    Raises:
        InvalidArgument: The URL or the path is not valid.
        CoordinationLost: No server answers.
    """
    check_node_path("path", path)
    access = parse_url(url, session_timeout=session_timeout)
    link = ZooKeeperLink(access, None if access.tls is None else access.tls.context())
    try:
        await link.open()
        await link.sync("/")
        yield QueuePlace(link, access.chroot + path, path)
    finally:
        await link.close()


MAX_PREVIEW_CHARS = 100
MAX_SHOWN_MESSAGES = 100
"""Max messages of a node that are shown; a node of a megabyte may hold 200,000."""


class PeekedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item, as ``--json`` prints it.

    Attributes:
        name: Name of the node.
        sequence: Number of the node.
        priority: Priority in the name, or None.
        due: Earliest time of delivery in the name, in seconds since 1970, or None.
        id: Id in the name, or None.
        locked: True if a consumer holds it.
        bytes: Length of the node's data.
        count: Number of messages in the node.
        messages: The beginnings of the first hundred messages, as text.
        error: Why the data cannot be decoded; empty if it can.
    """

    name: str
    sequence: int
    priority: int | None
    due: float | None
    id: str | None
    locked: bool
    bytes: int
    count: int
    messages: list[str]
    error: str


class Peeked(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, as ``--json`` prints it.

    Attributes:
        path: Path of the queue.
        items: Number of items.
        others: Number of nodes with names of other recipes.
        staged: Number of batches that an interrupted drain has removed and not posted.
        first: The first items, in the order in which they are taken.
    """

    path: str
    items: int
    others: int
    staged: int
    first: list[PeekedItem]


async def peek(place: QueuePlace, recipe: str, *, limit: int, lock_path: str | None = None) -> Peeked:
    """Returns the first items of a queue.

    Args:
        place: The queue.
        recipe: ``queue``, ``priority``, ``delay``, ``id`` or ``simple``.
        limit: Max items.
        lock_path: The parent of the queue's locks, with the chroot; None if the queue has no lock path.

    Raises:
        CuratorError: The queue does not exist.
        CoordinationError: ZooKeeper did not answer or refused.
    """
    names = RECIPES[recipe]
    existing = await place.read_names()
    children = names.in_order(existing)
    paths = [place.staging_path] if lock_path is None else [place.staging_path, lock_path]
    staged, *locked = await place.link.children(paths)
    held = {name for locks in locked for name in locks or ()}
    first: list[PeekedItem] = []
    for start in range(0, min(limit, len(children)), MAX_NODES_PER_READ):
        window = children[start : min(limit, start + MAX_NODES_PER_READ)]
        nodes = await place.read([child.name for child in window])
        first += [
            _make_peeked_item(names, child, node, locked=child.name in held)
            for child, node in zip(window, nodes, strict=True)
            if node is not None
        ]
    return Peeked(
        path=place.shown,
        items=len(children),
        others=len(existing) - len(children),
        staged=len(staged or ()),
        first=first,
    )


def _make_peeked_item(names: RecipeNodes, child: Child, node: NodeData, *, locked: bool) -> PeekedItem:
    error, messages = "", list[bytes]()
    try:
        messages = names.messages(node.data)
    except BadItem as why:
        error = str(why)
    return PeekedItem(
        name=child.name,
        sequence=child.sequence,
        priority=child.priority,
        due=child.epoch / 1000 if child.epoch else None,
        id=child.id,
        locked=locked,
        bytes=len(node.data),
        count=len(messages),
        messages=[
            body[: 4 * MAX_PREVIEW_CHARS].decode("utf-8", "replace")[:MAX_PREVIEW_CHARS]
            for body in messages[:MAX_SHOWN_MESSAGES]
        ],
        error=error,
    )
