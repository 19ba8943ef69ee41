"""Imports offsets from the coordination file that groups of one machine used until version 0.2.

Only the offsets of a file are used. A group of the service imports them once, before its first member joins, and only
while no member of the file is alive. The file keeps the offsets and records the import.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from qdo.coordination.paths import GroupPaths, decode, parse_partition
from qdo.coordination.records import decode_offset
from qdo.errors import CoordinationIncompatible, CoordinationLost, GroupActive, InvalidArgument
from qdo.keepalive.vitals import now
from qdo.partitions import Partition, Queue
from queuey.client import AsyncClient, Message, QueueNotFound, Receipt

if TYPE_CHECKING:
    import apsw

log = logging.getLogger(__name__)

MIN_SESSION_TIMEOUT = 3.0
"""Min session timeout of the service's groups, in seconds; groups in a file could have less."""
_APPLICATION_ID, _FORMAT = 0x51646F43, 4
_LOCK_TIMEOUT = 5.0
"""Max seconds to wait for a locked file."""
_LOCK_POLL_INTERVAL = 0.05
_CREATE_IMPORTED = (
    "CREATE TABLE IF NOT EXISTS imported "
    "(name TEXT, service TEXT, application TEXT, at REAL NOT NULL, PRIMARY KEY (name, service, application)) "
    "WITHOUT ROWID"
)
_SELECT_NODES = (
    "SELECT parents.path, nodes.name, nodes.data FROM nodes JOIN parents ON parents.id = nodes.parent "
    "WHERE parents.path >= ? || '/' AND parents.path < ? || '0'"  # 0 follows the slash.
)
_SELECT_LIVING_MEMBERS = (
    "SELECT nodes.name FROM nodes JOIN parents ON parents.id = nodes.parent "
    "JOIN sessions ON sessions.id = nodes.session WHERE parents.path = ? AND sessions.expires > ?"
)


def default_path() -> Path:
    import platformdirs  # noqa: PLC0415 - only needed if no file is named

    return Path(platformdirs.user_state_dir("qdo", appauthor=False)) / "coordination.sqlite3"


def parse_path(url: str) -> Path:
    """Returns the file that ``local:`` or ``local:///path`` names.

    Raises:
        InvalidArgument: The URL has another form.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "local" or parts.netloc or (path and not path.startswith("/")):
        raise InvalidArgument(f"coordination is {url!r}: give local: or local:///path/to/file")
    return Path(path) if path else default_path()


class LocalCoordination:
    """A group opened by ``local:``. The consumer or worker that gets it joins the service's group instead.

    Args:
        group: The group's name.
        path: The file from which the group's offsets are imported.
        session_timeout: Session timeout of the members in seconds, or None for the default.
    """

    def __init__(self, group: str, path: Path, session_timeout: float | None) -> None:
        self.group = group
        self.path = path
        self.session_timeout = None if session_timeout is None else max(session_timeout, MIN_SESSION_TIMEOUT)

    async def open(self) -> None:
        """Does nothing: the consumer opens the group."""

    async def close(self) -> None:
        """Does nothing: the consumer closes the group."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it raises
        raise InvalidArgument(
            f"a local group has no {name!r}: local coordination was removed. Give the consumer group="
            f"{self.group!r}, and use client.consumer_groups"
        )


class FormerGroup(NamedTuple):
    """A group in a file.

    Attributes:
        offsets: The recorded ids.
        living: Names of members whose sessions have not expired.
        imported: Stores and applications whose group has imported the offsets.
    """

    offsets: dict[Partition, str]
    living: list[str]
    imported: frozenset[tuple[str, str]]


def read_group(path: Path, group: str) -> FormerGroup | None:
    """Returns a group from a file, or None if the file or the group does not exist.

    Raises:
        CoordinationIncompatible: The file is not a coordination file of Qdo, or is damaged.
        CoordinationLost: The file cannot be read.
    """
    with _open_file(path) as connection:
        if connection is None:
            return None
        paths = GroupPaths("", group)
        offsets: dict[Partition, str] = {}
        for place, name, data in _select_rows(connection, _SELECT_NODES, paths.offsets, paths.offsets):
            parts = (*place.split("/")[-3:], name)
            if place.count("/") == paths.offsets.count("/") + 3 and (identifier := decode_offset(data).id) is not None:
                offsets[parse_partition(parts)] = identifier
        living = [decode(name) for (name,) in _select_rows(connection, _SELECT_LIVING_MEMBERS, paths.members, now())]
        imported = _select_rows(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'imported'") and _select_rows(
            connection, "SELECT service, application FROM imported WHERE name = ?", group
        )
        return FormerGroup(offsets, sorted(living), frozenset(imported)) if offsets or living else None


async def take_over(
    client: AsyncClient, store: str, path: Path, former: str, group: str, *, again: bool = False
) -> int:
    """Imports the offsets of a group from a file into a group of the service; returns how many.

    Only one process at a time runs this. A group that was imported before is skipped. So are offsets of other stores
    and applications, and of queues that do not exist.

    Args:
        client: A client of the application that owns the queues.
        store: The id of the service's store.
        path: The file.
        former: The group's name in the file.
        group: The group's name in the service.
        again: Imports the offsets even if they were imported before.

    Raises:
        GroupActive: The group has living members in the file, or members in the service.
        CoordinationIncompatible, CoordinationLost: See :func:`read_group`.
        ClientError: The service refuses the request.
    """
    if read_group(path, former) is None:
        return 0
    async with _lock_directory(path):
        stored = read_group(path, former)
        if stored is None or ((store, client.application) in stored.imported and not again):
            return 0
        if stored.living:
            raise GroupActive(
                f"group {former!r} has live members in {path}: {', '.join(stored.living)}. "
                "Stop them, then start the members of the service's group"
            )
        queues: dict[Queue, dict[int, str | Message | Receipt]] = {}
        for partition, identifier in stored.offsets.items():
            if partition.queue[:2] == (store, client.application):
                queues.setdefault(partition.queue, {})[partition.number] = identifier
        count = 0
        for queue, offsets in queues.items():
            with suppress(QueueNotFound):
                await client.commit(queue.name, group, offsets)
                count += len(offsets)
        with _open_file(path) as connection:
            assert connection is not None  # noqa: S101 - it was there a moment ago
            connection.execute(_CREATE_IMPORTED)
            mark = former, store, client.application, time.time()
            connection.execute("INSERT OR REPLACE INTO imported VALUES (?, ?, ?, ?)", mark)
    log.info("group %s: imported %d offsets from %s", group, count, path)
    return count


@contextmanager
def _open_file(path: Path) -> Iterator[apsw.Connection | None]:
    """Yields a connection to the file, or None if the file is missing or empty.

    Raises:
        CoordinationIncompatible: The file has another format.
        CoordinationLost: The file cannot be used now.
    """
    if not path.exists():
        yield None
        return
    import apsw  # noqa: PLC0415 - hardly ever needed

    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(int(_LOCK_TIMEOUT * 1000))
            if not _select_rows(connection, "SELECT 1 FROM sqlite_schema LIMIT 1"):
                yield None
                return
            marks = connection.pragma("application_id"), connection.pragma("user_version")
            if marks != (_APPLICATION_ID, _FORMAT):
                raise CoordinationIncompatible(f"{path} is not a coordination file of Qdo 0.1")
            yield connection
        finally:
            connection.close()
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
        raise CoordinationIncompatible(f"the coordination file {path} cannot be used: {error}") from error
    except apsw.Error as error:
        raise CoordinationLost(f"the coordination file {path} cannot be used: {error}") from error


def _select_rows(connection: apsw.Connection, statement: str, *values: Any) -> list[Any]:  # noqa: ANN401 - whatever SQLite stores
    return connection.execute(statement, values).fetchall()


@asynccontextmanager
async def _lock_directory(path: Path) -> AsyncIterator[None]:
    """Holds an exclusive lock on the file's directory during the block; waits for it without limit."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_INTERVAL)
        yield
    finally:
        os.close(directory)
