"""Opens SQLite (through apsw) and translates its errors; no other module does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal, TypeVar
from urllib.parse import quote

import apsw
import msgspec

from queuey import ids
from queuey.errors import (
    Outcome,
    QueueyError,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
)
from queuey.storage.calls import Deadline

T = TypeVar("T")
Connection = apsw.Connection
carray: Callable[[tuple[str | bytes, ...]], object] | None = getattr(apsw, "carray", None)
"""Makes a tuple that a statement reads as a table. None if SQLite was built without that."""
DatabaseError = apsw.Error

DAMAGE = (UnicodeDecodeError, msgspec.MsgspecError)
"""Errors of reading a damaged row beside those of the driver: SQLite does not notice bytes changed inside a value."""

LOG_LIMIT = 4000
"""Max pages of 4 KiB (16 MiB) of log until a commit also copies it into the database file, so that the log starts over:
writing over an old log is cheaper than a file that grows. The sweep's thread has copied most of it by then."""

FILE = "queuey.sqlite3"
_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})


def file_of(data: Path) -> Path:
    """Returns the file of the store at a path: of a directory, or the path itself if it is a file or named like one."""
    is_file = data.is_file() or (data.suffix in _SUFFIXES and not data.is_dir())
    return data if is_file else data / FILE


@dataclass(frozen=True, kw_only=True)
class SqliteOptions:
    """Options of an embedded store.

    Attributes:
        sync: ``full``: a write is on disk (fsync) before it is acknowledged. ``normal``: it survives a crash of the
            process, not necessarily one of the machine.
        busy_timeout: Seconds to wait for another process's write lock before ``StoreBusy``.
        deadline: Seconds after which any call gives up.
        readers: Connections for reading; more calls at once wait for a free one.
        cached_queues: Rows of the catalogue kept in memory.
        sweep_interval: Seconds between sweeps of expired messages; None: only ``sweep`` calls sweep.
        sweep_rows: Rows that a step of the sweep reads, at least; it takes more while a step takes a few ms.
        clock: Returns the wall clock in ticks (see :mod:`queuey.ids`).
        pragmas: Further statements run on every new connection.
    """

    sync: Literal["full", "normal"] = "full"
    busy_timeout: float = 5.0
    deadline: float = 15.0
    readers: int = 4
    cached_queues: int = 20_000
    sweep_interval: float | None = 1.0
    sweep_rows: int = 500
    clock: Callable[[], int] = field(default=ids.now_ticks)
    pragmas: tuple[str, ...] = ()


def translate(error: apsw.Error, outcome: Outcome = "none") -> QueueyError:
    """Returns the store error for a driver error. ``outcome`` is of the write that failed: ``none`` before a commit."""
    text = str(error) or type(error).__name__
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"the store is locked by another process: {text}", outcome=outcome)
        case apsw.FullError():
            return StoreFull(f"no space left for the store: {text}", outcome=outcome, retry_after=10)
        case apsw.NotADBError():
            return StoreIncompatible(f"the store's file is not a database: {text}")
        case apsw.ConnectionClosedError():
            return StoreClosed("the store is closed", outcome=outcome)
        case _:
            return StoreUnavailable(f"the store failed: {text}", outcome=outcome, retry_after=5)


def damaged(error: Exception) -> StoreUnavailable:
    """Returns the store error for a damaged row (one of ``DAMAGE``)."""
    return StoreUnavailable(f"the store's file is damaged: {error}", retry_after=60)


def is_certain(error: apsw.Error) -> bool:
    """Returns whether a COMMIT that failed with ``error`` certainly left nothing behind."""
    return isinstance(error, apsw.BusyError | apsw.LockedError | apsw.FullError | apsw.ReadOnlyError)


def connect(path: Path, options: SqliteOptions, *, create: bool = False, read_only: bool = False) -> Connection:
    """Opens a connection to the store's file.

    Only ``create`` makes a new file: a connection opened later must not silently begin an empty store where the file
    has vanished.

    Raises:
        StoreUnavailable: The file cannot be opened.
        StoreIncompatible: The file is not a database.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=160)
        # Plans do not depend on what is bound: else SQLite would compile a statement anew at each change of its LIMIT,
        # which took longer than to read ten messages.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_handler(_patience(options.busy_timeout))
        _use_log(connection, options.busy_timeout)
        connection.execute(f"PRAGMA synchronous = {options.sync}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {0 if read_only else LOG_LIMIT}").fetchall()
        # A log that one large transaction made long becomes short again when it starts over.
        connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT * 4096}").fetchall()
        connection.execute(f"PRAGMA cache_size = {-2048 if read_only else -16384}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            connection.set_progress_handler(_stop, _HASTY_STEPS)
        for pragma in options.pragmas:
            connection.execute(pragma).fetchall()
    except apsw.Error as error:
        raise translate(error) from error
    return connection


def open_copy(path: Path) -> Connection:
    """Opens a file that no process writes to, for reading, without files beside it.

    Driver errors are not translated.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path.absolute()))}?immutable=1", flags=flags)


def _use_log(connection: Connection, seconds: float) -> None:
    """Sets a new file to keep a write-ahead log.

    While another process does the same SQLite refuses at once, without asking the busy handler, so the waiting is done
    here.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.002)
        else:
            return


def _patience(seconds: float) -> Callable[[int], bool]:
    """Returns a busy handler that retries often at first.

    SQLite's own one soon sleeps 100 ms at a time, which starves a process beside another one that commits all the time.
    """
    began = 0.0

    def handler(tries: int) -> bool:
        nonlocal began
        if _haste.on:
            return False
        now = time.monotonic()
        if tries == 0:
            began = now
        if now - began >= seconds:
            return False
        time.sleep(0.0005 if tries < 20 else 0.002)  # noqa: PLR2004 - the first 10 ms in small steps
        return True

    return handler


class TooLong(StoreBusy):
    """A hasty read would take too long."""


class _Haste(threading.local):
    """State of a hasty read in this thread, and how often SQLite has asked if it may go on."""

    on = False
    requested = 0


_haste = _Haste()
_HASTY_STEPS, _HASTY_ASKED = 5_000, 4
"""Steps, some 15 for a message, after which SQLite asks whether to go on; and how often it may: a millisecond in all.

It goes by the steps of a statement since that was prepared, so a short one may happen to ask once."""


def _stop() -> bool:
    _haste.requested += 1
    return _haste.on and _haste.requested > _HASTY_ASKED


class Readers:
    """A fixed number of reading connections, opened when first needed and opened anew after a failure."""

    def __init__(self, path: Path, options: SqliteOptions, deadline: Deadline) -> None:
        self._path = path
        self._options = options
        self._deadline = deadline
        self._free: SimpleQueue[Connection | None] = SimpleQueue()
        self._closed = False
        for _ in range(options.readers):
            self._free.put(None)

    def take(self, *, hasty: bool = False) -> Connection:
        """Returns a free connection; give it back with :meth:`give`, or call :meth:`drop` after an error.

        It waits up to the deadline until one is free, and until it is open; if ``hasty``, for neither.

        Raises:
            StoreBusy: None is free.
            StoreUnavailable: The file cannot be opened.
            StoreClosed: The store is closed.
        """
        connection: Connection | None
        try:
            if hasty:
                connection = self._opened()
            else:
                connection = self._free.get(timeout=self._deadline.left(self._options.deadline))
        except Empty as error:
            message = "all reading connections are busy"
            raise StoreBusy(message) from error
        if self._closed:
            self._free.put(connection)
            message = "the store is closed"
            raise StoreClosed(message)
        if connection is None:
            try:
                connection = connect(self._path, self._options, read_only=True)
            except BaseException:
                self._free.put(None)
                raise
        return connection

    def _opened(self) -> Connection:
        """Returns a free connection that is open already.

        Raises:
            Empty: There is none.
        """
        for _ in range(self._options.readers):
            connection = self._free.get_nowait()
            if connection is not None:
                return connection
            self._free.put(None)
        raise Empty

    def give(self, connection: Connection) -> None:
        self._free.put(connection)

    def drop(self, connection: Connection) -> None:
        """Closes a connection that failed; its place is filled again at the next need."""
        with contextlib.suppress(apsw.Error):
            connection.close(True)  # noqa: FBT003 - apsw takes it by position only
        self._free.put(None)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lends a connection; translates driver errors.

        Raises:
            StoreBusy: None is free (see :meth:`take`).
            StoreUnavailable: The read failed.
        """
        connection = self.take()
        try:
            yield connection
        except BaseException as error:
            self._end_failed(connection, error)
            raise
        else:
            self.give(connection)

    def read_hastily(self, read: Callable[[Connection], T]) -> T:
        """Reads without waiting for a connection or another process, and without going through very many rows.

        Raises:
            StoreBusy: None is free (see :meth:`take`).
            TooLong: The read would have to wait, or goes through too many rows.
            StoreUnavailable: The read failed.
        """
        connection = self.take(hasty=True)
        try:
            _haste.on, _haste.requested = True, 0
            try:
                result = read(connection)
            finally:
                _haste.on = False
        except (apsw.InterruptError, apsw.BusyError) as error:
            self.give(connection)
            message = "this takes longer than it may"
            raise TooLong(message) from error
        except BaseException as error:
            self._end_failed(connection, error)
            raise
        self.give(connection)
        return result

    def _end_failed(self, connection: Connection, error: BaseException) -> None:
        """Takes a connection back after an error; raises that of the store if it is one of the driver."""
        if isinstance(error, QueueyError):
            self.give(connection)
            return
        # The error may keep a statement open, in whose snapshot the next caller would read.
        self.drop(connection)
        if isinstance(error, apsw.Error):
            raise translate(error) from error
        if isinstance(error, DAMAGE):
            raise damaged(error) from error

    def close(self, timeout: float) -> None:
        """Closes all connections, waiting for those in use."""
        self._closed = True
        until = time.monotonic() + timeout
        closed = 0
        while closed < self._options.readers:
            try:
                connection = self._free.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                break
            if connection is not None:
                with contextlib.suppress(apsw.Error):
                    connection.close(True)  # noqa: FBT003 - apsw takes it by position only
            closed += 1
        for _ in range(closed):
            self._free.put(None)


def checkpoint(connection: Connection, *, truncate: bool = False) -> int:
    """Copies the write-ahead log into the database file without waiting for others; returns the log's pages."""
    mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
    with contextlib.suppress(apsw.BusyError, apsw.LockedError):
        pages, _ = connection.wal_checkpoint(mode=mode)
        return max(0, pages)
    return 0
