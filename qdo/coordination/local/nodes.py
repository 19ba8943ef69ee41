"""The nodes and sessions of a tree: what is done inside a transaction on the file.

**Sessions.** A session ends at an instant of a clock that all processes of the machine share and that starts again
with the machine. Every transaction of a session asks first whether it has ended (:func:`require`), and every change
removes sessions that have, with their nodes. Only one process writes at a time, and it reads the clock after it has the
lock. So whatever is recorded for a session was recorded before another could take what it had.

**Watches** are kept by the session that watches (:class:`Watches`): it compares the numbers of the transactions that
changed nodes with those that it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from qdo.coordination.local.database import FileTransaction
from qdo.coordination.tree import (
    ANY,
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
)
from qdo.errors import SessionLost

LIVE = "expires > ? AND expires <= ? + timeout"
"""An end further off than the timeout is from before the machine was last started."""
ABSENT = (0,)
"""The number of a transaction, of a node that is not there."""


def ended() -> SessionLost:
    return SessionLost("the session has ended: its partitions may be somebody else's by now")


def split(path: str) -> tuple[str, str]:
    """Returns the columns ``parent`` and ``name`` of a node."""
    above, _, name = path.rpartition("/")
    return above, name


def read(tx: FileTransaction, paths: Iterable[str]) -> list[NodeData | None]:
    wanted = list(paths)
    found = _columns(tx, "data, version, changed, ifnull(session, 0)", wanted)
    return [NodeData(*found[path]) if path in found else None for path in wanted]


def children(tx: FileTransaction, paths: Iterable[str]) -> list[list[str] | None]:
    wanted = list(paths)
    found = _columns(tx, "1", wanted)
    query = "SELECT name FROM nodes WHERE parent = ? AND name != ''"
    return [[name for (name,) in tx.rows(query, path.rstrip("/"))] if path in found else None for path in wanted]


def _columns(tx: FileTransaction, columns: str, paths: Iterable[str]) -> dict[str, Sequence[Any]]:
    """Reads columns of the nodes that are there, those of one parent by one statement."""
    names: dict[str, list[str]] = {}
    for path in paths:
        above, name = split(path)
        names.setdefault(above, []).append(name)
    query = f"SELECT name, {columns} FROM nodes WHERE parent = ? AND name IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
    return {
        f"{above}/{name}": row
        for above, several in names.items()
        for name, *row in tx.rows(query, above, msgspec.json.encode(several).decode())
    }


class Watches:
    """The nodes and lists of children that a session watches, with the transaction that had changed each when read."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        self._children: dict[str, int] = {}
        self._looked = -1

    def outdated(self, last_watchable: int) -> bool:
        """Returns whether something that is watched may have changed, up to a transaction."""
        return last_watchable != self._looked and bool(self._nodes or self._children)

    def nodes(self, tx: FileTransaction, paths: Sequence[str], *, absent: bool = False) -> None:
        """Watches nodes that are there, or also those that are absent."""
        _add(self._nodes, tx, "changed", paths, absent=absent)

    def children(self, tx: FileTransaction, paths: Sequence[str]) -> None:
        _add(self._children, tx, "listed", paths, absent=False)

    def changed(self, tx: FileTransaction) -> list[str]:
        """Returns the watched paths that have changed, which are not watched any more."""
        (last,) = tx.one("SELECT watchable FROM counter")
        if last == self._looked:
            return []
        self._looked = last
        moved = []
        for watched, column in ((self._nodes, "changed"), (self._children, "listed")):
            now = _columns(tx, column, watched)
            gone = [path for path, seen in watched.items() if now.get(path, ABSENT)[0] != seen]
            for path in gone:
                del watched[path]
            moved += gone
        return moved


def _add(watched: dict[str, int], tx: FileTransaction, column: str, paths: Sequence[str], *, absent: bool) -> None:
    found = _columns(tx, column, paths)
    for path in paths:
        if path in found or absent:
            watched.setdefault(path, found.get(path, ABSENT)[0])


def require(tx: FileTransaction, session: int) -> None:
    if not tx.one(f"SELECT 1 FROM sessions WHERE id = ? AND {LIVE}", session, tx.now, tx.now):  # noqa: S608 - constants
        raise ended()


def renew(tx: FileTransaction, session: int) -> float | None:
    """Gives a session's sign of life; returns when it ends now, None if it has ended."""
    change = f"UPDATE sessions SET expires = ? + timeout WHERE id = ? AND {LIVE} RETURNING expires"  # noqa: S608 - constants
    row = tx.one(change, tx.now, session, tx.now, tx.now)
    return row and float(row[0])


def dead(tx: FileTransaction) -> list[int]:
    query = f"SELECT id FROM sessions WHERE NOT ({LIVE})"  # noqa: S608 - constants
    return [session for (session,) in tx.rows(query, tx.now, tx.now)]


def others(tx: FileTransaction, scope: str, session: int) -> dict[int, float]:
    """Returns the other sessions of a scope, with the instants of their ends."""
    return dict(tx.rows("SELECT id, expires FROM sessions WHERE scope = ? AND id != ?", scope, session))


class NodeChanges:
    """Changes that one session makes in one transaction.

    Args:
        tx: The transaction.
        session: The session.
        may_be_watched: Returns whether a session may be watching what an operation changes.

    Attributes:
        watchable: Something was changed that a session may be watching.
        last_watchable: Number of the last transaction that did so, this one included.
    """

    def __init__(self, tx: FileTransaction, session: int, may_be_watched: Callable[[Operation], bool]) -> None:
        self.tx = tx
        self.watchable = False
        self._session = session
        self._may_be_watched = may_be_watched
        before, self.last_watchable = tx.one("SELECT number, watchable FROM counter")
        self._number: int = before + 1
        self._listed: set[str] = set()

    def begin(self, scope: str, timeout: float) -> float:
        expires = self.tx.now + timeout
        self.tx.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", (self._session, scope, timeout, expires))
        return expires

    def remove(self, sessions: Iterable[int]) -> None:
        for session in sessions:
            self.tx.execute("DELETE FROM sessions WHERE id = ?", (session,))
            for (above,) in self.tx.rows("DELETE FROM nodes WHERE session = ? RETURNING parent", session):
                self._listed.add(above)
                self.watchable = True

    def make(self, change: Change) -> Outcome:
        """Makes a change, all of it or nothing."""
        # One that only checks before it writes once leaves nothing when it is refused.
        undo = any(not isinstance(operation, Check) for operation in change[:-1])
        if undo:
            self.tx.execute("SAVEPOINT change")
        versions = []
        for at, operation in enumerate(change):
            version = self._do(operation)
            if version is None:
                if undo:
                    self.tx.execute("ROLLBACK TO change; RELEASE change")
                return Rejection(self._why_not(operation), at)
            versions.append(version)
        if undo:
            self.tx.execute("RELEASE change")
        for operation in change:
            if not isinstance(operation, Check):
                self.watchable = self.watchable or self._may_be_watched(operation)
                if not isinstance(operation, SetData):
                    self._listed.add(split(operation.path)[0])
        return Applied(tuple(versions))

    def _do(self, operation: Operation) -> int | None:
        """Does one operation; returns the node's version afterwards, None if nothing was done."""
        above, _, name = operation.path.rpartition("/")
        version = 0
        if isinstance(operation, Check):
            return version if self.tx.one(CHECK, above, name, operation.version, ANY) else None
        if isinstance(operation, SetData):
            if (version := operation.version + 1) == ANY + 1:
                found = self.tx.one(SET_ANY_DATA, operation.data, self._number, above, name)
                return found and int(found[0])
            self.tx.execute(SET_DATA, (operation.data, self._number, above, name, operation.version))
        elif isinstance(operation, Create):
            owner = self._session if operation.ephemeral else None
            self.tx.execute(CREATE, (above, name, operation.data, self._number, owner, *split(above)))
        else:
            self.tx.execute(DELETE, (above, name, operation.path))
        return version if self.tx.changes() else None

    def _why_not(self, operation: Operation) -> RejectionReason:
        there = bool(_columns(self.tx, "1", [operation.path]))
        if isinstance(operation, Create):
            return RejectionReason.NODE_EXISTS if there else RejectionReason.NO_NODE
        if not there:
            return RejectionReason.NO_NODE
        return RejectionReason.NOT_EMPTY if isinstance(operation, Delete) else RejectionReason.BAD_VERSION

    def finish(self) -> None:
        """Numbers the transaction; to be called last."""
        if self.watchable:
            self.last_watchable = self._number
        # Otherwise versions went up, and nothing else happened: a commit writes no page for the counter.
        if self.watchable or self._listed:
            self.tx.execute("UPDATE counter SET number = ?, watchable = ?", (self._number, self.last_watchable))
        for path in self._listed:
            self.tx.execute("UPDATE nodes SET listed = ? WHERE parent = ? AND name = ?", (self._number, *split(path)))


CREATE = """INSERT INTO nodes (parent, name, data, version, changed, listed, session)
    SELECT ?, ?, ?, 0, ?4, ?4, ? WHERE EXISTS (SELECT 1 FROM nodes WHERE parent = ? AND name = ?)
    ON CONFLICT DO NOTHING"""

SET_ANY_DATA = """UPDATE nodes SET data = ?, version = version + 1, changed = ? WHERE parent = ? AND name = ?
    RETURNING version"""
SET_DATA = "UPDATE nodes SET data = ?, version = version + 1, changed = ? WHERE parent = ? AND name = ? AND version = ?"

DELETE = """DELETE FROM nodes WHERE parent = ? AND name = ?
    AND NOT EXISTS (SELECT 1 FROM nodes AS child WHERE child.parent = ?)"""

CHECK = "SELECT 0 FROM nodes WHERE parent = ? AND name = ? AND ? IN (version, ?)"
