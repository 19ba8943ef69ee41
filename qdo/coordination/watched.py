"""Nodes as one session sees them: read again only after a change.

The servers report the next change of a node that was read once, before they answer later requests on the same
connection. So nothing is read again until then: of a thousand members, only those are read that are new or have
changed. When the connection was broken, everything is forgotten, because changes may have been missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from qdo.coordination.tree import Link, NodeData


class WatchedNodes:
    """The nodes that one session has read and watches."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._nodes: dict[str, NodeData | None] = {}
        self._children: dict[str, list[str]] = {}
        self._asked: list[set[str]] = []

    def hear(self, paths: Iterable[str]) -> None:
        """Forgets nodes that changed, also as the results of reads that are under way."""
        for path in paths:
            self._nodes.pop(path, None)
            self._children.pop(path, None)
            for asked in self._asked:
                asked.discard(path)

    def forget(self) -> None:
        """Forgets everything, because changes were not reported for a while."""
        self._nodes.clear()
        self._children.clear()
        for asked in self._asked:
            asked.clear()

    async def node(self, path: str) -> NodeData | None:
        return (await self.nodes([path]))[path]

    async def nodes(self, paths: Iterable[str]) -> dict[str, NodeData | None]:
        """Returns nodes, None for those that do not exist, and watches each for its next change."""
        wanted = list(paths)
        known = self._nodes if self._link.state == "connected" else {}
        found = {path: known[path] for path in wanted if path in known}
        missing = [path for path in wanted if path not in found]
        while missing:
            with self._asking(missing) as unchanged:
                read = dict(zip(missing, await self._link.read(missing, watch=True), strict=True))
                # Only what is there is watched by a read.
                absent = [path for path, node in read.items() if node is None]
                there = await self._link.look(absent, watch=True) if absent else []
                missing = [path for path, node in zip(absent, there, strict=True) if node is not None]
                found |= read
                self._nodes |= {path: read[path] for path in unchanged if path not in missing}
        return found

    async def children(self, path: str) -> list[str]:
        """Returns the names of a node's children, none if it does not exist, and watches for the next change."""
        if path in self._children and self._link.state == "connected":
            return self._children[path]
        with self._asking([path]) as unchanged:
            (names,) = await self._link.children([path], watch=True)
            if unchanged and names is not None:
                self._children[path] = names
        return names or []

    @contextmanager
    def _asking(self, paths: Iterable[str]) -> Iterator[set[str]]:
        """Gives the paths of which no change was reported since they were asked for."""
        asked = set(paths)
        self._asked.append(asked)
        try:
            yield asked
        finally:
            self._asked = [each for each in self._asked if each is not asked]
