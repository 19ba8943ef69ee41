"""Polls for messages that other processes have stored, and for delayed messages that have become due.

A read of the ``clock`` row shows whether anything can be new. Only then, or for queues with a read delay, are the
watched partitions queried, all in one statement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from time import sleep
from typing import Any

import msgspec

from queuey.model.errors import QueueChanged, QueueyError, StoreClosed
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import Queue
from queuey.storage import partition_watches
from queuey.storage.partition_watches import Wake, Watch, Watches
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.transaction import Transaction

log = logging.getLogger(__name__)

_SELECT_RANGES_WITH_MESSAGES = (
    "SELECT asked.key FROM json_each(?) AS asked WHERE EXISTS (SELECT 1 FROM messages WHERE "
    "queue_partition = asked.value ->> 0 AND ticks >= asked.value ->> 1 AND ticks < asked.value ->> 2)"
)
"""Selects the triples [qp, lowest tick, upper bound of ticks] whose ranges have a message."""
_LOOKBACK_TICKS = TICKS_PER_SECOND
"""Number of ticks before its start from which a watch searches for messages."""
_MAX_RECORD_CHECKS, _RECORD_CHECK_INTERVAL = 4, 0.005
"""Max checks, and seconds between them, until a visible commit of this process has been recorded by the writer."""


class CommittedArrivals:
    """The watches of one open store file."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._catalogue = 0
        self._own_last = 0
        self._seen = 0
        """Ticks up to which all watches were polled, except for watches added during that poll."""
        self._others = True
        """True if another process may have written since the last poll."""
        self._calm_watches: Sequence[Watch] | None = None
        """The result of ``watches.all()`` if none of its watches needs a poll before other processes write."""
        self.watches = Watches()
        self._added, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def watch(
        self, queue: Queue, partition: int, wake: Wake, *, keeps_read_delay: bool, early: bool
    ) -> Callable[[], None]:
        """Calls ``wake`` when a partition has new messages; returns a function that ends the watch.

        The first call starts the thread that polls.
        """
        self._db.writer.on_commit = self._announce_commit  # Not set before, so that commits cost nothing.
        delay, start = _delay_ticks(queue), self._db.clock() - _LOOKBACK_TICKS
        delays = {delay, 0} if early else {delay if keeps_read_delay else 0}
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                thread = threading.Thread(target=self._poll_forever, name="queuey-watch", daemon=True)
                thread.start()
                self._thread = thread
        stop = self.watches.add(*(Watch(queue, partition, wake, start - ticks, prompt=not ticks) for ticks in delays))
        self._added.set()
        return stop

    def close(self) -> None:
        self._closed.set()
        self._added.set()
        self.watches.close()

    def _poll_forever(self) -> None:
        """Polls until closed. Waits while nobody watches; an error does not end it."""
        while not self._closed.wait(partition_watches.POLL_INTERVAL):
            self._added.clear()
            if not (self.watches or self._closed.is_set()):
                self._added.wait()
            try:
                self._poll(self.watches.all())
            except StoreClosed:
                return
            except QueueyError as error:
                # The reader's next call raises this error too.
                log.debug("Cannot check for new messages: %s", error)
            except Exception:
                log.exception("Checking for new messages failed.")

    def share_news(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self.watches.share, self.watches.wanted = stored, wanted
        self._db.writer.on_commit = self._announce_commit

    def receive_news(self, moment: int, partitions: Iterable[int]) -> bool:
        """Wakes watches of partitions that another process wrote to; ``moment`` is its last id (ticks).

        Returns whether this process watches anything, these partitions or others.
        """
        self._wake_partitions(partitions, moment)
        return bool(self.watches)

    def _announce_commit(self, transaction: Transaction) -> None:
        if transaction.last_before != self._own_last or transaction.passed:
            self._others = True
        self._own_last = transaction.last
        self._wake_partitions(transaction.touched, transaction.last)
        if self.watches.share is not None and transaction.touched:
            self.watches.share(transaction.last, transaction.touched)

    def _wake_partitions(self, partitions: Iterable[int], last: int) -> None:
        for key in partitions:
            for watch in self.watches.find(key):
                if watch.prompt:
                    watch.position = max(watch.position, last + 1)  # The woken reader reads everything below.
                watch.wake()

    def _poll(self, watches: Sequence[Watch]) -> None:
        """Wakes watches of partitions with new messages, or of changed queues.

        Unless other processes may have stored messages, reads only for watches with a read delay, and for prompt ones
        not yet past the last read. Nothing counts as polled until its query has succeeded.
        """
        others = False
        polled: Sequence[Watch]
        try:
            with self._db.readers.lend() as connection:
                last, catalogue = self._db.read_clock(connection)
            # `_others` is read after `_own_last`, as this process's last commit sets it if others committed before.
            mine = self._read_own_last(last)
            others, self._others = self._others, False
            seen = self._seen
            if others or last > max(mine, seen):
                polled, seen = watches, last
            elif watches is self._calm_watches:
                polled = ()
            else:
                polled = [watch for watch in watches if not watch.prompt or watch.position <= seen]
                self._calm_watches = watches if not polled else None
            with self._db.readers.lend() as connection:
                _wake_for_arrivals(connection, polled, last + 1, self._db.clock())
        except BaseException:
            self._others = self._others or others
            raise
        self._seen = seen
        if catalogue != self._catalogue:
            with self._db.readers.lend() as connection:
                _wake_for_changed_queues(connection, watches, catalogue)
            self._catalogue = catalogue

    def _read_own_last(self, last: int) -> int:
        for _ in range(_MAX_RECORD_CHECKS):
            if last <= max(self._own_last, self._seen):
                break
            sleep(_RECORD_CHECK_INTERVAL)
        return self._own_last


def _delay_ticks(queue: Queue) -> int:
    return int((queue.read_delay or 0.0) * TICKS_PER_SECOND)


def _wake_for_arrivals(connection: Connection, watches: Sequence[Watch], safe: int, now: int) -> None:
    if not watches:
        return
    ranges = [
        (watch.key, watch.position, safe if watch.prompt else min(safe, now - _delay_ticks(watch.queue)))
        for watch in watches
    ]
    rows: list[Any] = connection.execute(
        _SELECT_RANGES_WITH_MESSAGES, (msgspec.json.encode(ranges).decode(),)
    ).fetchall()
    for watch, (_, _, upper) in zip(watches, ranges, strict=True):
        watch.position = max(watch.position, upper)
    for (number,) in rows:
        watches[number].wake()


def _wake_for_changed_queues(connection: Connection, watches: Sequence[Watch], catalogue: int) -> None:
    changed = set()
    for queue in {id(watch.queue): watch.queue for watch in watches if watch.queue.version != catalogue}.values():
        try:
            row_codec.verify(connection, queue)
        except QueueChanged:
            changed.add(id(queue))
    for watch in watches:
        if id(watch.queue) in changed:
            watch.wake()
