"""Removes expired rows, and rows of purged and deleted queues.

A sweep does not delay other calls: it finds rows with a reading connection and deletes them through the writer in steps
of a few milliseconds. After each step it pauses for as long as the step took. It also copies the write-ahead log into
the database file, so that the writer rarely has to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from queuey.model import ids
from queuey.model.errors import QueueyError, StoreClosed
from queuey.model.ids import Position
from queuey.storage.lasting_failures import Trouble
from queuey.storage.sqlite import connection as driver
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.transaction import Transaction
from queuey.storage.sqlite.writer import MIN_CHECKPOINT_BYTES

log = logging.getLogger(__name__)

_SELECT_ENDED_WINDOWS = (
    "SELECT queue_partition, expired_by, message_count, first_ticks, last_ticks, longest_ttl FROM expiry_windows "
    "WHERE expired_by <= ? ORDER BY expired_by LIMIT 100"
)
_FIND_STEP_END = (
    "SELECT ticks, low FROM (SELECT ticks, low, row_number() OVER w AS n, sum(octet_length(body)) OVER w AS size "
    "FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND ticks <= ? "
    "WINDOW w AS (ORDER BY ticks, low ROWS UNBOUNDED PRECEDING)) WHERE n >= ? OR size >= ? LIMIT 1"
)
_DELETE_ENDED_ROWS = (
    "DELETE FROM messages WHERE queue_partition = ? AND (ticks, low) >= (?, ?) AND (ticks, low) <= (?, ?) AND "
    "coalesce(stored_until, expires) <= ? RETURNING 1"
)
_SELECT_OLD_RECORDS = (
    "SELECT kind, application, name, version FROM records WHERE expires < ? ORDER BY expires LIMIT 500"
)
_SELECT_PARTITIONS = (
    "SELECT DISTINCT queue_partition FROM expiry_windows WHERE queue_partition >= ? AND queue_partition < ?"
)
_HAS_ROWS_OF_QUEUE = "SELECT 1 FROM {} WHERE queue_partition >= ? AND queue_partition < ? LIMIT 1"
_DELETE_ROWS_OF_QUEUE = (
    "DELETE FROM {0} WHERE (queue_partition, {1}) IN "
    "(SELECT queue_partition, {1} FROM {0} WHERE queue_partition >= ? AND queue_partition < ? LIMIT {2})"
)
_CLAIM_TABLES = (("claims", "number", 100), ("claim_snapshots", "number", 100), ("covers", "digest", 500))
"""Tables of claim logs, each with the column that identifies a row within its partition, and the max rows of a step."""
_KEY_TABLES = (("idempotency_keys", "key"), ("names", "name"))
"""Tables with expiring rows, each with the column that identifies a row within its queue."""
_SELECT_OLD_KEYS = "SELECT qid, {1}, expires FROM {0} WHERE expires <= ? ORDER BY expires LIMIT 500"
_SELECT_KEYS_OF_QUEUE = "SELECT qid, {1}, expires FROM {0} WHERE qid = ? LIMIT 500"
_DELETE_KEY = "DELETE FROM {0} WHERE (qid, {1}, expires) = (?, ?, ?)"
_DELETE_WINDOW = (
    "DELETE FROM expiry_windows WHERE (queue_partition, expired_by, message_count, first_ticks, last_ticks, "
    "longest_ttl) = (?, ?, ?, ?, ?, ?)"
)
"""Removes a window unless it has changed since it was read, because its new messages may still exist."""
_DELETE_RECORD = "DELETE FROM records WHERE (kind, application, name, version) = (?, ?, ?, ?)"
_SELECT_OLD_SESSIONS = (
    "SELECT application, name, member, uid, expires FROM group_sessions WHERE expires <= ? ORDER BY expires LIMIT 500"
)
_DELETE_SESSION = "DELETE FROM group_sessions WHERE (application, name, member, uid, expires) = (?, ?, ?, ?, ?)"
_FOREVER = (1 << 63) - 1
_MIN_STEP_SECONDS, _MAX_STEP_SECONDS = 0.004, 0.012
"""Min and max seconds of a step."""
_MAX_STEP_ROWS = 20_000
_MAX_STEP_BYTES = 4 << 20
"""Max bytes of bodies deleted in one step, because SQLite reads all pages of a long body to free them."""
_MAX_COMMITS = 200
"""Max commits of this process before the sweep copies the log, unless it reaches ``MIN_CHECKPOINT_BYTES`` earlier."""


def choose_next_size(rows: int, took: float, least: int) -> int:
    """Returns the number of rows for the next step, after a step of ``rows`` rows took ``took`` seconds.

    Twice as many after less than 4 ms, half as many (not below ``least``) after more than 12 ms: too short for callers
    to notice, but long compared with a commit, so that the sweep keeps up with any disk.
    """
    if took < _MIN_STEP_SECONDS:
        return min(rows * 2, _MAX_STEP_ROWS)
    return max(rows // 2, least) if took > _MAX_STEP_SECONDS else rows


class Sweep:
    """The background sweep of one store in one process. Several processes may sweep the same file."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.removed = 0
        self.log_pages = 0
        self._checkpointed = (0, 0)
        self._size = database.options.sweep_rows
        self._trouble = Trouble(log, "The sweep of expired messages")
        interval = database.options.sweep_interval
        if interval is not None:
            self._thread = threading.Thread(target=self._run_loop, args=(interval,), name="queuey-sweep", daemon=True)
            self._thread.start()

    def stop(self, timeout: float) -> None:
        self._stop.set()
        self._db.writer.log_grows.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run_loop(self, interval: float) -> None:
        due = time.monotonic() + interval
        while not self._stop.is_set():
            # Long bodies may fill the log within an interval. Then a commit would copy it, and all writes would wait.
            self._db.writer.log_grows.wait(max(0.0, due - time.monotonic()))
            self._db.writer.log_grows.clear()
            try:
                self.checkpoint_if_due()
                if time.monotonic() >= due:
                    self.run(rest=True)
                self._trouble.record_success()
            except StoreClosed:
                return
            except QueueyError as error:
                self._trouble.record_failure(error.code, error)
            except Exception:
                log.exception("The sweep of expired messages failed and will be repeated")
            if time.monotonic() >= due:
                due = time.monotonic() + interval

    def checkpoint_if_due(self) -> None:
        """Checkpoints if this process has made enough commits or written enough since the last time."""
        writer, (commits, written) = self._db.writer, self._checkpointed
        present = writer.commits, writer.written
        if present[0] - commits > _MAX_COMMITS or present[1] - written >= MIN_CHECKPOINT_BYTES:
            with self._db.readers.lend() as connection:
                self.log_pages = driver.checkpoint(connection)
            self._checkpointed = present

    def run(self, *, rest: bool = False) -> int:
        """Removes everything that can be removed now. Returns the number of messages removed.

        ``rest``: pauses after each step for as long as it took.

        Raises:
            StoreUnavailable: The store failed. Messages removed before stay removed.
        """
        before = self.removed
        for worked in self._remove_in_steps():
            if self._stop.is_set() or (rest and self._stop.wait(worked)):
                break
        return self.removed - before

    def _remove_in_steps(self) -> Iterator[float]:
        """Removes in turn expired messages, purged and deleted queues, and old records, keys and sessions.

        Runs one transaction after the other. Yields how long each has occupied the writer (seconds).
        """
        while ended := self._read_rows(_SELECT_ENDED_WINDOWS, self._db.clock()):
            for window in ended:
                qp, until, _, first, last, _ = window
                yield from self._clear_range(qp, (first, ids.LOW_MIN), last, until)
                yield self._run_timed_step(partial(_remove_window, window))
        while pending_deletes := self._read_rows("SELECT qid FROM pending_deletes LIMIT 100"):
            for (qid,) in pending_deletes:
                of_queue = qid << 8, (qid + 1) << 8
                for (qp,) in self._read_rows(_SELECT_PARTITIONS, *of_queue):
                    yield from self._clear_range(qp, ids.FIRST, ids.TICKS_MAX, None)
                for table in _CLAIM_TABLES:
                    while self._read_rows(_HAS_ROWS_OF_QUEUE.format(table[0]), *of_queue):
                        yield self._execute_many(_DELETE_ROWS_OF_QUEUE.format(*table), [of_queue])
                yield from self._forget_keys(_SELECT_KEYS_OF_QUEUE, qid)
                yield self._run_timed_step(partial(_finish_pending_delete, qid))
        while old := self._read_rows(_SELECT_OLD_RECORDS, self._db.clock()):
            yield self._execute_many(_DELETE_RECORD, old)
        yield from self._forget_keys(_SELECT_OLD_KEYS, self._db.clock())
        while over := self._read_rows(_SELECT_OLD_SESSIONS, (self._db.clock() - ids.EPOCH_TICKS) // 10_000):
            yield self._execute_many(_DELETE_SESSION, over)

    def _forget_keys(self, query: str, value: int) -> Iterator[float]:
        for table in _KEY_TABLES:
            while rows := self._read_rows(query.format(*table), value):
                yield self._execute_many(_DELETE_KEY.format(*table), rows)

    def _clear_range(self, qp: int, lower: Position, last: int, until: int | None) -> Iterator[float]:
        position: Position | None = lower
        while position is not None:
            step = self._read_rows(_FIND_STEP_END, qp, *position, last, self._size, _MAX_STEP_BYTES)
            end: Position = step[0] if step else (last, ids.LOW_MAX)
            took = self._run_timed_step(partial(_remove_range, (qp, *position, *end), until))
            position = ids.following(end) if step else None
            self._size = choose_next_size(self._size, took, self._db.options.sweep_rows)
            yield took

    def _run_timed_step(self, work: Callable[[Transaction], int]) -> float:
        """Runs a step in the writer and adds what it removed to ``removed``.

        Returns its duration in seconds, without the wait for the writer.
        """
        took = 0.0

        def timed(transaction: Transaction) -> int:
            nonlocal took
            began = time.monotonic()
            removed = work(transaction)
            took = time.monotonic() - began
            return removed

        self.removed += self._db.writer.perform(timed)
        return took

    def _execute_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> float:
        def work(transaction: Transaction) -> int:
            transaction.connection.executemany(statement, rows)
            return 0

        return self._run_timed_step(work)

    def _read_rows(self, sql: str, *parameters: int) -> Any:  # noqa: ANN401 - rows of the driver
        with self._db.readers.lend() as connection:
            return connection.execute(sql, parameters).fetchall()


def _has_ended(until: int, transaction: Transaction) -> bool:
    """Returns whether a window has ended by the writer's clock, which may have been set back since the sweep began.

    Ids then ascend from that time on, so no later message, at whatever clock, comes into the window.
    """
    return until <= transaction.now <= transaction.advance()


def _remove_range(bounds: tuple[int, ...], until: int | None, transaction: Transaction) -> int:
    if until is not None and not _has_ended(until, transaction):
        return 0
    return len(
        transaction.connection.execute(_DELETE_ENDED_ROWS, (*bounds, _FOREVER if until is None else until)).fetchall()
    )


def _remove_window(window: Sequence[int], transaction: Transaction) -> int:
    if _has_ended(window[1], transaction):
        transaction.connection.execute(_DELETE_WINDOW, window)
    return 0


def _finish_pending_delete(qid: int, transaction: Transaction) -> int:
    transaction.connection.execute(
        "DELETE FROM expiry_windows WHERE queue_partition >= ? AND queue_partition < ?", (qid << 8, (qid + 1) << 8)
    )
    transaction.connection.execute("DELETE FROM pending_deletes WHERE qid = ?", (qid,))
    return 0
