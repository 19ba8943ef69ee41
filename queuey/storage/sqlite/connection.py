"""Opens SQLite connections (apsw) and translates driver errors. No other module uses the driver's errors."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

import apsw
import msgspec

from queuey.model import ids
from queuey.model.errors import (
    Outcome,
    QueueyError,
    StoreBusy,
    StoreClosed,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
)
from queuey.storage.deadlines import Deadline

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")
Connection = apsw.Connection
carray: Callable[[tuple[str | bytes, ...]], object] | None = getattr(apsw, "carray", None)
"""Binds a tuple that a statement can read as a table. None if SQLite was built without it."""
DatabaseError = apsw.Error

DAMAGE_ERRORS = (UnicodeDecodeError, msgspec.MsgspecError)
"""Errors raised by damaged rows, besides those of the driver: SQLite does not detect bytes changed inside a value."""

MAX_LOG_PAGES = 4000
"""Max pages of 4 KiB (16 MiB) in the write-ahead log. Then a commit also copies the log into the database file and the
log starts over, because overwriting it is cheaper than growing it. The sweep's thread has copied most of it before."""

FILE = "queuey.sqlite3"
SIDE_FILES = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates beside a database, with the mode of that."""
_OTHERS_MODE_BITS = 0o077
_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})


def file_of(data: Path) -> Path:
    """Returns the store's file: ``data`` itself if it is a file or has a database suffix, else the file in it."""
    is_file = data.is_file() or (data.suffix in _SUFFIXES and not data.is_dir())
    return data if is_file else data / FILE


@dataclass(frozen=True, kw_only=True)
class SqliteOptions:
    """Options of an embedded store.

    Attributes:
        sync: With ``full`` a write is on disk (fsync) before it is acknowledged. With ``normal`` it survives a crash of
            the process, but not necessarily of the machine.
        busy_timeout: Seconds to wait for another process's write lock before ``StoreBusy``.
        deadline: Max duration of a call in seconds.
        readers: Number of reading connections; further concurrent reads wait for a free one.
        queue_cache_bytes: Max bytes of queue rows kept in memory (estimated).
        sweep_interval: Seconds between sweeps of expired messages; None disables them except for calls of ``sweep``.
        sweep_rows: Min rows of a sweep step. A step has more rows as long as it takes only a few ms.
        clock: Returns the wall clock in ticks (see :mod:`queuey.model.ids`).
        pragmas: Further statements to run on every new connection.
    """

    sync: Literal["full", "normal"] = "full"
    busy_timeout: float = 5.0
    deadline: float = 15.0
    readers: int = 4
    queue_cache_bytes: int = 48 << 20
    sweep_interval: float | None = 1.0
    sweep_rows: int = 500
    clock: Callable[[], int] = field(default=ids.now_ticks)
    pragmas: tuple[str, ...] = ()


def translate(error: apsw.Error, outcome: Outcome = "none") -> QueueyError:
    """Returns the store error for a driver error. ``outcome`` is the outcome of the failed write.

    Locks are StoreBusy, a full disk StoreFull, another file format StoreIncompatible, other errors StoreUnavailable.
    """
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


def make_damage_error(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the store's file is damaged: {error}", retry_after=60)


def has_no_effect(error: apsw.Error) -> bool:
    """Returns whether the failed statement certainly had no effect, and the connection may be used again."""
    return isinstance(error, apsw.BusyError | apsw.LockedError | apsw.FullError | apsw.ReadOnlyError)


def connect(
    path: Path, options: SqliteOptions, *, create: bool = False, keep_mode: bool = False, read_only: bool = False
) -> Connection:
    """Opens a connection to the store's file.

    A new file is created only with ``create``: a later connection must not silently start an empty store if the file
    has been removed. With ``keep_mode`` a closed file stays closed (see :func:`close_file`).

    Raises:
        StoreUnavailable: The file cannot be opened.
        StoreIncompatible: The file is not a database.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(str(path), flags=flags, statementcachesize=160)
        # Plans must not depend on bound values: otherwise SQLite compiles a statement again whenever its LIMIT changes,
        # which took longer than reading ten messages.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_handler(_make_busy_handler(options.busy_timeout))
        if not keep_mode:
            _enable_write_ahead_log(connection, options.busy_timeout)
        connection.execute(f"PRAGMA synchronous = {options.sync}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {0 if read_only else MAX_LOG_PAGES}").fetchall()
        # Truncates a log that one large transaction made long when the log starts over.
        connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_PAGES * 4096}").fetchall()
        connection.execute(f"PRAGMA cache_size = {-2048 if read_only else -16384}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
            connection.set_progress_handler(_should_stop, _STEPS_PER_HANDLER_CALL)
        for pragma in options.pragmas:
            connection.execute(pragma).fetchall()
    except apsw.Error as error:
        raise translate(error) from error
    return connection


def require_private(path: Path) -> None:
    """Takes the rights of other users from the store's files, which are made for their owner only.

    Raises:
        StoreUnavailable: Another user owns one of the files, or may have made the link at the path.
    """
    if path.is_symlink() and path.parent.stat().st_mode & stat.S_IWOTH:
        raise StoreUnavailable(f"{path} is a link in a directory to which all users may write. Name the file itself.")
    target = path.resolve()
    for file in (target, *(target.with_name(target.name + end) for end in SIDE_FILES)):
        with contextlib.suppress(FileNotFoundError):
            require_owner(file, follow=False)
            if (mode := stat.S_IMODE(file.stat().st_mode)) & _OTHERS_MODE_BITS:
                file.chmod(mode & ~_OTHERS_MODE_BITS)


def require_owner(path: Path, *, follow: bool = True) -> None:
    if path.stat(follow_symlinks=follow).st_uid != os.geteuid():
        raise StoreUnavailable(f"{path} belongs to another user. Run this as that user, or choose another file.")


def has_log(path: Path) -> bool:
    return Path(f"{path.resolve()}-wal").exists()


def keep_log(connection: Connection, path: Path) -> None:
    """Lets the file's log stay beside it when the connection is closed, so that neither of them changes."""
    log = Path(f"{path.resolve()}-wal")
    if log.exists() and log.stat().st_size:  # An empty one has been made for this connection.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def close_file(path: Path) -> None:
    """Marks the file as closed, unless another connection is open: then a copy of it alone is whole. Ignores errors.

    The mark is SQLite's own: a file whose header does not ask for a write-ahead log.
    """
    with contextlib.suppress(apsw.Error):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        with contextlib.closing(connection):
            # Once the log is copied, only bytes of the header change, in one sector: that needs no journal on the disk.
            connection.execute("PRAGMA journal_mode = MEMORY").fetchall()


def open_copy(path: Path) -> Connection:
    """Opens a file that no process writes to, for reading and without side files. Driver errors are not translated."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"file:{quote(str(path.absolute()))}?immutable=1", flags=flags)


def _enable_write_ahead_log(connection: Connection, seconds: float) -> None:
    """Switches a file to a write-ahead log.

    If another process is doing the same, SQLite fails at once without calling the busy handler. So this function waits.
    """
    until = monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if monotonic() >= until:
                raise
            sleep(0.002)
        else:
            return


def _make_busy_handler(seconds: float) -> Callable[[int], bool]:
    """Returns a busy handler that retries every few milliseconds.

    SQLite's own handler soon sleeps 100 ms at a time, which starves a process if another one commits all the time.
    """
    began = 0.0

    def handler(tries: int) -> bool:
        nonlocal began
        if _no_wait_read.is_active:
            return False
        now = monotonic()
        if tries == 0:
            began = now
        if now - began >= seconds:
            return False
        sleep(0.0005 if tries < 20 else 0.002)  # noqa: PLR2004 - the first 10 ms in small steps
        return True

    return handler


class TooLong(StoreBusy):
    """A read without waiting would take too long."""

    code = "StoreBusy"


class _NoWaitRead(threading.local):
    """Whether this thread runs a read without waiting, and how often SQLite has called the progress handler."""

    is_active = False
    handler_calls = 0


_no_wait_read = _NoWaitRead()
_STEPS_PER_HANDLER_CALL, _MAX_HANDLER_CALLS = 5_000, 4
"""Steps of SQLite (about 15 per message) between calls of the progress handler, and max calls: a millisecond in all.

SQLite counts the steps of a statement since it was prepared, so even a short read may call the handler once."""


def _should_stop() -> bool:
    """Returns whether SQLite must stop, as a progress handler: only reads without waiting, after their max calls."""
    _no_wait_read.handler_calls += 1
    return _no_wait_read.is_active and _no_wait_read.handler_calls > _MAX_HANDLER_CALLS


_ALL_BUSY, _SLOW = "all reading connections are busy", "reads wait for the disk"
SLOW_READ_SECONDS = 0.05
"""Min seconds of a read without waiting that counts as slow, because it had to wait for the disk."""
READ_PAUSE = 1.0
"""Interval in seconds without reads of a kind that had been slow or taken too many steps."""


class Readers:
    """A pool of reading connections, opened on first use and reopened after a failure."""

    def __init__(self, path: Path, options: SqliteOptions, deadline: Deadline) -> None:
        self._path = path
        self._options = options
        self._deadline = deadline
        self._free: SimpleQueue[Connection | None] = SimpleQueue()
        self._reads_from = 0.0
        """Monotonic time until which no read without waiting begins."""
        self._loop: AbstractEventLoop | None = None
        self._loop_thread = 0
        self.turn_connection: Connection | None = None
        """The connection of all reads without waiting of this turn of the loop, in one read transaction."""
        self.turn_clock: Any = None
        """The row of the clock in this transaction, once it was read."""
        self._closed = False
        for _ in range(options.readers):
            self._free.put(None)

    def acquire(self) -> Connection:
        """Returns a free connection. Return it with :meth:`release`, or call :meth:`drop` after an error.

        Waits for a free connection up to the deadline, and opens it if necessary.

        Raises:
            StoreBusy: All connections are in use.
            StoreUnavailable: The file cannot be opened.
            StoreClosed: The store is closed.
        """
        connection: Connection | None
        try:
            connection = self._free.get(timeout=self._deadline.time_left(self._options.deadline))
        except Empty as error:
            raise StoreBusy(_ALL_BUSY) from error
        self._require_open(connection)
        if connection is None:
            try:
                connection = connect(self._path, self._options, read_only=True)
            except BaseException:
                self._free.put(None)
                raise
        return connection

    def _require_open(self, connection: Connection | None) -> None:
        """Gives a connection back and raises StoreClosed if the store is closed."""
        if self._closed:
            self._free.put(connection)
            message = "the store is closed"
            raise StoreClosed(message)

    def release(self, connection: Connection) -> None:
        self._free.put(connection)

    def drop(self, connection: Connection) -> None:
        """Closes a connection instead of releasing it. A later :meth:`acquire` opens a new one."""
        with contextlib.suppress(apsw.Error):
            connection.close(True)  # noqa: FBT003 - apsw takes it by position only
        self._free.put(None)

    @contextlib.contextmanager
    def lend(self) -> Iterator[Connection]:
        """Lends a connection and translates driver errors; closes it after any error but Queuey's own.

        Raises:
            StoreBusy: All connections are in use (see :meth:`acquire`).
            StoreUnavailable: The read failed.
        """
        connection = self.acquire()
        try:
            yield connection
        except BaseException as error:
            self._release_after_error(connection, error)
            raise
        else:
            self.release(connection)

    def adopt(self, loop: AbstractEventLoop | None) -> None:
        """Lets all reads without waiting of a turn of this thread's ``loop`` share a transaction."""
        self._end_turn()
        self._loop, self._loop_thread = loop, 0 if loop is None else threading.get_ident()

    def read_without_waiting(self, read: Callable[[Connection], T]) -> T:
        """Reads without waiting for a connection or another process, and stops after too many rows.

        In an adopted loop all such reads of a turn share a transaction: SQLite locks the log, looks for new commits and
        drops its cache once a transaction. None misses what was acknowledged before its request was sent, because the
        request arrived before the turn. The end is scheduled before the snapshot is taken, so whatever a later commit
        wakes runs after it.

        Raises:
            StoreBusy: No open connection is free, or a read of the last second was slow.
            StoreClosed: The store is closed.
            TooLong: The read would have to wait, or goes through too many rows.
            StoreUnavailable: The read failed.
        """
        if (began := monotonic()) < self._reads_from:
            raise StoreBusy(_SLOW)
        in_turn = threading.get_ident() == self._loop_thread
        connection = self.turn_connection if in_turn else None
        if connection is None:
            connection = self._acquire_open(for_turn=in_turn)
        try:
            _no_wait_read.is_active, _no_wait_read.handler_calls = True, 0
            try:
                result = read(connection)
            finally:
                _no_wait_read.is_active = False
                if (ended := monotonic()) - began > SLOW_READ_SECONDS:
                    self._reads_from = ended + READ_PAUSE
        except (apsw.InterruptError, apsw.BusyError) as error:
            if not in_turn:
                self._free.put(connection)
            message = "this read takes too long"
            raise TooLong(message) from error
        except BaseException as error:
            if in_turn and isinstance(error, QueueyError):
                raise
            if in_turn:
                self.turn_connection = self.turn_clock = None
            self._release_after_error(connection, error)
            raise
        if not in_turn:
            self._free.put(connection)
        return result

    def _acquire_open(self, *, for_turn: bool) -> Connection:
        """Returns an open connection that is free now, for a turn with its transaction begun.

        Raises:
            StoreBusy: All open connections are in use.
            StoreClosed: The store is closed.
        """
        connection = None
        try:
            for _ in range(self._options.readers):
                if (connection := self._free.get_nowait()) is not None:
                    break
                self._free.put(None)
        except Empty:
            pass
        if connection is None:
            raise StoreBusy(_ALL_BUSY)
        if self._closed:
            self._require_open(connection)
        if for_turn and self._loop is not None:
            self._loop.call_soon(self._end_turn)
            self.turn_connection = connection
            connection.execute("BEGIN")
        return connection

    def _end_turn(self) -> None:
        if (connection := self.turn_connection) is not None:
            self.turn_connection = self.turn_clock = None
            try:
                connection.execute("END")
            except apsw.Error:
                self.drop(connection)
            else:
                self._free.put(connection)

    def _release_after_error(self, connection: Connection, error: BaseException) -> None:
        """Gives a connection back after an error, closed unless the error is Queuey's own.

        Raises the translated error if it is the driver's.
        """
        if isinstance(error, QueueyError):
            self.release(connection)
            return
        # The error may keep a statement open, so that the next caller would read in its old snapshot.
        self.drop(connection)
        if isinstance(error, apsw.Error):
            raise translate(error) from error
        if isinstance(error, DAMAGE_ERRORS):
            raise make_damage_error(error) from error

    def close(self, timeout: float) -> None:
        """Closes the connections as they become free, for at most ``timeout`` seconds.

        Afterwards none can be acquired.
        """
        self._closed = True
        until = monotonic() + timeout
        closed = 0
        while closed < self._options.readers:
            try:
                connection = self._free.get(timeout=max(0.0, until - monotonic()))
            except Empty:
                break
            if connection is not None:
                with contextlib.suppress(apsw.Error):
                    connection.close(True)  # noqa: FBT003 - apsw takes it by position only
            closed += 1
        for _ in range(closed):
            self._free.put(None)


def checkpoint(connection: Connection, *, truncate: bool = False) -> int:
    """Copies the write-ahead log into the database file without waiting for others.

    Returns the log's pages, 0 if another process prevents it.
    """
    mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if truncate else apsw.SQLITE_CHECKPOINT_PASSIVE
    with contextlib.suppress(apsw.BusyError, apsw.LockedError):
        pages, _ = connection.wal_checkpoint(mode=mode)
        return max(0, pages)
    return 0
