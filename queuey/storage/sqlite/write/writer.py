"""One writer thread with group commit.

Every write of the process goes through it. It takes all waiting operations, runs them in one transaction, and
answers all callers after one fsync; while it commits, the next group gathers. No wait is added.

States of an operation and what moves it::

    waiting ──(writer claims it)──► running ──(COMMIT returned)──► done: result
       │                              └──────(error)────────────► done: error
       └──(caller's deadline claims it)──► withdrawn: outcome "none", never run

A caller whose deadline passes while its operation runs gives up with outcome ``unknown``.

A group that fails as a whole (disk full, lock) fails for all its callers with the same error. If one operation fails
by its own fault, the group is rolled back and the operations run again one by one, so that only that one fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from queuey.errors import Outcome, QueueyError, StoreClosed, StoreUnavailable
from queuey.storage.bridge import thread
from queuey.storage.calls import Deadline, Done
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.connection import Connection, DatabaseError, SqliteOptions
from queuey.storage.sqlite.write.transaction import Append, Clock, Transaction
from queuey.storage.troubles import Trouble

T = TypeVar("T")
log = logging.getLogger(__name__)

_GROUP_MESSAGES = 4000
_GROUP_BYTES = 4 << 20
"""Max bytes of bodies of a group, to bound its latency."""


class _Operation(msgspec.Struct):
    """A pending write: an :class:`Append`, or any function of the transaction.

    The thread that acquires ``claim`` decides: the writer runs the operation, its caller withdraws it.
    """

    work: Append | Callable[[Transaction], Any]
    done: Done
    weight: int
    claim: Any = msgspec.field(default_factory=threading.Lock)
    result: Any = None
    error: Exception | None = None

    def withdraw(self) -> Outcome:
        """Gives up; afterwards no callback is called. Returns the possible outcomes of the write."""
        self.done = lambda _result, _error: None
        return "none" if self.claim.acquire(blocking=False) else "unknown"


class SqliteWriter:
    """The writing side of one store in one process, with its thread.

    Args:
        path: The store's file.
        options: Timeouts and the clock.
        deadline: Of the calls that write.
        low: The ``low`` of all ids made here.
        verify: Called before each transaction; raises if the file cannot be used.
        committed: Called in the writer's thread after each commit.
    """

    def __init__(
        self,
        path: Path,
        options: SqliteOptions,
        deadline: Deadline,
        low: int,
        verify: Callable[[], None],
        committed: Callable[[Transaction], None],
    ) -> None:
        self._path = path
        self._options = options
        self._deadline = deadline
        self._low = low
        self._verify = verify
        self._committed = committed
        self._inbox: SimpleQueue[list[_Operation] | None] = SimpleQueue()
        self._waiting: deque[_Operation] = deque()
        """Operations that the writer has taken out of its inbox."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn: list[_Operation] = []
        """Operations that have come in this turn of the loop."""
        self._connection: Connection | None = None
        self._closed = False
        self._ends = False
        """It has been told to end, when it has done what waits."""
        self._ended = False
        self._clock: Clock | None = None
        self._version = -1
        self.commits = 0
        self.operations = 0
        self.written = 0
        """Bytes of bodies."""
        self.longest = 0.0
        self.trouble = Trouble(log, "Writing to the store")
        self._thread = threading.Thread(target=self._run, name="queuey-writer", daemon=True)
        self._thread.start()

    def begin_append(self, append: Append, weight: int, done: Done) -> Callable[[], Outcome]:
        """Starts to store messages; ``done`` gets their positions, or the result of a post with a key, or the error.

        ``weight`` is the bytes of their bodies.
        """
        operation = _Operation(append, done, weight)
        loop = self._loop
        is_here = loop is not None and loop is asyncio._get_running_loop()  # noqa: SLF001 - the quick form of get_running_loop
        if loop is None or not is_here or thread.runs:  # Who blocks the loop waits for no turn of it.
            self._submit(operation)
        else:
            if self._closed:
                raise _closed()
            if not self._turn:
                loop.call_soon(self._hand_over)
            self._turn.append(operation)
        return operation.withdraw

    def begin(self, work: Callable[[Transaction], T], done: Done, *, weight: int) -> Callable[[], Outcome]:
        """Starts :meth:`perform`; ``done`` is called once with the result, in the writer's thread.

        Returns what gives it up.

        Raises:
            StoreClosed: The store is closed; ``done`` is not called.
        """
        operation = _Operation(work, done, weight)
        self._submit(operation)
        return operation.withdraw

    def perform(self, work: Callable[[Transaction], T], *, weight: int = 0) -> T:
        """Runs ``work`` inside a transaction and returns its result once that is committed.

        ``work`` may be run again after a rollback, so it must keep its effects inside the transaction. ``weight`` is
        the bytes of bodies that it writes.

        Raises:
            QueueyError: Raised by ``work``; its effects are undone.
            StoreUnavailable: The write failed; see its ``outcome``.
        """
        result: T = self._wait(work, weight)
        return result

    def _wait(self, work: Append | Callable[[Transaction], Any], weight: int) -> Any:  # noqa: ANN401 - what the operation gives
        left = self._deadline.left(self._options.deadline)
        answered = threading.Lock()
        answered.acquire()
        operation = _Operation(work, lambda _result, _error: answered.release(), weight)
        self._submit(operation)
        if not answered.acquire(timeout=left):
            outcome = operation.withdraw()
            message = "the store did not finish the write in time"
            raise StoreUnavailable(message, outcome=outcome)
        try:
            if operation.error is not None:
                raise operation.error
            return operation.result
        finally:
            del operation  # It has the error, which has this frame: a cycle would keep what the caller has.

    def _submit(self, operation: _Operation) -> None:
        if self._closed:
            raise _closed()
        self._inbox.put([operation])
        if self._ended:
            self._refuse_rest()

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Hands over together, from now on, what is begun in one turn of this loop; called in its thread."""
        self._hand_over()
        self._loop = loop

    def _hand_over(self) -> None:
        """Gives the writer what has come in a turn, which wakes it once, and makes one group of it."""
        operations, self._turn = self._turn, []
        if operations:
            self._inbox.put(operations)
            if self._ended:
                self._refuse_rest()

    def close(self, timeout: float) -> None:
        """Finishes accepted operations, then ends the thread; those left after ``timeout`` are refused."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._inbox.put(None)
        self._thread.join(timeout)
        self._refuse_rest()
        if self._thread.is_alive():
            self._inbox.put(None)  # The one before may just have been taken out.

    def _refuse_rest(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._waiting += self._inbox.get_nowait() or ()
        for operation in list(self._waiting):
            if operation.claim.acquire(blocking=False):
                operation.error = _closed()
                operation.done(None, operation.error)

    def _run(self) -> None:
        while not self._ends or self._waiting:
            self._gather_and_handle()
        self._ended = True
        self._refuse_rest()
        self._disconnect(checkpoint=True)

    def _gather_and_handle(self) -> None:
        """Waits for operations, and runs all that have come as one group."""
        inbox, waiting = self._inbox, self._waiting
        for _ in range(inbox.qsize() or not waiting):
            operations = inbox.get()
            if operations is None:
                self._ends = True
                break
            waiting += operations
        group: list[_Operation] = []
        size = weight = 0
        while waiting and size < _GROUP_MESSAGES and weight < _GROUP_BYTES:
            operation = waiting.popleft()
            if operation.claim.acquire(blocking=False):
                group.append(operation)
                size += len(operation.work.items) if isinstance(operation.work, Append) else 1
                weight += operation.weight
        if group:
            self._handle(group)

    def _handle(self, group: list[_Operation]) -> None:
        began = time.monotonic()
        try:
            self._attempt(group)
        except QueueyError as error:
            self._refuse(group, error)
        except Exception:  # noqa: BLE001 - its caller gets it below; the thread must go on
            for operation in group:
                try:
                    self._attempt([operation])
                except Exception as error:  # noqa: BLE001 - it belongs to the caller that waits
                    operation.error = error
        else:
            if self.trouble.reason is not None:
                self.trouble.passed()
        self.longest = max(self.longest, time.monotonic() - began)
        for operation in group:
            try:
                operation.done(operation.result, operation.error)
            except Exception:
                log.exception("The result of a write could not be delivered.")

    def _refuse(self, group: list[_Operation], error: QueueyError) -> None:
        """Fails a whole group by an error of the store."""
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreClosed):
            self.trouble.met(error.code, error)
        for operation in group:
            operation.error = error

    def _attempt(self, group: Sequence[_Operation]) -> None:
        """Runs a group in one transaction and sets the results.

        Raises:
            QueueyError: The store failed.
            Exception: An operation failed by its own fault; nothing was stored.
        """
        self._verify()
        connection = self._connection or self._open()
        outcome: Outcome = "none"
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                # The version is that of our last commit as long as no other process has written since.
                known = self._clock if connection.data_version() == self._version else None
                self._clock = None
                transaction = Transaction(connection, self._options.clock(), self._low, known)
                results = [_apply(operation, transaction) for operation in group]
                clock = transaction.finish()
                outcome = "unknown"
                connection.execute("COMMIT")
                self._clock, self._version = clock, connection.data_version()
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except DatabaseError as error:
            certain = driver.is_certain(error)
            if not certain:
                self._disconnect()
            raise driver.translate(error, "none" if certain else outcome) from error
        for operation, (result, error_of_one) in zip(group, results, strict=True):
            operation.result, operation.error = result, error_of_one
        self.commits += 1
        self.operations += len(group)
        self.written += sum([operation.weight for operation in group])
        try:
            self._committed(transaction)
        except Exception:
            log.exception("Waiting readers could not be notified of new messages.")

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


def _closed() -> StoreClosed:
    return StoreClosed("the store is closed")


def _apply(operation: _Operation, transaction: Transaction) -> tuple[Any, Exception | None]:
    """Runs one operation; returns its result, or the error with which it declined without having changed anything."""
    work = operation.work
    try:
        if isinstance(work, Append):
            return (transaction.append(work) if work.key is None else transaction.append_once(work, work.key)), None
        return transaction.isolated(work), None
    except QueueyError as error:
        return None, error.with_traceback(None)  # Its frames have the operation, which has the error.
    except driver.DAMAGE as error:
        return None, driver.damaged(error)
