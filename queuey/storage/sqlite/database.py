"""The shared parts of the embedded store: connections, writer, and cached queue rows."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from queuey.model import ids
from queuey.model.errors import StoreBusy, StoreFull, StoreIncompatible, StoreUnavailable
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Queue
from queuey.storage.deadlines import Deadline, in_thread
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite import row_codec, schema
from queuey.storage.sqlite.connection import Connection, Readers, SqliteOptions
from queuey.storage.sqlite.transaction import Transaction
from queuey.storage.sqlite.writer import SqliteWriter

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

MIN_FREE_BYTES = 2 << 20
"""Min free bytes on the disk for the store to be healthy."""
MIN_FILE_BYTES = 512
"""Min bytes of a SQLite file that is not empty: one page."""

_ROW_BYTES, _PRINCIPAL_BYTES = 570, 250
"""Bytes of a queue's row in memory without its texts, once it has been asked for its traits, and of each of its
principals."""
_ROOM = 64
"""Ratio of the cache to what is freed when it is full."""
_SELECT_LAST_TICKS = "SELECT last_ticks FROM clock"
_HAS_DUE_MESSAGE = "SELECT 1 FROM messages WHERE queue_partition = ? AND ticks > ? AND ticks <= ? LIMIT 1"


def threaded(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Turns a blocking method of a contract into a coroutine that runs it in a thread, under the deadline.

    On a service's loop this is a thread of the calling request's share: see
    :meth:`queuey.runtime.event_loop.Core.in_thread`.
    """

    def bounded(contract: Any, *arguments: P.args, **named: P.kwargs) -> T:  # noqa: ANN401 - of any contract
        with contract._db.deadline.running():  # noqa: SLF001 - as above
            return method(contract, *arguments, **named)

    async def call(contract: S, *arguments: P.args, **named: P.kwargs) -> T:
        return await in_thread(partial(bounded, contract, *arguments, **named))

    return cast("Callable[Concatenate[S, P], Coroutine[Any, Any, T]]", wraps(method)(call))


class SqliteQueueCache:
    """Queue rows in memory, up to a number of bytes.

    A full cache drops rows of the applications that hold more than the average, the oldest first. So an application
    that names many queues takes no memory from one that needs less.

    Entries may lag behind changes of other processes: each use verifies its entry (see :func:`row_codec.verify`).
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.rows: dict[str, dict[str, Queue]] = {}
        """Rows by application and name."""
        self._bytes: dict[str, int] = {}
        """Bytes of each application's rows."""
        self._total = 0
        self._lock = threading.Lock()

    def put(self, queue: Queue) -> None:
        with self._lock:
            self._remove(queue.application, queue.name)
            self.rows.setdefault(queue.application, {})[queue.name] = queue
            self._add_bytes(queue.application, _measure_row(queue))
            if self._total > self._max_bytes:
                self._drop_oldest()

    def clear(self) -> None:
        with self._lock:
            self.rows.clear()
            self._bytes.clear()
            self._total = 0

    def drop(self, application: str, name: str) -> None:
        with self._lock:
            self._remove(application, name)

    def _remove(self, application: str, name: str) -> None:
        rows = self.rows.get(application, {})
        if (row := rows.pop(name, None)) is not None:
            self._add_bytes(application, -_measure_row(row))
            if not rows:
                del self.rows[application], self._bytes[application]

    def _add_bytes(self, application: str, size: int) -> None:
        self._bytes[application] = self._bytes.get(application, 0) + size
        self._total += size

    def _drop_oldest(self) -> None:
        target = self._max_bytes - self._max_bytes // _ROOM
        average = target // len(self._bytes)
        for application in sorted(self._bytes, key=self._bytes.__getitem__, reverse=True):
            excess = min(self._bytes[application] - average, self._total - target)
            for name in list(islice(self.rows[application], max(0, excess) // _ROW_BYTES + 1)):
                if self._total <= target or self._bytes.get(application, 0) <= average:
                    break
                self._remove(application, name)


def _measure_row(queue: Queue) -> int:
    texts = len(queue.name) + len(queue.description) + len(queue.facade)
    return _ROW_BYTES + texts + _PRINCIPAL_BYTES * len(queue.principals)


class Database:
    """One open store file.

    Attributes:
        write: Runs work in a write transaction (:meth:`SqliteWriter.write`).
    """

    def __init__(self, data: Path, options: SqliteOptions, deadline: Deadline) -> None:
        """Opens or creates the file.

        Raises:
            StoreUnavailable: The directory or the file cannot be used.
            StoreIncompatible: The file is not a store, has another format, or is a copy without its log.
        """
        self.path = driver.file_of(data)
        directory = self.path.parent
        self.options = options
        self.deadline = deadline
        self.clock = options.clock
        self.queues = SqliteQueueCache(options.queue_cache_bytes)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # An existing file must not be opened: closing it would release the locks of this process's other stores.
            with contextlib.suppress(FileExistsError):
                self.path.touch(mode=0o600, exist_ok=False)
            driver.require_private(self.path)
            size, has_log = self.path.stat().st_size, driver.has_log(self.path)
        except OSError as error:
            message = f"the data directory {directory} cannot be used: {error.strerror or error}"
            raise StoreUnavailable(message) from error
        if self.path.is_file() and 0 < size < MIN_FILE_BYTES:  # SQLite would treat it as empty and overwrite it.
            raise StoreIncompatible(f"{self.path} is not a database. Choose another file")
        connection = driver.connect(self.path, options, create=True, keep_mode=size > 0)
        try:
            schema.prepare(connection, self.path, has_log=has_log)
        finally:
            connection.close()
        self.readers = Readers(self.path, options, deadline)
        self.writer = SqliteWriter(self.path, options, deadline, ids.random_low())
        self.write = self.writer.write

    def refresh_catalogue_version(self, connection: Connection) -> int:
        row: Any = connection.execute(row_codec.SELECT_CATALOGUE_VERSION).fetchone()
        version: int = row[0]
        if (latest := self.writer.catalogue) == version:
            return latest  # The rows in memory share one number.
        self.writer.catalogue = version
        return version

    def last_ticks(self) -> int:
        with self.readers.lend() as connection:
            row: Any = connection.execute(_SELECT_LAST_TICKS).fetchone()
        last: int = row[0]
        return last

    def ids_ahead(self) -> float:
        return max(0, self.last_ticks() - self.clock()) / TICKS_PER_SECOND

    def verify(self, connection: Connection, queue: Queue) -> None:
        """Checks that a queue's row is current.

        Raises:
            QueueChanged: The row is out of date.
        """
        if queue.version != self.refresh_catalogue_version(connection):
            row_codec.verify(connection, queue)

    def read_clock(
        self,
        connection: Connection,
        queue: Queue | None = None,
        numbers: Iterable[int] | None = None,
        *,
        wait: bool = True,
    ) -> tuple[int, int]:
        """Returns the highest tick up to which reads are complete, and the version of the catalogue.

        Call it before reading the rows that it bounds. If a delayed message has become due, the clock is advanced in a
        write transaction first, so that no id is made below that message afterwards. If this fails, the present clock
        is returned, which is still exact; the message is shown later. The writer keeps the version.

        Args:
            connection: A reading connection.
            queue: The queue to be read, or None for all. Due messages of others do not advance the clock.
            numbers: Its partitions to be read, or None for all.
            wait: Advance the clock if necessary.

        Raises:
            StoreBusy: The clock must be advanced, and ``wait`` is false.
        """
        readers = self.readers
        row: Any = readers.turn_clock if connection is readers.turn_connection else None
        if row is None:
            row = connection.execute(row_codec.SELECT_CLOCK).fetchone()
            if connection is readers.turn_connection:
                readers.turn_clock = row
        last, catalogue, due, _ = row
        if (
            due is not None
            and last < due <= (now := self.clock())
            and _has_due_message(connection, queue, numbers, last, now)
        ):
            if not wait:
                message = "a delayed message has become due"
                raise StoreBusy(message)
            with contextlib.suppress(StoreUnavailable):
                last = self.writer.perform(Transaction.advance)
        self.writer.catalogue = catalogue
        return last, catalogue

    def verify_free_space(self) -> None:
        """Checks that the disk has free space.

        A test write would not show it, because small writes succeed on a nearly full disk.

        Raises:
            StoreFull: Fewer than ``MIN_FREE_BYTES`` bytes are free.
            StoreUnavailable: The directory cannot be used.
        """
        try:
            disk = os.statvfs(self.path.parent)
        except OSError as failure:
            message = f"the directory of the store cannot be used: {failure}"
            raise StoreUnavailable(message, retry_after=30) from failure
        if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
            message = f"no space left for the store: {disk.f_bavail * disk.f_frsize} bytes are free"
            error = StoreFull(message, retry_after=10)
            self.writer.trouble.record_failure(error.code, error)
            raise error

    def close(self, timeout: float) -> None:
        self.writer.close(timeout)
        self.queues.clear()
        self.readers.close(min(timeout, 2.0))
        if self.writer.is_in_place():
            driver.close_file(self.path)


def _has_due_message(
    connection: Connection, queue: Queue | None, numbers: Iterable[int] | None, last: int, now: int
) -> bool:
    return queue is None or any(
        connection.execute(_HAS_DUE_MESSAGE, (queue.qid << 8 | number, last, now)).fetchall()
        for number in numbers or range(1, queue.partitions + 1)
    )
