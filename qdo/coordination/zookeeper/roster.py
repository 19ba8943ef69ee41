"""Who is in the group, and single nodes, as one session sees them: read again only where something is another.

The servers tell once of the next change of what was read, before they answer anything that is asked later on the same
connection. So nothing is asked for until that is heard: of a thousand members those are read that came or said
something new. When the connection was broken everything is forgotten, as changes may have been missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from qdo.coordination import Member
from qdo.coordination.encoding import decode_member
from qdo.coordination.zookeeper.changes import Node
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.tree import Tree, decode


class Roster:
    """The members of a group.

    Args:
        link: The session.
        tree: The group's paths.
    """

    def __init__(self, link: Link, tree: Tree) -> None:
        self._link = link
        self._tree = tree
        self._nodes: list[str] | None = None
        self._heard = 0
        self._known: dict[str, Member] = {}
        self._reading: set[str] = set()
        self._lock = asyncio.Lock()

    def hear(self, paths: Iterable[str]) -> None:
        """Forgets what changed."""
        for path in paths:
            if path == self._tree.members:
                self._forget_nodes()
            self._known.pop(path, None)
            self._reading.discard(path)

    def forget(self) -> None:
        """Forgets everything: nobody told of changes for a while."""
        self._forget_nodes()
        self._known.clear()
        self._reading.clear()

    async def members(self) -> dict[str, Member]:
        """Returns the members by id, and has the next change of any of them told.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        async with self._lock:
            paths = {decode(node): f"{self._tree.members}/{node}" for node in await self._present()}
            present = set(paths.values())
            for path in self._known.keys() - present:
                del self._known[path]
            members = dict(self._known)
            members |= await self._read(present - self._known.keys())
        return {member: members[path] for member, path in sorted(paths.items()) if path in members}

    async def _present(self) -> list[str]:
        """Returns the names of the members' nodes."""
        if self._nodes is not None and self._link.state == "connected":
            return self._nodes
        heard = self._heard
        (nodes,) = await self._link.children([self._tree.members], watch=True)
        if heard == self._heard:
            self._nodes = nodes
        return nodes or []

    def _forget_nodes(self) -> None:
        self._nodes = None
        self._heard += 1

    async def _read(self, paths: set[str]) -> dict[str, Member]:
        """Reads members; what changes before it is kept is returned and not kept."""
        wanted = sorted(paths)
        self._reading = set(wanted)
        nodes = await self._link.read(wanted, watch=True)
        found = {path: decode_member(node.data) for path, node in zip(wanted, nodes, strict=True) if node is not None}
        self._known.update((path, member) for path, member in found.items() if path in self._reading)
        return found


class Watched:
    """One node, read again only when the servers told of a change.

    Args:
        link: The session.
        path: The node.
    """

    def __init__(self, link: Link, path: str) -> None:
        self._link = link
        self._path = path
        self._heard = 0
        self._known: tuple[Node | None] | None = None

    def hear(self, paths: Iterable[str]) -> None:
        """Forgets the node if it changed."""
        if self._path in paths:
            self.forget()

    def forget(self) -> None:
        """Forgets the node."""
        self._known = None
        self._heard += 1

    async def read(self) -> Node | None:
        """Returns the node, None if it is not there, and has the next change told.

        Raises:
            CoordinationLost, SessionLost, CoordinationRefused
        """
        if self._known is not None and self._link.state == "connected":
            return self._known[0]
        while True:
            heard = self._heard
            (node,) = await self._link.read([self._path], watch=True)
            if node is None:
                # Only what is there is watched by a read.
                (there,) = await self._link.look([self._path], watch=True)
                if there is not None:
                    continue
            if heard == self._heard:
                self._known = (node,)
            return node
