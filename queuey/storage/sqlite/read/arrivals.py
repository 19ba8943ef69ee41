"""Polls for messages that other processes have stored, and for delayed ones that have become due.

The clock's row says in one read whether anything can be new; only then, or where a queue keeps a read delay, are the
watched partitions asked, all in one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from queuey.errors import QueueChanged
from queuey.ids import TICKS_PER_SECOND
from queuey.messages import Queue
from queuey.storage.sqlite import row_codec
from queuey.storage.sqlite.connection import Connection
from queuey.storage.sqlite.database import Database
from queuey.storage.sqlite.write.transaction import Transaction
from queuey.storage.watching import Watch, Watches

_NEWS = (
    "SELECT asked.key FROM json_each(?) AS asked WHERE EXISTS (SELECT 1 FROM messages WHERE "
    "queue_partition = asked.value ->> 0 AND ticks >= asked.value ->> 1 AND ticks < asked.value ->> 2)"
)
"""Which of some [qp, lowest tick, tick above the highest] hold a message."""
_EARLIER = TICKS_PER_SECOND
"""How far before its beginning a watch searches for messages that the next read may not show."""


class CommittedArrivals:
    """The watches of one open store file.

    Args:
        database: The file.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self._catalogue = 0
        self._mine = 0
        self._seen = 0
        """Up to here all watches were asked, but for those that came meanwhile."""
        self._others = True
        self.watches = Watches(self._look)

    def watch(self, queue: Queue, partition: int, wake: Callable[[], None], *, delayed: bool) -> Callable[[], None]:
        """See the storage contract."""
        self._db.told = self._committed  # Until somebody waits, a commit costs nothing here.
        delay = _delay(queue) if delayed else 0
        start = self._db.clock() - delay - _EARLIER
        return self.watches.add(Watch(queue, partition, wake, start, prompt=not delay))

    def _committed(self, transaction: Transaction) -> None:
        """Called after each commit of this process."""
        if transaction.began_at != self._mine or transaction.passed:
            self._others = True
        self._mine = transaction.last
        self.watches.wrote(transaction.touched, shown=True)

    def _look(self, watches: Sequence[Watch]) -> None:
        # In this order: a commit meanwhile shows in one of the two, or in the clock below.
        mine = self._mine
        others, self._others = self._others, False
        try:
            with self._db.readers.reading() as connection:
                last, catalogue = self._db.read_clock(connection)
                if others or last > max(mine, self._seen):
                    asked, self._seen = watches, last
                else:
                    asked = [watch for watch in watches if not watch.prompt or watch.position <= self._seen]
                woken = _asked(connection, asked, last + 1, self._db.clock())
                if catalogue != self._catalogue:
                    woken += _changed(connection, watches, catalogue)
        except BaseException:
            self._others = True
            raise
        self._catalogue = catalogue
        for watch in woken:
            watch.wake()


def _delay(queue: Queue) -> int:
    return int((queue.read_delay or 0.0) * TICKS_PER_SECOND)


def _asked(connection: Connection, watches: Sequence[Watch], safe: int, now: int) -> list[Watch]:
    """Returns the watches with something new below ``safe``, and lets all go on from there."""
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
    """Returns the watches of queues that are not any more as their rows say."""
    changed = set()
    for queue in {id(watch.queue): watch.queue for watch in watches if watch.queue.version != catalogue}.values():
        try:
            row_codec.verify(connection, queue)
        except QueueChanged:
            changed.add(id(queue))
    return [watch for watch in watches if id(watch.queue) in changed]
