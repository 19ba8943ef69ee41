"""Shows the items of a Curator queue without taking any."""

from __future__ import annotations

import msgspec

from qdo.coordination.tree import NodeData
from qdo.curator.drain import decoded
from qdo.curator.names import RECIPES, Child, Names
from qdo.curator.place import WINDOW, QueuePlace
from qdo.errors import BadItem

PREVIEW = 100
"""Max characters of a message that are shown."""
MOST_SHOWN = 100
"""Max messages of a node that are shown; a node of a megabyte may hold 200,000."""


class PeekedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item, as ``--json`` prints it.

    Attributes:
        name: Of the node.
        sequence: Its number.
        priority: Of a priority queue's item.
        due: Of a delay queue's item, seconds since 1970.
        id: Of an id queue's item.
        locked: A consumer has it.
        bytes: What the node holds.
        count: How many messages it holds.
        messages: The beginning of each message, as text; of the first hundred.
        error: Why the data cannot be read; empty: it can.
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
        path: Of the queue.
        items: Number of its nodes.
        others: Number of nodes beside them whose names the recipe does not know.
        staged: Batches that an interrupted drain has taken out and not posted.
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
        lock_path: Of the queue, with the chroot; None: it has none.

    Raises:
        CuratorError: There is no such queue.
        CoordinationError
    """
    names = RECIPES[recipe]
    there = await place.names()
    children = names.in_order(there)
    paths = [place.drained] if lock_path is None else [place.drained, lock_path]
    staged, *locked = await place.link.children(paths)
    held = {name for each in locked for name in each or ()}
    first: list[PeekedItem] = []
    for start in range(0, min(limit, len(children)), WINDOW):
        window = children[start : min(limit, start + WINDOW)]
        nodes = await place.read([child.name for child in window])
        first += [
            _peeked(names, child, node, locked=child.name in held)
            for child, node in zip(window, nodes, strict=True)
            if node is not None
        ]
    return Peeked(
        path=place.shown, items=len(children), others=len(there) - len(children), staged=len(staged or ()), first=first
    )


def _peeked(names: Names, child: Child, node: NodeData, *, locked: bool) -> PeekedItem:
    error, messages = "", list[bytes]()
    try:
        messages = decoded(names, node.data)
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
        messages=[body[: 4 * PREVIEW].decode("utf-8", "replace")[:PREVIEW] for body in messages[:MOST_SHOWN]],
        error=error,
    )
