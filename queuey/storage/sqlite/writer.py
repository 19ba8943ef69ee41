"""One writer thread with group commit.

Every write of the process goes through this thread. It runs all waiting operations in one transaction and answers all
callers after one fsync. While it commits, the next group collects; no wait is added.

States of an operation and their transitions::

    waiting ──(writer claims it)──► running ──(COMMIT returned)──► done: result
       │                              └──────(error)────────────► done: error
       └──(caller withdraws it)──► withdrawn: outcome "none", never run

A caller withdraws when its deadline has passed. A thread that blocks has the store's deadline. A coroutine has that of
its request: :meth:`queuey.web.requests.Request.give_up` cancels what it awaits. If the operation is running already,
the outcome is ``unknown``.

If a group fails as a whole (disk full, lock), all its callers receive the same error. If one operation fails with an
unexpected error, the group is rolled back and the operations are run again one by one, so that only that one fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, overload

import msgspec

from queuey.model.errors import Outcome, QueueyError, StoreClosed, StoreUnavailable
from queuey.storage.bridge import thread_state
from queuey.storage.deadlines import Deadline, GivenUp
from queuey.storage.lasting_failures import Trouble
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.connection import Connection, DatabaseError, SqliteOptions
from queuey.storage.sqlite.transaction import Append, ClockRow, Transaction

T = TypeVar("T")
log = logging.getLogger(__name__)

MIN_CHECKPOINT_BYTES = 2 << 20
"""Min bytes of bodies written before the sweep copies the log: an eighth of the size at which a commit copies it."""
_MAX_GROUP_MESSAGES = 4000
_MAX_GROUP_BYTES = 4 << 20
"""Max bytes of bodies in a group, which bounds its latency."""


class _Operation(msgspec.Struct):
    """A pending write: an :class:`Append`, or any function of the transaction.

    The first thread to acquire ``taken`` decides: the writer runs the operation, or the caller withdraws it.

    Attributes:
        caller: What the caller waits for: a coroutine for a future, a thread that blocks for a lock that the writer
            releases.
    """

    work: Append | Callable[[Transaction], Any]
    weight: int
    caller: asyncio.Future[None] | threading.Lock
    taken: Any = msgspec.field(default_factory=threading.Lock)
    result: Any = None
    error: Exception | None = None

    def run(self, transaction: Transaction) -> None:
        work = self.work
        self.error = None
        try:
            if not isinstance(work, Append):
                self.result = transaction.run_isolated(work)
            elif work.key is None:
                self.result = transaction.append(work)
            else:
                self.result = transaction.append_once(work, work.key)
        except QueueyError as error:
            self.error = error.with_traceback(None)  # Its frames refer to the operation, which refers to the error.
        except driver.DAMAGE_ERRORS as error:
            self.error = driver.make_damage_error(error)

    def withdraw(self) -> Outcome:
        return "none" if self.taken.acquire(blocking=False) else "unknown"


class SqliteWriter:
    """The writer of one store in one process, with its thread.

    Args:
        path: The store's file.
        options: Timeouts and the clock.
        deadline: Deadline of the calls that write.
        low: The ``low`` of all ids made here.

    Attributes:
        on_commit: Called after each commit, in the writer's thread.
        catalogue: The last version of the catalogue seen by this process. Cached rows of other versions are read again.
        appended: Number of messages appended by this process.
        log_grows: Set each time another ``MIN_CHECKPOINT_BYTES`` were written.
    """

    def __init__(self, path: Path, options: SqliteOptions, deadline: Deadline, low: int) -> None:
        self._path = path
        self._name = str(path)
        self._opened = path.stat()
        self._options = options
        self._deadline = deadline
        self._low = low
        self.on_commit: Callable[[Transaction], None] | None = None
        self.catalogue = 0
        self.appended = 0
        self.log_grows = threading.Event()
        self._announced = 0
        self._inbox: SimpleQueue[list[_Operation] | None] = SimpleQueue()
        self._waiting: deque[_Operation] = deque()
        """Operations that the writer has taken out of its inbox."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._begun_in_turn: list[_Operation] = []
        """Operations begun in this iteration of the loop."""
        self._connection: Connection | None = None
        self._closed = False
        self._ends = False
        """True once the writer is to end after the waiting operations."""
        self._ended = False
        self._clock: ClockRow | None = None
        self._version = -1
        self.commits = 0
        self.operations = 0
        self.written = 0
        """Bytes of bodies written so far."""
        self.longest = 0.0
        self.trouble = Trouble(log, "Writing to the store")
        self._thread = threading.Thread(target=self._run, name="queuey-writer", daemon=True)
        self._thread.start()

    @overload
    async def write(self, work: Append, weight: int) -> Any: ...  # noqa: ANN401 - by its key

    @overload
    async def write(self, work: Callable[[Transaction], T], weight: int = 0) -> T: ...

    async def write(self, work: Append | Callable[[Transaction], Any], weight: int = 0) -> Any:
        """Does as :meth:`perform` for a coroutine. A thread that may block blocks.

        Operations of one iteration of the adopted loop are submitted together.

        Raises:
            GivenUp: The task that stores messages was cancelled.
        """
        if thread_state.may_block:
            with self._deadline.running():
                return self._submit_and_wait(work, weight)
        if self._closed:
            raise _closed_error()
        # Asking for the running loop is a system call in Python 3.11.
        is_adopted = threading.get_ident() == self._loop_thread
        loop = self._loop if is_adopted and self._loop is not None else asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        operation = _Operation(work, weight, ended)
        if loop is not self._loop:
            self._submit([operation])
        else:
            if not self._begun_in_turn:
                loop.call_soon(self._submit_turn)
            self._begun_in_turn.append(operation)
        try:
            await ended
            if operation.error is not None:
                raise operation.error
        except asyncio.CancelledError:  # The request was given up, or the task was cancelled.
            outcome = operation.withdraw()
            if isinstance(work, Append):
                raise GivenUp(outcome) from None
            raise
        else:
            return operation.result
        finally:
            del operation  # Its error's traceback has this frame: the cycle would keep the caller's objects alive.

    def perform(self, work: Callable[[Transaction], T], *, weight: int = 0) -> T:
        """Runs ``work`` inside a transaction and returns its result after the commit; blocks.

        ``work`` may be run again after a rollback, so it must not have effects outside the transaction. ``weight`` is
        the number of bytes of bodies that it writes.

        Raises:
            QueueyError: The error raised by ``work``. Its effects are undone.
            StoreUnavailable: The write failed, or did not end before the deadline; see its ``outcome``.
        """
        result: T = self._submit_and_wait(work, weight)
        return result

    def _submit_and_wait(self, work: Append | Callable[[Transaction], Any], weight: int) -> Any:  # noqa: ANN401 - of the work
        timeout = self._deadline.time_left(self._options.deadline)
        answered = threading.Lock()
        answered.acquire()
        operation = _Operation(work, weight, answered)
        self._submit([operation])
        if not answered.acquire(timeout=timeout):
            outcome = operation.withdraw()
            message = "the store did not finish the write in time"
            raise StoreUnavailable(message, outcome=outcome)
        try:
            if operation.error is not None:
                raise operation.error
            return operation.result
        finally:
            del operation  # As in :meth:`write`.

    def _submit(self, operations: list[_Operation]) -> None:
        if self._closed:
            raise _closed_error()
        self._inbox.put(operations)
        if self._ended:
            self._refuse_rest()

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """From now on submits all operations begun in one iteration of this loop together. Call it in its thread."""
        self._submit_turn()
        self._loop = loop
        self._loop_thread = threading.get_ident()

    def _submit_turn(self) -> None:
        operations, self._begun_in_turn = self._begun_in_turn, []
        if operations:
            self._inbox.put(operations)
            if self._ended:
                self._refuse_rest()

    def close(self, timeout: float) -> None:
        if not self._closed:
            self._closed = True
            self._submit_turn()
            self._inbox.put(None)
        self._thread.join(timeout)
        self._refuse_rest()
        if self._thread.is_alive():
            self._inbox.put(None)  # `_refuse_rest` may have removed the previous None.

    def _refuse_rest(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._waiting += self._inbox.get_nowait() or ()
        refused = [operation for operation in list(self._waiting) if operation.taken.acquire(blocking=False)]
        for operation in refused:
            operation.error = _closed_error()
        _answer(refused)

    def _run(self) -> None:
        while not self._ends or self._waiting:
            if group := self._collect_group():
                self._run_group(group)
            del group  # Otherwise the thread would keep its bodies alive while it waits.
        self._ended = True
        self._refuse_rest()
        self._disconnect(checkpoint=True)

    def _collect_group(self) -> list[_Operation]:
        inbox, waiting = self._inbox, self._waiting
        for _ in range(inbox.qsize() or not waiting):
            operations = inbox.get()
            if operations is None:
                self._ends = True
                break
            waiting += operations
        group: list[_Operation] = []
        size = weight = 0
        while waiting and size < _MAX_GROUP_MESSAGES and weight < _MAX_GROUP_BYTES:
            operation = waiting.popleft()
            if operation.taken.acquire(blocking=False):
                group.append(operation)
                size += len(operation.work.items) if isinstance(operation.work, Append) else 1
                weight += operation.weight
        return group

    def _run_group(self, group: list[_Operation]) -> None:
        began = time.monotonic()
        try:
            self._commit_group(group)
        except QueueyError as error:
            self._set_error(group, error)
        except Exception:  # noqa: BLE001 - raised for its caller below; the thread must go on
            for operation in group:
                try:
                    self._commit_group([operation])
                except Exception as error:  # noqa: BLE001 - raised for the caller that waits
                    operation.error = error
        else:
            if self.trouble.reason is not None:
                self.trouble.record_success()
        self.longest = max(self.longest, time.monotonic() - began)
        _answer(group)

    def _set_error(self, group: list[_Operation], error: QueueyError) -> None:
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreClosed):
            self.trouble.record_failure(error.code, error)
        for operation in group:
            operation.error = error

    def _commit_group(self, group: Sequence[_Operation]) -> None:
        """Runs a group in one transaction, and sets the results. Then counts it and calls ``on_commit``.

        Raises:
            StoreUnavailable: The store failed; with outcome ``unknown`` if COMMIT may have succeeded. Or the file was
                moved, removed or replaced.
            StoreIncompatible: The file is not a database.
            Exception: An operation failed with an unexpected error. Nothing was stored.
        """
        if not self.is_in_place():
            message = f"{self._path} was moved, removed or replaced while in use"
            raise StoreUnavailable(message, retry_after=30)
        connection = self._connection or self._open()
        outcome: Outcome = "none"
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                # The version is still that of this writer's last commit if no other process has written since.
                cached_clock = self._clock if connection.data_version() == self._version else None
                self._clock = None
                transaction = Transaction(connection, self._options.clock(), self._low, cached_clock)
                weight = 0
                for operation in group:
                    operation.run(transaction)
                    weight += operation.weight
                clock = transaction.write_collected()
                outcome = "unknown"
                connection.execute("COMMIT")
                self._clock, self._version = clock, connection.data_version()
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except DatabaseError as error:
            certain = driver.has_no_effect(error)
            if not certain:
                self._disconnect()
            raise driver.translate(error, "none" if certain else outcome) from error
        self.commits += 1
        self.operations += len(group)
        self.appended += transaction.messages
        self.catalogue = transaction.catalogue
        self.written += weight
        if self.written - self._announced >= MIN_CHECKPOINT_BYTES:
            self._announced = self.written
            self.log_grows.set()
        if self.on_commit is not None:
            try:
                self.on_commit(transaction)
            except Exception:
                log.exception("Waiting readers could not be notified of new messages.")

    def is_in_place(self) -> bool:
        """Returns whether the path still refers to the file that was opened; otherwise writes would be lost."""
        try:
            status = os.stat(self._name)  # noqa: PTH116 - once per commit; a Path costs three times as much
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == (self._opened.st_dev, self._opened.st_ino)

    def _open(self) -> Connection:
        self._connection = driver.connect(self._path, self._options)
        self._clock = None
        return self._connection

    def _disconnect(self, *, checkpoint: bool = False) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if checkpoint:
                driver.checkpoint(connection, truncate=True)
            connection.close(True)  # noqa: FBT003 - apsw takes it by position only
        except DatabaseError:
            return


def _closed_error() -> StoreClosed:
    return StoreClosed("the store is closed")


def _answer(operations: Sequence[_Operation]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for operation in operations:
        if isinstance(operation.caller, asyncio.Future):
            by_loop.setdefault(operation.caller.get_loop(), []).append(operation.caller)
        else:
            operation.caller.release()
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_end_futures, futures)
        except RuntimeError:
            log.debug("The event loop has ended; its callers get no answer.")


def _end_futures(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
