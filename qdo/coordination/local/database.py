"""The file of local coordination: its settings, and the one place that opens it and knows SQLite's errors.

It is apsw and not the standard library's sqlite3: its SQLite is the same everywhere and new enough for ``RETURNING``,
its transactions begin where we say, and each kind of failure has its own class.

The file keeps a write-ahead log and is not synchronised at each commit (unless asked for): what was committed survives
every crash of processes; when the machine itself goes down the last seconds may be gone, and the messages that they
recorded are handled once more.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import apsw

from qdo.coordination.paths import split_url
from qdo.errors import CoordinationError, CoordinationIncompatible, CoordinationLost, InvalidArgument
from qdo.keepalive.vitals import now

SESSION_TIMEOUT = 3.0
SHORTEST = 0.2
"""Min seconds of a session; a busy machine alone ends a shorter one."""
_FORM = "local: or local:///path/to/file"
SYNC = {"normal": False, "full": True}


@dataclass(frozen=True)
class LocalOptions:
    """The settings of local coordination.

    Args:
        path: The file. All processes that use it are of one machine: its file system must not be a network's.
        session_timeout: Seconds after which a member that was not heard of is gone.
        sync: Every commit waits for the disk, so that offsets also outlive a crash of the machine.
    """

    path: Path
    session_timeout: float = SESSION_TIMEOUT
    sync: bool = False

    def __post_init__(self) -> None:
        if not self.session_timeout >= SHORTEST:
            raise InvalidArgument(f"a session lasts {SHORTEST} seconds or longer, not {self.session_timeout}")


def default_path() -> Path:
    """Returns the file that the processes of this user share if they say nothing else."""
    import platformdirs  # noqa: PLC0415 - only needed if no file is named

    return Path(platformdirs.user_state_dir("qdo", appauthor=False)) / "coordination.sqlite3"


def parse_url(url: str, *, session_timeout: float | None = None, **options: Any) -> LocalOptions:  # noqa: ANN401 - checked here
    """Reads ``local:`` or ``local:///path/to/file?sync=full``.

    Args:
        url: The URL.
        session_timeout: Seconds; None: the default.
        **options: ``sync`` ("normal" or "full"), which wins over the URL's.

    Raises:
        InvalidArgument: It is something else.
    """
    parts = split_url(url, "local", _FORM)
    path = unquote(parts.path)
    if parts.netloc or (path and not path.startswith("/")):
        raise InvalidArgument(f"coordination is {url!r}: give {_FORM}")
    given = dict(parse_qsl(parts.query, keep_blank_values=True)) | options
    if unknown := given.keys() - {"sync"}:
        raise InvalidArgument(f"local coordination has no option {', '.join(sorted(unknown))}")
    sync = given.get("sync", "normal")
    if sync not in SYNC:
        raise InvalidArgument(f"sync is one of {', '.join(SYNC)}, not {sync!r}")
    found = LocalOptions(Path(path) if path else default_path(), sync=SYNC[sync])
    return found if session_timeout is None else replace(found, session_timeout=session_timeout)


SHORT_WAIT, LONG_WAIT = 0.0005, 0.002
"""Seconds between two checks whether the file is still locked: at first, and after some."""
LOOKS_SOON = 20
LEFT_BEHIND = ("-wal", "-shm")


class FileTransaction:
    """A transaction that is under way.

    Attributes:
        parent_ids: Rows of the table ``parents`` that are known; rows never change.
        now: Of :func:`now`, read after what the transaction sees was settled. A sign of life given in between would
            lie further ahead than any may, and its member would count as dead.
    """

    def __init__(self, connection: apsw.Connection, parent_ids: dict[str, int]) -> None:
        self.parent_ids = parent_ids
        cursor = connection.cursor()
        self.execute, self.each = cursor.execute, cursor.executemany
        self.total_changes = connection.total_changes
        self.now = now()

    def rows(self, statement: str, *values: Any) -> list[Any]:  # noqa: ANN401 - whatever SQLite stores
        return self.execute(statement, values).fetchall()

    def one(self, statement: str, *values: Any) -> Any:  # noqa: ANN401 - likewise
        """Returns the only row, or None; nothing of the statement is left open before the commit."""
        found = self.execute(statement, values).fetchall()
        return found[0] if found else None


class CoordinationFile:
    """The file, opened when first needed and anew after a failure. For one thread.

    Args:
        path: The file.
        patience: See the attribute.
        sync: Every commit waits for the disk.
        checkpoints: A commit that finds a long log copies it into the file, and waits for the disk.

    Attributes:
        patience: Seconds to wait for a file that another process has locked.
    """

    def __init__(self, path: Path, *, patience: float, sync: bool = False, checkpoints: bool = True) -> None:
        self.path = path
        self.patience = patience
        self._checkpoints = checkpoints
        self._sync = sync
        self._connection: apsw.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._parent_ids: dict[str, int] = {}

    @contextlib.contextmanager
    def transaction(self, *, write: bool = True, create: bool = False) -> Iterator[FileTransaction]:
        """Runs a transaction, all of it or nothing.

        Args:
            write: It writes, so it waits until no other transaction does.
            create: Make the file if it is not there.

        Raises:
            CoordinationLost: The file is locked, full, read only, or gone.
            CoordinationIncompatible: It is not ours, too new, or damaged.
        """
        connection = self._ready(create=create)
        try:
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            if not write:
                connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
            yield FileTransaction(connection, self._parent_ids)
            connection.execute("COMMIT")
        except BaseException as error:
            self._undo(connection)
            self._parent_ids.clear()
            if not isinstance(error, apsw.Error):
                raise
            if not isinstance(error, apsw.BusyError | apsw.FullError):
                self.close()
            raise self._translate(error) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._parent_ids.clear()
        if connection is not None:
            with contextlib.suppress(apsw.Error):
                connection.close(True)  # noqa: FBT003 - apsw takes it by position only

    def _ready(self, *, create: bool) -> apsw.Connection:
        """Returns a connection to the file that is there now.

        An open file goes on to work when it was removed, but then others no longer see it.
        """
        identity = self._look()
        if self._connection is not None and identity == self._identity:
            return self._connection
        if identity is None:
            if not create:
                raise CoordinationLost(f"the coordination file {self.path} is gone")
            self._make()
            identity = self._look()
        self.close()
        try:
            self._connection = self._connect()
        except apsw.Error as error:
            raise self._translate(error) from error
        self._identity = identity
        return self._connection

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CoordinationLost(f"the coordination file {self.path} cannot be used: {error.strerror}") from error
        return found.st_dev, found.st_ino

    def _make(self) -> None:
        """Makes the empty file, which other users may not read.

        The directory is locked meanwhile. A log that an earlier file left behind must go before there is a new file,
        and no thread may open and close the file of another coordinator of this process, which would undo its locks.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(self.path.parent, os.O_RDONLY) as directory:
                fcntl.flock(directory, fcntl.LOCK_EX)
                if not self.path.exists():
                    for left in LEFT_BEHIND:
                        self.path.with_name(self.path.name + left).unlink(missing_ok=True)
                    with _opened(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL):
                        pass
        except OSError as error:
            raise CoordinationLost(f"the coordination file {self.path} cannot be made: {error.strerror}") from error

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
        connection = apsw.Connection(str(self.path), flags=flags)
        try:
            connection.set_busy_handler(self._wait)
            if not self._check(connection):
                self._use_log(connection)
                self._fill(connection)
            # Closing a file that was removed must not remove the log of the file that has replaced it.
            keep = ctypes.c_int(1)
            connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))
            connection.pragma("synchronous", "FULL" if self._sync else "NORMAL")
            if not self._checkpoints:
                connection.wal_autocheckpoint(0)
        except BaseException:
            connection.close(True)  # noqa: FBT003 - apsw takes it by position only
            raise
        return connection

    def _check(self, connection: apsw.Connection) -> bool:
        """Returns whether our tables are there.

        Raises:
            CoordinationIncompatible: Others are.
        """
        with connection:  # one transaction: another process may be making the tables
            owner, version = connection.pragma("application_id"), connection.pragma("user_version")
            filled = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        if owner == APPLICATION_ID and version == FORMAT:
            return True
        if owner == APPLICATION_ID:
            made = f"a newer program than this one made {self.path}: its format is {version} and not {FORMAT}"
            raise CoordinationIncompatible(f"{made}. To go on, update Qdo")
        if owner or filled:
            raise CoordinationIncompatible(f"{self.path} is a database of something else")
        return False

    def _use_log(self, connection: apsw.Connection) -> None:
        """Turns on the log of a new file; SQLite asks no busy handler while another process does the same."""
        until = time.monotonic() + self.patience
        while True:
            try:
                connection.pragma("journal_mode", "WAL")
            except apsw.BusyError:
                if time.monotonic() >= until:
                    raise
                time.sleep(LONG_WAIT)
            else:
                return

    def _fill(self, connection: apsw.Connection) -> None:
        with contextlib.ExitStack() as undo:
            connection.execute("BEGIN IMMEDIATE")
            undo.callback(self._undo, connection)
            if not self._check(connection):
                connection.execute(TABLES)
                connection.pragma("application_id", APPLICATION_ID)
                connection.pragma("user_version", FORMAT)
            connection.execute("COMMIT")

    def _wait(self, looks: int) -> bool:
        """Waits for another process's lock: in small steps, because locks are short."""
        if not looks:
            self._waiting_since = time.monotonic()
        if time.monotonic() - self._waiting_since >= self.patience:
            return False
        time.sleep(SHORT_WAIT if looks < LOOKS_SOON else LONG_WAIT)
        return True

    @staticmethod
    def _undo(connection: apsw.Connection) -> None:
        with contextlib.suppress(apsw.Error):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _translate(self, error: apsw.Error) -> CoordinationError:
        text = str(error) or type(error).__name__
        match error:
            case apsw.NotADBError():
                return CoordinationIncompatible(f"{self.path} is not a coordination file: {text}")
            case apsw.CorruptError() | apsw.SQLError() | apsw.MismatchError():
                return CoordinationIncompatible(f"the coordination file {self.path} is damaged: {text}")
            case apsw.BusyError():
                return CoordinationLost(f"the coordination file {self.path} is locked by another process: {text}")
            case _:
                return CoordinationLost(f"the coordination file {self.path} cannot be used: {text}")


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


APPLICATION_ID = 0x51646F43
"""Number that distinguishes our files from other SQLite databases: ``QdoC``."""
FORMAT = 4

TABLES = """
CREATE TABLE parents (
    id INTEGER PRIMARY KEY,     -- stands for the path in the rows of what is in the node
    path TEXT NOT NULL UNIQUE   -- of a node that others are in, or were; '' is the root's
);
INSERT INTO parents VALUES (1, '');

CREATE TABLE nodes (
    parent INTEGER NOT NULL,    -- the id of the node that it lies in; the root lies in itself
    name TEXT NOT NULL,         -- '' is the root itself
    data BLOB NOT NULL,
    version INTEGER NOT NULL,   -- of the data
    changed INTEGER NOT NULL,   -- number of the transaction that set the data last
    listed INTEGER NOT NULL,    -- number of the transaction that added or removed a child last
    session INTEGER,            -- of an ephemeral node
    PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX nodes_by_session ON nodes (session) WHERE session IS NOT NULL;
INSERT INTO nodes VALUES (1, '', x'', 0, 0, 0, NULL);

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,     -- random: no other file that takes the place of this one has it
    scope TEXT NOT NULL,        -- sessions of one scope wake each other: those of a group
    timeout REAL NOT NULL,      -- seconds
    expires REAL NOT NULL       -- seconds since the machine was started
);

CREATE TABLE counter (
    number INTEGER NOT NULL,    -- of the last transaction that changed nodes
    watchable INTEGER NOT NULL  -- of the last one that changed what a session may be watching
);
INSERT INTO counter VALUES (0, 0);
"""
