"""Local coordination as the suite reaches and breaks it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from qdo.coordination import Session
from qdo.coordination.local import LocalLink, LocalOptions
from qdo.coordination.local.database import CoordinationFile, FileTransaction
from tests.qdo.contract.backends import LONG, Service


@contextlib.contextmanager
def writing(path: Path) -> Iterator[FileTransaction]:
    """A transaction of the test's own."""
    database = CoordinationFile(path, patience=10)
    try:
        with database.transaction() as tx:
            yield tx
    finally:
        database.close()


class LocalService(Service):
    """A file."""

    short = 1.5

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"local://{path}"
        self._away = path.with_name("away")

    def link(self, *, session_timeout: float = LONG) -> LocalLink:
        """See the base class."""
        return LocalLink(LocalOptions(self.path, session_timeout), "scope")

    async def expire(self, session: Session) -> None:
        """Lets its time be over, and has the next sign of life made then, however long the session was to be."""
        assert isinstance(session.link, LocalLink)
        with writing(self.path) as tx:
            assert tx.rows("UPDATE sessions SET expires = 0 WHERE id = ? RETURNING id", session.link.session)
        session.link._thread.jobs.put(session.link._thread.beat)

    async def cut(self) -> None:
        """Puts the file away, and what is none in its place."""
        with self._alone():
            self.path.rename(self._away)
            self.path.mkdir()

    async def heal(self) -> None:
        """Puts the file back."""
        with self._alone():
            self.path.rmdir()
            self._away.rename(self.path)

    async def close(self) -> None:
        """Nothing is running."""

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps members that join just now from making a new file, for which they would remove the log of this one."""
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield
        finally:
            os.close(directory)
