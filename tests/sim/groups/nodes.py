"""The nodes of a coordination service in memory: transactions, ephemeral nodes, one-time watches."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from qdo.group.zookeeper.tree import (
    ANY_VERSION,
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
    parent_path,
)


class Watcher(Protocol):
    """Is notified of changed nodes."""

    def tell(self, path: str) -> None:
        """A watched node, or its children, changed."""


class Nodes:
    """The nodes and their watchers.

    Attributes:
        nodes: The nodes by path.
        largest: Size of the largest node ever, in bytes.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, NodeData] = {"/": NodeData(b"", 0, 0, 0)}
        self.largest = 0
        self.transactions = 0
        self._below: dict[str, set[str]] = defaultdict(set)
        self.watches: dict[str, dict[Watcher, None]] = defaultdict(dict)
        self.child_watches: dict[str, dict[Watcher, None]] = defaultdict(dict)
        self.sessions = itertools.count(1)

    def names(self, path: str) -> list[str] | None:
        return sorted(self._below[path]) if path in self.nodes else None

    def apply(self, session: int, change: Change) -> Outcome:
        """Carries out all operations, or none if one is refused. Notifies watchers only at the end."""
        before: list[tuple[str, NodeData | None]] = []
        changed: list[tuple[str, bool]] = []
        versions = []
        self.transactions += 1
        for index, operation in enumerate(change):
            if (why := self._reason_to_refuse(operation)) is not None:
                for path, node in reversed(before):
                    self._restore(path, node)
                return Rejection(why, index)
            before.append((operation.path, self.nodes.get(operation.path)))
            versions.append(self._carry_out(session, operation, changed))
        self._notify_watchers(changed)
        return Applied(tuple(versions))

    def end(self, session: int) -> None:
        """Deletes the ephemeral nodes of a session, each in its own transaction."""
        for path in [path for path, node in self.nodes.items() if node.session == session]:
            self.apply(0, (Delete(path),))

    def _restore(self, path: str, node: NodeData | None) -> None:
        """Sets a node to its former data; None removes it."""
        above, _, name = path.rpartition("/")
        if node is None:
            del self.nodes[path]
            self._below[above or "/"].discard(name)
        else:
            self.nodes[path] = node
            self._below[above or "/"].add(name)

    def _reason_to_refuse(self, operation: Operation) -> RejectionReason | None:
        node = self.nodes.get(operation.path)
        if isinstance(operation, Create):
            if node is not None:
                return RejectionReason.NODE_EXISTS
            return None if parent_path(operation.path) in self.nodes else RejectionReason.NO_NODE
        if node is None:
            return RejectionReason.NO_NODE
        if isinstance(operation, Delete):
            return RejectionReason.NOT_EMPTY if self._below[operation.path] else None
        return None if operation.version in {ANY_VERSION, node.version} else RejectionReason.BAD_VERSION

    def _carry_out(self, session: int, operation: Operation, changed: list[tuple[str, bool]]) -> int:
        """Returns the node's new version, 0 after a delete.

        Appends to ``changed`` the path, and whether it came or went.
        """
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

    def _notify_watchers(self, changed: Iterable[tuple[str, bool]]) -> None:
        """Notifies and removes the watchers of changed nodes, and of the parents of created or deleted ones."""
        for path, listed in changed:
            watchers = self.watches.pop(path, {})
            above = parent_path(path)
            for link in watchers:
                link.tell(path)
            for link in self.child_watches.pop(above, {}) if listed else ():
                link.tell(above)
