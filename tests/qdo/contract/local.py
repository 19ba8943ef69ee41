"""Local coordination as the suite reaches and breaks it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from qdo.coordination import Coordinator, Session
from qdo.coordination.local import owners, sessions
from qdo.coordination.local.database import Database, Transaction
from qdo.coordination.local.session import LocalSession
from qdo.coordination.opening import open_coordinator
from tests.qdo.contract.backends import LONG

UNFENCED = """UPDATE partitions SET offset = :offset, at = :at, member = :member, version = version + 1
    WHERE grp = :grp AND queue = :queue AND number = :number AND :session + :version IS NOT NULL RETURNING version"""


class LocalService:
    """A file."""

    short = 1.5

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"local://{path}"
        self._away = path.with_name("away")

    def coordinator(self, group: str = "group", *, session_timeout: float = LONG) -> Coordinator:
        """See the protocol."""
        return open_coordinator(self.url, group, session_timeout=session_timeout)

    async def expire(self, session: Session) -> None:
        """Lets its time be over."""
        assert isinstance(session, LocalSession)
        with self.writing() as tx:
            tx.execute("UPDATE sessions SET expires = 0 WHERE id = ?", (session._stay.session,))
            assert tx.changes()

    async def cut(self) -> None:
        """Puts the file away, and what is none in its place."""
        self.path.rename(self._away)
        self.path.mkdir()

    async def mend(self) -> None:
        """Puts the file back."""
        self.path.rmdir()
        self._away.rename(self.path)

    @contextlib.contextmanager
    def unfenced(self, coordinator: Coordinator) -> Iterator[None]:
        """Leaves out what commits ask."""
        with mock.patch.object(owners, "COMMIT", UNFENCED), mock.patch.object(sessions, "alive"):
            yield

    async def write_target(self, group: str, data: bytes) -> None:
        """See the protocol."""
        with self.writing() as tx:
            tx.execute("UPDATE groups SET target = ?, version = version + 1 WHERE name = ?", (data, group))
            assert tx.changes()

    async def write_member(self, group: str, member: str, data: bytes) -> None:
        """See the protocol."""
        where = "member = ? AND grp = (SELECT id FROM groups WHERE name = ?)"
        with self.writing() as tx:
            tx.execute(f"UPDATE sessions SET value = ? WHERE {where}", (data, member, group))
            assert tx.changes()

    async def close(self) -> None:
        """Nothing is running."""

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A transaction of the test's own."""
        database = Database(self.path, patience=10)
        try:
            with database.transaction() as tx:
                yield tx
        finally:
            database.close()
