"""Polls for messages that other processes have stored, and for delayed ones that have become due.

One read of the clock's row shows whether anything can be new; only then, or where a queue keeps a read delay, are the
watched partitions asked, all in one statement.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from time import sleep
from typing import Any

import msgspec

from queuey.errors import QueueChanged, QueueyError, StoreClosed
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Queue
from queuey.storage import watching
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction
from queuey.storage.watching import Watch, Watches

log = logging.getLogger(__name__)

_NEWS = (
    "SELECT asked.key FROM json_each(?) AS asked WHERE EXISTS (SELECT 1 FROM messages WHERE "
    "queue_partition = asked.value ->> 0 AND ticks >= asked.value ->> 1 AND ticks < asked.value ->> 2)"
)
"""Selects those of some [qp, lowest tick, tick above the highest] that hold a message."""
_EARLIER = TICKS_PER_SECOND
"""Number of ticks before its beginning in which a watch searches for messages that the next read may not show."""
_TIMES, _PAUSE = 4, 0.005
"""Tries, and seconds in between, until a visible commit must have been noted as this process's own."""


class CommittedArrivals:
    """The watches of one open store file."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._catalogue = 0
        self._mine = 0
        self._seen = 0
        """All watches were asked up to here, except those that came meanwhile."""
        self._others = True
        self._calm: Sequence[Watch] | None = None
        """Watches of which none needs to be asked before others write."""
        self.watches = Watches()
        self._added, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def watch(
        self, queue: Queue, partition: int, wake: Callable[[], None], *, delayed: bool, early: bool
    ) -> Callable[[], None]:
        self._db.told = self._committed  # Until somebody waits, a commit costs nothing here.
        delay, start = _delay(queue), self._db.clock() - _EARLIER
        delays = {delay, 0} if early else {delay if delayed else 0}
        stop = self.watches.add(*(Watch(queue, partition, wake, start - each, prompt=not each) for each in delays))
        self._added.set()
        with self._starting:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="queuey-watch", daemon=True)
                self._thread.start()
        return stop

    def close(self) -> None:
        """Ends the polls and wakes all watchers."""
        self._closed.set()
        self._added.set()
        self.watches.close()

    def _run(self) -> None:
        """Polls again and again as long as there are watches."""
        while not self._closed.wait(watching.EVERY):
            self._added.clear()
            if not (self.watches or self._closed.is_set()):
                self._added.wait()
            try:
                self._look(self.watches.all())
            except StoreClosed:
                return
            except QueueyError as error:
                # A reader gets this error, too.
                log.debug("Cannot check for new messages: %s", error)
            except Exception:
                log.exception("Checking for new messages failed.")

    def share(self, stored: Callable[[int, Collection[int]], None], wanted: Callable[[], None]) -> None:
        self.watches.share, self.watches.wanted = stored, wanted
        self._db.told = self._committed

    def hear(self, moment: int, partitions: Iterable[int]) -> bool:
        """The moment is the other process's last id."""
        self._wake(partitions, moment)
        return bool(self.watches)

    def _committed(self, transaction: Transaction) -> None:
        """Called after each commit of this process."""
        if transaction.began_at != self._mine or transaction.passed:
            self._others = True
        self._mine = transaction.last
        self._wake(transaction.touched, transaction.last)
        if self.watches.share is not None and transaction.touched:
            self.watches.share(transaction.last, transaction.touched)

    def _wake(self, partitions: Iterable[int], last: int) -> None:
        for key in partitions:
            for watch in self.watches.of(key):
                if watch.prompt:
                    watch.position = max(watch.position, last + 1)  # It is woken to read all below.
                watch.wake()

    def _look(self, watches: Sequence[Watch]) -> None:
        others = False
        asked: Sequence[Watch]
        try:
            with self._db.readers.reading() as connection:
                last, catalogue = self._db.read_clock(connection)
            # In this order: what others committed before this process did last was noted when that was done.
            mine = self._own(last)
            others, self._others = self._others, False
            if others or last > max(mine, self._seen):
                asked, self._seen = watches, last
            elif watches is self._calm:
                asked = ()
            else:
                asked = [watch for watch in watches if not watch.prompt or watch.position <= self._seen]
                self._calm = watches if not asked else None
            with self._db.readers.reading() as connection:
                woken = _asked(connection, asked, last + 1, self._db.clock())
                if catalogue != self._catalogue:
                    woken += _changed(connection, watches, catalogue)
        except BaseException:
            self._others = self._others or others
            raise
        self._catalogue = catalogue
        for watch in woken:
            watch.wake()

    def _own(self, last: int) -> int:
        """Returns the last id of this process, after time to note a commit of its own that shows."""
        for _ in range(_TIMES):
            if last <= max(self._mine, self._seen):
                break
            sleep(_PAUSE)
        return self._mine


def _delay(queue: Queue) -> int:
    return int((queue.read_delay or 0.0) * TICKS_PER_SECOND)


def _asked(connection: Connection, watches: Sequence[Watch], safe: int, now: int) -> list[Watch]:
    """Returns the watches with news below ``safe``, and moves all of them on."""
    asked = []
    for watch in watches:
        above = safe if watch.prompt else min(safe, now - _delay(watch.queue))
        asked.append((watch.key, watch.position, above))
        watch.position = max(watch.position, above)
    if not asked:
        return []
    rows: list[Any] = connection.execute(_NEWS, (msgspec.json.encode(asked).decode(),)).fetchall()
    return [watches[number] for (number,) in rows]


def _changed(connection: Connection, watches: Sequence[Watch], catalogue: int) -> list[Watch]:
    """Returns the watches of queues whose rows are out of date."""
    changed = set()
    for queue in {id(watch.queue): watch.queue for watch in watches if watch.queue.version != catalogue}.values():
        try:
            row_codec.verify(connection, queue)
        except QueueChanged:
            changed.add(id(queue))
    return [watch for watch in watches if id(watch.queue) in changed]
