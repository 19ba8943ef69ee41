"""Local coordination as the suite reaches and breaks it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from qdo.coordination import CommittedOffset, Coordinator, OwnedOffset, Session
from qdo.coordination.local import transactions
from qdo.coordination.local.database import CoordinationFile, FileTransaction
from qdo.coordination.local.session_thread import LocalSession
from qdo.coordination.opening import open_coordinator
from qdo.partitions import Partition
from tests.qdo.contract.backends import LONG
from tests.replacing import replace

WRITE = """UPDATE partitions SET offset = ?, version = version + 1 WHERE group_id = ? AND queue = ? AND number = ?
    RETURNING version"""


async def commit_unfenced(
    self: LocalSession, offsets: Iterable[tuple[OwnedOffset, str | None]]
) -> dict[Partition, OwnedOffset | None]:
    """Writes offsets over whatever they are, and whoever owns the partition."""
    written: dict[Partition, OwnedOffset | None] = {}
    with writing(self._thread._database.path) as tx:
        for (partition, _, _), identifier in offsets:
            (version,) = tx.one(WRITE, identifier, self.where, transactions.key(partition.queue), partition.number)
            written[partition] = OwnedOffset(partition, CommittedOffset(identifier, 0.0, self._member.id), version)
    return written


@contextlib.contextmanager
def writing(path: Path) -> Iterator[FileTransaction]:
    """A transaction of the test's own."""
    database = CoordinationFile(path, patience=10)
    try:
        with database.transaction() as tx:
            yield tx
    finally:
        database.close()


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
        """Lets its time be over, and has the next sign of life made then, however long the session was to be."""
        assert isinstance(session, LocalSession)
        with self.writing() as tx:
            tx.execute("UPDATE sessions SET expires = 0 WHERE id = ?", (session.key,))
            assert tx.changes()
        session._thread.submit(session._thread._beat)

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

    def unfenced(self, coordinator: Coordinator) -> contextlib.AbstractContextManager[None]:
        """Leaves out what commits ask."""
        return replace(LocalSession.commit, commit_unfenced)

    async def write_target(self, group: str, data: bytes) -> None:
        """See the protocol."""
        with self.writing() as tx:
            tx.execute("UPDATE groups SET target = ?, version = version + 1 WHERE name = ?", (data, group))
            assert tx.changes()

    async def write_member(self, group: str, member: str, data: bytes) -> None:
        """See the protocol."""
        where = "member = ? AND group_id = (SELECT id FROM groups WHERE name = ?)"
        with self.writing() as tx:
            tx.execute(f"UPDATE sessions SET member_data = ? WHERE {where}", (data, member, group))
            assert tx.changes()

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

    def writing(self) -> contextlib.AbstractContextManager[FileTransaction]:
        """A transaction of the test's own."""
        return writing(self.path)
