"""A session's cache of nodes, invalidated by watches.

The servers report the next change of a node that was read, before they answer later requests on the same connection. So
a node is not read again until then: of a thousand members, only new or changed ones are read. When the connection
breaks, the cache is cleared, because reports of changes may have been missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from qdo.group.zookeeper.tree import Link, NodeData


class WatchedNodes:
    """The nodes that a session has read and watches."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._nodes: dict[str, NodeData | None] = {}
        self._children: dict[str, list[str]] = {}
        self._pending_reads: list[set[str]] = []

    def invalidate(self, paths: Iterable[str]) -> None:
        """Drops changed nodes from the cache, and keeps reads in progress from caching them."""
        for path in paths:
            self._nodes.pop(path, None)
            self._children.pop(path, None)
            for pending in self._pending_reads:
                pending.discard(path)

    def forget(self) -> None:
        self._nodes.clear()
        self._children.clear()
        for pending in self._pending_reads:
            pending.clear()

    async def read_node(self, path: str) -> NodeData | None:
        return (await self.read_nodes([path]))[path]

    async def read_nodes(self, paths: Iterable[str]) -> dict[str, NodeData | None]:
        """Returns nodes, None for missing ones, and watches all for the next change.

        The cache is used only while the link is connected.
        """
        requested = list(paths)
        cached = self._nodes if self._link.state == "connected" else {}
        nodes = {path: cached[path] for path in requested if path in cached}
        missing = [path for path in requested if path not in nodes]
        while missing:
            with self._track_read(missing) as unchanged:
                read = dict(zip(missing, await self._link.read(missing, watch=True), strict=True))
                # A read watches only existing nodes.
                absent = [path for path, node in read.items() if node is None]
                rechecked = await self._link.stat(absent, watch=True) if absent else []
                missing = [path for path, node in zip(absent, rechecked, strict=True) if node is not None]
                nodes |= read
                self._nodes |= {path: read[path] for path in unchanged if path not in missing}
        return nodes

    async def read_children(self, path: str) -> list[str]:
        if path in self._children and self._link.state == "connected":
            return self._children[path]
        with self._track_read([path]) as unchanged:
            (names,) = await self._link.children([path], watch=True)
            if unchanged and names is not None:
                self._children[path] = names
        return names or []

    @contextmanager
    def _track_read(self, paths: Iterable[str]) -> Iterator[set[str]]:
        pending = set(paths)
        self._pending_reads.append(pending)
        try:
            yield pending
        finally:
            self._pending_reads = [other for other in self._pending_reads if other is not pending]
