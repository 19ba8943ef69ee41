"""Removes what purged and deleted queues left.

A purge or delete makes a queue's messages unreachable at once and leaves a grave. Later, when nobody can be writing
with the row of before any more, the reaper removes the messages, a whole Cassandra partition by one delete, then their
segments, for a deleted queue its offsets, and the grave last. All of it may be done again, by several processes at
once and after a crash in the middle: a qid is never used twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

from queuey.errors import StoreUnavailable
from queuey.ids import TICKS_PER_SECOND
from queuey.storage.cassandra import placement
from queuey.storage.cassandra.clock import Clock
from queuey.storage.cassandra.driver import Driver, Statement
from queuey.storage.cassandra.graves import Grave, Graves
from queuey.storage.cassandra.offsets import OffsetTable
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.cassandra.placement import Place
from queuey.storage.cassandra.queue_index import QueueIndex

log = logging.getLogger(__name__)

_IN_USE = Statement("SELECT uid, qid FROM queues WHERE application = ? AND name = ?")
_PLACES = Statement("SELECT level, start, class FROM segments WHERE qid = ? AND part = ?")
_REMOVE = tuple(
    Statement(f"DELETE FROM messages_{name} WHERE qid = ? AND part = ? AND bucket = ?") for name in placement.NAMES
)
_FORGET_PLACES = Statement("DELETE FROM segments WHERE qid = ? AND part = ?")
_MOST_FAILURES = 3
_AT_ONCE = 100
"""Deletes under way at the same time; the nodes have other work to do."""


def own_places(grave: Grave, now: int) -> list[Place]:
    """Returns the unrecorded places of each partition that may hold messages alive at ``now`` (ticks).

    Messages of the home class were written before the grave was dug (and a little later, by whoever held the old row),
    with ids no further in the past or future than the class lets them live.
    """
    span = placement.CLASSES[grave.home] * TICKS_PER_SECOND
    return placement.own_places(grave.home, now - span, max(grave.buried[0] + span, now - span) + 1)


class Reaper:
    """The job. One object may be used from several threads.

    Args:
        driver: Where to.
        options: ``reap_after``, ``reap_interval``, and the catalogue's consistency levels.
        clock: For the ages of graves.
        graves: Where they are noted down.
        offsets: The table of offsets.
        closing: Set when the store is being closed; ends the work after what is under way.
    """

    def __init__(
        self,
        driver: Driver,
        options: CassandraOptions,
        clock: Clock,
        graves: Graves,
        offsets: OffsetTable,
        closing: threading.Event,
    ) -> None:
        self._driver = driver
        self._options = options
        self._clock = clock
        self._graves = graves
        self._offsets = offsets
        self._index = QueueIndex(driver, options)
        self._closing = closing
        self.reaped = 0
        """How many graves were emptied."""

    def run(self) -> int:
        """Empties the graves that are old enough; returns how many.

        Raises:
            StoreUnavailable: Several could not be emptied; all that is left is tried again the next time.
        """
        before = self.reaped
        failures = 0
        for grave in self._graves.older(self._clock.now() - round(self._options.reap_after * TICKS_PER_SECOND)):
            if self._closing.is_set():
                break
            try:
                self._empty(grave)
            except StoreUnavailable:
                # One that cannot be emptied must not keep the others waiting; if none can, it is Cassandra.
                failures += 1
                if failures == _MOST_FAILURES:
                    raise
                log.info("Queue %s of %s is emptied later.", grave.name, grave.application, exc_info=True)
        return self.reaped - before

    def loop(self) -> None:
        """Runs every ``reap_interval`` seconds until the store is being closed; for a thread of its own."""
        while self._options.reap_interval is not None and not self._closing.wait(self._options.reap_interval):
            try:
                self.run()
            except StoreUnavailable as error:
                log.info("What purged and deleted queues left is removed later: %s", error)

    def _empty(self, grave: Grave) -> None:
        uid, qid = self._in_use(grave)
        if qid != grave.qid:
            for part in range(1, grave.partitions + 1):
                self._remove_messages(grave, part)
            self.reaped += 1
        if grave.uid is not None and uid != grave.uid:
            self._offsets.forget_queue(grave.uid)
            self._index.remove(grave.application, grave.name, grave.uid)  # In case that who deleted it could not.
        self._graves.level(grave)

    def _in_use(self, grave: Grave) -> tuple[int | None, int | None]:
        """Returns uid and qid of the queue of that name.

        Read as a lightweight transaction, which first finishes or discards a change of the row that is still in doubt:
        a grave that is levelled because its purge was never made must not be needed later.
        """
        rows = self._driver.run(_IN_USE, (grave.application, grave.name), consistency=self._options.catalogue_serial)
        return (rows[0][0], rows[0][1]) if rows else (None, None)

    def _remove_messages(self, grave: Grave, part: int) -> None:
        write = self._options.catalogue_write
        recorded = self._driver.run(_PLACES, (grave.qid, part), consistency=self._options.catalogue_read)
        places = own_places(grave, self._clock.now())
        places += [
            placement.place_of(start, kind, level)
            for level, start, kind in recorded
            if level is not None  # A partition with a floor and no place gives one row without them.
        ]
        calls = [(_REMOVE[place.kind], (grave.qid, part, place.bucket)) for place in places]
        for some in _some(calls):
            self._driver.run_all(some, consistency=write)
        if recorded:
            self._driver.run(_FORGET_PLACES, (grave.qid, part), consistency=write)


def _some(calls: Sequence[tuple[Statement, Sequence[int]]]) -> Iterator[Sequence[tuple[Statement, Sequence[int]]]]:
    for first in range(0, len(calls), _AT_ONCE):
        yield calls[first : first + _AT_ONCE]
