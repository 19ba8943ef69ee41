"""The nodes and sessions of a tree: what is done inside a transaction on the file.

**Sessions.** A session ends at an instant of a clock that all processes of the machine share and that starts again
with the machine. Every transaction of a session asks first whether it has ended (:func:`require`), and every change
removes sessions that have, with their nodes. Only one process writes at a time, and it reads the clock after it has the
lock. So whatever is recorded for a session was recorded before another could take what it had.

**Watches** are kept by whoever watches (:class:`Watches`): the numbers of the transactions that changed nodes are
compared with those that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


def ended() -> SessionLost:
    """Returns the error of a session that has ended."""
    return SessionLost("the session has ended: its partitions may be somebody else's by now")


def split(path: str) -> tuple[str, str]:
    """Returns the path that a node lies in, and its name."""
    parent, _, name = path.rpartition("/")
    return parent, name


def read(tx: FileTransaction, path: str) -> NodeData | None:
    """Returns a node."""
    row = tx.one("SELECT data, version, changed, session FROM nodes WHERE parent = ? AND name = ?", *split(path))
    return row and NodeData(row[0], row[1], row[2], row[3] or 0)


def children(tx: FileTransaction, path: str) -> list[str] | None:
    """Returns the names of the nodes in a node; None: it is not there."""
    names = tx.rows("SELECT name FROM nodes WHERE parent = ? AND name != ''", path.rstrip("/"))
    return [name for (name,) in names] if names or _numbers(tx, path) else None


def _numbers(tx: FileTransaction, path: str) -> tuple[int, int] | None:
    """Returns the transactions that set a node's data and listed its children last."""
    found: tuple[int, int] | None = tx.one(
        "SELECT changed, listed FROM nodes WHERE parent = ? AND name = ?", *split(path)
    )
    return found


class Watches:
    """What one session watches."""

    def __init__(self) -> None:
        self._nodes: dict[str, int] = {}
        self._children: dict[str, int] = {}
        self._looked = -1

    def node(self, tx: FileTransaction, path: str, *, absent: bool = False) -> None:
        """Watches a node if it is there, or also if it is absent."""
        if (numbers := _numbers(tx, path)) or absent:
            self._nodes.setdefault(path, numbers[0] if numbers else 0)

    def children(self, tx: FileTransaction, path: str) -> None:
        """Watches the children of a node, if it is there."""
        if numbers := _numbers(tx, path):
            self._children.setdefault(path, numbers[1])

    def changed(self, tx: FileTransaction) -> list[str]:
        """Returns the watched paths that have changed, which are not watched any more."""
        (last,) = tx.one("SELECT watchable FROM counter")
        if last == self._looked:
            return []
        self._looked = last
        moved = []
        for watched, which in ((self._nodes, 0), (self._children, 1)):
            for path, seen in list(watched.items()):
                numbers = _numbers(tx, path)
                if (numbers[which] if numbers else 0) != seen:
                    del watched[path]
                    moved.append(path)
        return moved


def require(tx: FileTransaction, session: int) -> None:
    """Raises SessionLost if a session has ended."""
    if not tx.one(f"SELECT 1 FROM sessions WHERE id = ? AND {LIVE}", session, tx.now, tx.now):  # noqa: S608 - constants
        raise ended()


def renew(tx: FileTransaction, session: int) -> float | None:
    """Gives a session's sign of life; returns when it ends now, None if it has ended."""
    change = f"UPDATE sessions SET expires = ? + timeout WHERE id = ? AND {LIVE} RETURNING expires"  # noqa: S608 - constants
    row = tx.one(change, tx.now, session, tx.now, tx.now)
    return row and float(row[0])


def dead(tx: FileTransaction, scope: str) -> list[int]:
    """Returns the sessions of a scope that have ended."""
    query = f"SELECT id FROM sessions WHERE scope = ? AND NOT ({LIVE})"  # noqa: S608 - constants
    return [session for (session,) in tx.rows(query, scope, tx.now, tx.now)]


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
    """

    def __init__(self, tx: FileTransaction, session: int, may_be_watched: Callable[[Operation], bool]) -> None:
        self.tx = tx
        self.watchable = False
        self._session = session
        self._may_be_watched = may_be_watched
        (before,) = tx.one("SELECT number FROM counter")
        self._number: int = before + 1
        self._listed: set[str] = set()
        self._any = False

    def begin(self, scope: str, timeout: float) -> float:
        """Begins the session; returns when it ends."""
        expires = self.tx.now + timeout
        self.tx.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", (self._session, scope, timeout, expires))
        return expires

    def remove(self, sessions: Iterable[int]) -> None:
        """Removes sessions with their nodes."""
        for session in sessions:
            self.tx.execute("DELETE FROM sessions WHERE id = ?", (session,))
            for parent, _ in self.tx.rows("DELETE FROM nodes WHERE session = ? RETURNING parent, name", session):
                self._listed.add(parent)
                self._any = self.watchable = True

    def make(self, change: Change) -> Outcome:
        """Makes a change, all of it or nothing."""
        self.tx.execute("SAVEPOINT change")
        versions = []
        for at, operation in enumerate(change):
            done = self._do(operation)
            if isinstance(done, RejectionReason):
                self.tx.execute("ROLLBACK TO change; RELEASE change")
                return Rejection(done, at)
            versions.append(done)
        self.tx.execute("RELEASE change")
        for operation in change:
            if not isinstance(operation, Check):
                self._any = True
                self.watchable = self.watchable or self._may_be_watched(operation)
                if not isinstance(operation, SetData):
                    self._listed.add(split(operation.path)[0])
        return Applied(tuple(versions))

    def _do(self, operation: Operation) -> int | RejectionReason:
        """Does one operation; returns the node's version afterwards, or why nothing was done."""
        place = split(operation.path)
        match operation:
            case Create(_, data, ephemeral):
                row = *place, data, self._number, self._session if ephemeral else None, *split(place[0])
                self.tx.execute(CREATE, row)
                found = (0,) if self.tx.changes() else None
            case SetData(_, data, version):
                found = self.tx.one(SET_DATA, data, self._number, *place, version, ANY)
            case Delete(path):
                self.tx.execute(DELETE, (*place, path))
                found = (0,) if self.tx.changes() else None
            case Check(_, version):
                found = self.tx.one(CHECK, *place, version, ANY)
        return self._why_not(operation) if found is None else int(found[0])

    def _why_not(self, operation: Operation) -> RejectionReason:
        there = _numbers(self.tx, operation.path) is not None
        if isinstance(operation, Create):
            return RejectionReason.NODE_EXISTS if there else RejectionReason.NO_NODE
        if not there:
            return RejectionReason.NO_NODE
        return RejectionReason.NOT_EMPTY if isinstance(operation, Delete) else RejectionReason.BAD_VERSION

    def finish(self) -> None:
        """Numbers the transaction; to be called last."""
        if self._any:
            self.tx.execute("UPDATE counter SET number = ?", (self._number,))
        if self.watchable:
            self.tx.execute("UPDATE counter SET watchable = number")
        for path in self._listed:
            self.tx.execute("UPDATE nodes SET listed = ? WHERE parent = ? AND name = ?", (self._number, *split(path)))


CREATE = """INSERT INTO nodes (parent, name, data, version, changed, listed, session)
    SELECT ?, ?, ?, 0, ?4, ?4, ? WHERE EXISTS (SELECT 1 FROM nodes WHERE parent = ? AND name = ?)
    ON CONFLICT DO NOTHING"""

SET_DATA = """UPDATE nodes SET data = ?, version = version + 1, changed = ? WHERE parent = ? AND name = ?
    AND ? IN (version, ?) RETURNING version"""

DELETE = """DELETE FROM nodes WHERE parent = ? AND name = ?
    AND NOT EXISTS (SELECT 1 FROM nodes AS child WHERE child.parent = ?)"""

CHECK = "SELECT 0 FROM nodes WHERE parent = ? AND name = ? AND ? IN (version, ?)"
