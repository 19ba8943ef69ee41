"""The shared parts of the embedded store: the connections, the writer, the cached catalogue."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from queuey import ids
from queuey.errors import StoreBusy, StoreFull, StoreIncompatible, StoreUnavailable
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Queue
from queuey.storage import items as items_of
from queuey.storage.calls import Deadline, ended, in_thread
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite import row_codec, schema
from queuey.storage.sqlite.connection import Connection, Readers, SqliteOptions
from queuey.storage.sqlite.write.transaction import Append, Transaction
from queuey.storage.sqlite.write.writer import SqliteWriter

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

TIMEOUT_MESSAGE = "the store did not finish the write in time"
LEAST_ROOM = 2 << 20
"""Min bytes that must be free on the disk for the store to call itself well."""
SMALLEST_FILE = 512
"""Min bytes of a SQLite file that is not empty: one page."""
LOG_BYTES = 2 << 20
"""Min bytes of bodies after which the log is worth copying: an eighth of those at which a commit would do it."""


_LAST_TICKS = "SELECT last_ticks FROM clock"
_COMES_DUE = "SELECT 1 FROM messages WHERE queue_partition = ? AND ticks > ? AND ticks <= ? LIMIT 1"


def threaded(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Makes a call of a contract of a method that blocks: it runs in a thread that may wait."""

    def bounded(contract: Any, *arguments: P.args, **named: P.kwargs) -> T:  # noqa: ANN401 - of any contract
        with contract._db.deadline.running():  # noqa: SLF001 - as above
            return method(contract, *arguments, **named)

    async def call(contract: S, *arguments: P.args, **named: P.kwargs) -> T:
        return await in_thread(partial(bounded, contract, *arguments, **named))

    return cast("Callable[Concatenate[S, P], Coroutine[Any, Any, T]]", wraps(method)(call))


class SqliteQueueCache:
    """The rows of recently used queues; bounded, the oldest entry leaves first.

    Entries may be behind other processes' changes: each use verifies its entry (see :func:`row_codec.verify`).
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: dict[tuple[str, str], Queue] = {}
        self._lock = threading.Lock()
        self.get = self._rows.get

    def put(self, queue: Queue) -> None:
        key = queue.application, queue.name
        with self._lock:
            if key not in self._rows and len(self._rows) >= self._size:
                self._rows.pop(next(iter(self._rows)))
            self._rows[key] = queue

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def drop(self, application: str, name: str) -> None:
        with self._lock:
            self._rows.pop((application, name), None)


class Database:
    """One open store file.

    Attributes:
        catalogue: The version of the catalogue that this process saw last; rows read at another version are looked up
            again.
        appended: Messages appended by this process.
    """

    def __init__(self, data: Path, options: SqliteOptions, deadline: Deadline) -> None:
        """Opens or creates the file.

        Raises:
            StoreUnavailable: The directory or the file cannot be used.
            StoreIncompatible: The file is not a store, or a newer one.
        """
        self.path = driver.file_of(data)
        directory = self.path.parent
        self.options = options
        self.deadline = deadline
        self.clock = options.clock
        self.queues = SqliteQueueCache(options.cached_queues)
        self.told: Callable[[Transaction], None] = lambda _: None
        """Called after each commit, in the writer's thread."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Never opens a file that is there: closing it again would give up the locks of this process's other stores.
            with contextlib.suppress(FileExistsError):
                self.path.touch(mode=0o600, exist_ok=False)
            is_other = self.path.is_file() and 0 < self.path.stat().st_size < SMALLEST_FILE
        except OSError as error:
            message = f"the data directory {directory} cannot be used: {error.strerror or error}"
            raise StoreUnavailable(message) from error
        if is_other:  # SQLite would take it for an empty one, and overwrite it.
            raise StoreIncompatible(f"{self.path} is not a database. Name another file")
        connection = driver.connect(self.path, options, create=True)
        try:
            schema.prepare(connection, self.path)
        finally:
            connection.close()
        self._name = str(self.path)
        self._identity = self._inode()
        self.appended = 0
        self.catalogue = 0
        self.log_grows = threading.Event()
        """Set whenever the writer has written another ``LOG_BYTES``."""
        self._announced = 0
        self.readers = Readers(self.path, options, deadline)
        self.writer = SqliteWriter(self.path, options, deadline, ids.random_low(), self.verify_place, self._committed)

    def append(self, work: Append) -> Coroutine[Any, Any, Any]:
        """Stores messages; awaited, it gives what :meth:`SqliteWriter.begin_append` gives."""
        begin = partial(self.writer.begin_append, work, items_of.check_items(work.queue, work.items))
        return ended(begin, self.deadline, TIMEOUT_MESSAGE, tells=True)

    async def write(self, work: Callable[[Transaction], T], *, weight: int = 0) -> T:
        """Runs work inside a transaction; returns its result once that is committed. See :meth:`SqliteWriter.begin`."""
        begin = partial(self.writer.begin, work, weight=weight)
        result: T = await ended(begin, self.deadline, TIMEOUT_MESSAGE)
        return result

    def read_catalogue(self, connection: Connection) -> int:
        row: Any = connection.execute(row_codec.CATALOGUE).fetchone()
        self.catalogue = row[0]
        return self.catalogue

    def last_ticks(self) -> int:
        """Returns the time (ticks) of the highest id that was made."""
        with self.readers.reading() as connection:
            row: Any = connection.execute(_LAST_TICKS).fetchone()
        last: int = row[0]
        return last

    def ids_ahead(self) -> float:
        """Returns the seconds by which the highest id is ahead of the clock."""
        return max(0, self.last_ticks() - self.clock()) / TICKS_PER_SECOND

    def verify(self, connection: Connection, queue: Queue) -> None:
        """Checks that a queue's row is current.

        Raises:
            QueueChanged: It is not.
        """
        if queue.version != self.read_catalogue(connection):
            row_codec.verify(connection, queue)

    def read_clock(
        self, connection: Connection, partitions: Iterable[int] | None = None, *, wait: bool = True
    ) -> tuple[int, int]:
        """Returns the highest tick that is certainly readable, and the version of the catalogue.

        Sampled before the rows that it bounds are read. If a delayed message has come due, the clock is moved on in a
        write transaction first, so that no id is made below it afterwards; where that fails, the clock as it stands
        is exact all the same, and the message shows later.

        Args:
            connection: Reads.
            partitions: Those that are read (``qp``): messages that come due elsewhere move nothing. None: all.
            wait: Move the clock on if that is necessary.

        Raises:
            StoreBusy: The clock has to be moved on, and ``wait`` is false.
        """
        row: Any = connection.execute(row_codec.CLOCK).fetchone()
        last, catalogue, due, _ = row
        if due is not None and last < due <= (now := self.clock()) and _comes_due(connection, partitions, last, now):
            if not wait:
                message = "a delayed message has come due"
                raise StoreBusy(message)
            with contextlib.suppress(StoreUnavailable):
                last = self.writer.perform(Transaction.advance)
        self.catalogue = catalogue
        return last, catalogue

    def verify_place(self) -> None:
        """Checks that the file is still the one that was opened: writes to another's remains would be lost.

        Raises:
            StoreUnavailable: It was moved, removed or replaced.
        """
        if self._inode() != self._identity:
            message = f"{self.path} was moved, removed or replaced while in use"
            raise StoreUnavailable(message, retry_after=30)

    def verify_room(self) -> None:
        """Checks that the file can grow: while next to nothing is free the smallest writes would still succeed.

        Raises:
            StoreFull: It cannot.
            StoreUnavailable: Its directory is gone.
        """
        try:
            disk = os.statvfs(self.path.parent)
        except OSError as failure:
            message = f"the directory of the store cannot be used: {failure}"
            raise StoreUnavailable(message, retry_after=30) from failure
        if disk.f_bavail * disk.f_frsize < LEAST_ROOM:
            message = f"no space left for the store: {disk.f_bavail * disk.f_frsize} bytes are free"
            error = StoreFull(message, retry_after=10)
            self.writer.trouble.met(error.code, error)
            raise error

    def _inode(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._name)  # noqa: PTH116 - once per commit; a Path costs three times as much
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _committed(self, transaction: Transaction) -> None:
        self.appended += transaction.messages
        self.catalogue = transaction.catalogue
        if self.writer.written - self._announced >= LOG_BYTES:
            self._announced = self.writer.written
            self.log_grows.set()
        self.told(transaction)

    def close(self, timeout: float) -> None:
        """Finishes accepted writes and closes everything."""
        self.writer.close(timeout)
        self.queues.clear()
        self.readers.close(min(timeout, 2.0))


def _comes_due(connection: Connection, partitions: Iterable[int] | None, last: int, now: int) -> bool:
    """Returns whether any of the partitions has a message above ``last`` that is due."""
    return partitions is None or any(connection.execute(_COMES_DUE, (qp, last, now)).fetchall() for qp in partitions)
