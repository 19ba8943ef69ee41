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
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

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

T = TypeVar("T")
Place: TypeAlias = tuple[int | None, str]
"""The columns ``parent`` and ``name`` of a node; None: nothing was ever in that parent."""
LIVE = "expires > ? AND expires <= ? + timeout"
"""An end further off than the timeout is from before the machine was last started."""
ABSENT = (0,)
"""The number of a transaction, of a node that is not there."""


def ended() -> SessionLost:
    return SessionLost("the session has ended: its partitions may be somebody else's by now")


def place(tx: FileTransaction, path: str) -> Place:
    above, _, name = path.rpartition("/")
    return parent_id(tx, above), name


def parent_id(tx: FileTransaction, path: str) -> int | None:
    """Returns the id of a node that others are in, or were; the root's path is empty here."""
    if path not in tx.parent_ids:
        row = tx.one("SELECT id FROM parents WHERE path = ?", path)
        if row is None:
            return None
        tx.parent_ids[path] = row[0]
    return tx.parent_ids[path]


def read(tx: FileTransaction, paths: Iterable[str]) -> list[NodeData | None]:
    rows = _columns(tx, "data, version, changed, ifnull(session, 0)", paths)
    return [row and NodeData(*row) for row in rows]


def children(tx: FileTransaction, paths: Sequence[str]) -> list[list[str] | None]:
    query = "SELECT name FROM nodes WHERE parent = ? AND name != ''"
    return [
        there and [name for (name,) in tx.rows(query, parent_id(tx, path.rstrip("/")))]
        for path, there in zip(paths, _columns(tx, "1", paths), strict=True)
    ]


def _columns(tx: FileTransaction, columns: str, paths: Iterable[str]) -> list[Any]:
    """Returns columns of each node, None for nodes that are not there."""
    query = f"SELECT {columns} FROM nodes WHERE parent = ? AND name = ?"  # noqa: S608 - constants
    places = [place(tx, path) for path in paths]
    rows = tx.each(query, places).fetchall()
    # A missing node has no row. Which one it is shows when they are read one by one.
    return rows if len(rows) == len(places) else [tx.one(query, *each) for each in places]


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
            now = zip(watched.items(), _columns(tx, column, watched), strict=True)
            gone = [path for (path, seen), row in now if (row or ABSENT)[0] != seen]
            for path in gone:
                del watched[path]
            moved += gone
        return moved


def _add(watched: dict[str, int], tx: FileTransaction, column: str, paths: Sequence[str], *, absent: bool) -> None:
    for path, row in zip(paths, _columns(tx, column, paths), strict=True):
        if absent or row:
            watched.setdefault(path, (row or ABSENT)[0])


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


MayBeWatched: TypeAlias = Callable[[type[Operation], str], bool]


class NodeChanges:
    """Changes that one session makes in one transaction.

    Args:
        tx: The transaction.
        session: The session.
        scope: Of the session; sessions of one scope wake each other.
        may_be_watched: Returns whether a session may be watching what operations change, given their kind and the
            node that holds the nodes.

    Attributes:
        watchable: Something was changed that a session may be watching.
        last_watchable: Number of the last transaction that did so, this one included.
        woken: The sessions to wake after the transaction.
    """

    def __init__(self, tx: FileTransaction, session: int, scope: str, may_be_watched: MayBeWatched) -> None:
        self.tx = tx
        self.watchable = False
        self.woken: Iterable[int] = ()
        self._session = session
        self._scope = scope
        self._may_be_watched = may_be_watched
        before, self.last_watchable = tx.one("SELECT number, watchable FROM counter")
        self._number: int = before + 1
        self._listed: set[str] = set()

    def begin(self, timeout: float) -> float:
        """Begins the session; returns when it ends without a sign of life."""
        expires = self.tx.now + timeout
        self.tx.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", (self._session, self._scope, timeout, expires))
        return expires

    def run(self, work: Callable[[NodeChanges], T]) -> T:
        """Runs all that the transaction is to change."""
        self.remove(dead(self.tx))
        done = work(self)
        self._finish()
        return done

    def remove(self, sessions: Iterable[int]) -> None:
        for session in sessions:
            self.tx.execute("DELETE FROM sessions WHERE id = ?", (session,))
            emptied = set(self.tx.rows("DELETE FROM nodes WHERE session = ? RETURNING parent", session))
            self._listed.update(self.tx.one("SELECT path FROM parents WHERE id = ?", *row)[0] for row in emptied)
            self.watchable = self.watchable or bool(emptied)

    def make_in_order(self, changes: Iterable[Change]) -> list[Outcome]:
        return [outcome for change in changes for outcome in self.make(change)]

    def make_each(self, changes: Iterable[Change]) -> list[Outcome]:
        """Makes changes that do not depend on each other, those of the same kinds of operations at once."""
        alike = groupby(changes, key=lambda change: tuple(map(type, change)))
        return [outcome for _, several in alike for outcome in self.make(*several)]

    def make(self, *changes: Change) -> list[Outcome]:
        """Makes a change, all of it or nothing; or several that :meth:`make_each` can make at once.

        First the first operation of each is done, then the second of each, and so on. If one is refused, each is made
        for itself.
        """
        # One that only checks before it writes once leaves nothing when it is refused.
        undo = len(changes) > 1 or any(not isinstance(operation, Check) for operation in changes[0][:-1])
        if undo:
            self.tx.execute("SAVEPOINT change")
        versions: list[Sequence[int]] = []
        touched: list[tuple[type[Operation], set[str]]] = []
        for at, operations in enumerate(zip(*changes, strict=True)):
            paths = [operation.path.rpartition("/") for operation in operations]
            parents = {above for above, _, _ in paths}
            if isinstance(operations[0], Create) and not all(map(self._hold, parents)):
                done = None
            else:
                ids = {above: parent_id(self.tx, above) for above in parents}
                done = self._do(operations, [(ids[above], name) for above, _, name in paths])
            if done is None:
                if undo:
                    self.tx.execute("ROLLBACK TO change; RELEASE change")
                    self.tx.parent_ids.clear()
                if len(changes) == 1:
                    return [Rejection(self._why_not(operations[0]), at)]
                return self.make_in_order(changes)
            versions.append(done)
            touched.append((type(operations[0]), parents))
        if undo:
            self.tx.execute("RELEASE change")
        for kind, parents in touched:
            self._record(kind, parents)
        return list(map(Applied, zip(*versions, strict=True)))

    def _do(self, operations: Sequence[Any], places: Sequence[Place]) -> Sequence[int] | None:
        """Does operations of one kind.

        Returns:
            The versions of the nodes afterwards; None: one cannot be done, and others may have been.
        """
        before, number, each = self.tx.total_changes(), self._number, zip(places, operations, strict=True)
        versions = [0] * len(operations)
        match operations[0]:
            case Check():
                there = self.tx.each(CHECK, ((*where, one.version, ANY) for where, one in each)).fetchall()
                return versions if len(there) == len(operations) else None
            case Create():
                own = {True: self._session, False: None}
                self.tx.each(CREATE, ((*where, one.data, number, own[one.ephemeral]) for where, one in each))
            case SetData():
                versions = [self._next_version(one) for one in operations]
                rows = zip(places, operations, versions, strict=True)
                self.tx.each(SET_DATA, ((*where, one.data, version, number) for where, one, version in rows))
            case Delete():
                self.tx.each(DELETE, ((*where, one.path) for where, one in each))
        return versions if self.tx.total_changes() - before == len(operations) else None

    def _there(self, path: str) -> bool:
        return bool(self.tx.one(CHECK, *place(self.tx, path), ANY, ANY))

    def _hold(self, path: str) -> bool:
        """Gives a node an id, so that others can be in it; returns False for ephemeral and missing nodes."""
        there = bool(self.tx.one(LASTING, *place(self.tx, path)))
        if there and parent_id(self.tx, path) is None:
            self.tx.execute("INSERT INTO parents (path) VALUES (?)", (path,))
        return there

    def _next_version(self, operation: SetData) -> int:
        if operation.version != ANY:
            return operation.version + 1
        (row,) = _columns(self.tx, "version", [operation.path])
        return row[0] + 1 if row else 0

    def _record(self, kind: type[Operation], parents: set[str]) -> None:
        """Records which nodes have other nodes in them now, and whether a session may be watching what was changed."""
        if kind is Check:
            return
        self.watchable = self.watchable or any(self._may_be_watched(kind, above) for above in parents)
        if kind is not SetData:
            self._listed |= parents

    def _why_not(self, operation: Operation) -> RejectionReason:
        there = self._there(operation.path)
        if isinstance(operation, Create):
            return RejectionReason.NODE_EXISTS if there else RejectionReason.NO_NODE
        if not there:
            return RejectionReason.NO_NODE
        return RejectionReason.NOT_EMPTY if isinstance(operation, Delete) else RejectionReason.BAD_VERSION

    def _finish(self) -> None:
        """Numbers the transaction."""
        if self.watchable:
            self.last_watchable = self._number
            self.woken = others(self.tx, self._scope, self._session)
        # Otherwise versions went up, and nothing else happened: a commit writes no page for the counter.
        if self.watchable or self._listed:
            self.tx.execute("UPDATE counter SET number = ?, watchable = ?", (self._number, self.last_watchable))
        for path in self._listed:
            self.tx.execute(
                "UPDATE nodes SET listed = ? WHERE parent = ? AND name = ?", (self._number, *place(self.tx, path))
            )


CREATE = "INSERT INTO nodes VALUES (?, ?, ?, 0, ?4, ?4, ?) ON CONFLICT DO NOTHING"

SET_DATA = """UPDATE nodes SET data = ?3, version = ?4, changed = ?5
    WHERE parent = ?1 AND name = ?2 AND version = ?4 - 1"""

DELETE = """DELETE FROM nodes WHERE parent = ? AND name = ? AND (session IS NOT NULL OR NOT EXISTS (
    SELECT 1 FROM nodes AS child WHERE child.parent = (SELECT id FROM parents WHERE path = ?)))"""

LASTING = "SELECT 1 FROM nodes WHERE parent = ? AND name = ? AND session IS NULL"

CHECK = "SELECT 0 FROM nodes WHERE parent = ? AND name = ? AND ? IN (version, ?)"
