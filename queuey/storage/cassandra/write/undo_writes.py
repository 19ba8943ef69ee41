"""Undoing writes that failed, timed out or came late: undo writes.

an undo write is a DELETE of one id at the level of the write, stamped at least as high as the write, so that no hint
and no slow replica brings the message back once a quorum has it. States::

    trying ──(all confirmed before the deadline)──► answered: none
       │──(deadline passed)──► answered: unknown ──► trying on in the background ──► settled
       └──(an attempt failed)──► trying again, after longer and longer pauses

One DELETE per id, never a range: ids of other processes lie in between.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from queue import Empty, SimpleQueue
from typing import NamedTuple

from queuey.errors import Outcome, StoreUnavailable
from queuey.ids import Position
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.driver import Driver, Encoded, InDoubt, Rows
from queuey.storage.cassandra.ids.clock import Clock
from queuey.storage.cassandra.ids.id_generator import undo_timestamp
from queuey.storage.cassandra.write.write_batches import Written

log = logging.getLogger(__name__)

ROWS = 100
"""Deletes in one request."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
IDLE = 60.0
"""Seconds between checks while there is nothing to do."""
TIMEOUT = 1.5
"""Seconds of one attempt."""
FLYING = 500
"""Requests on their way at most: what failed because Cassandra is overloaded must not make it worse."""


class _Chunk(NamedTuple):
    """Messages of one Cassandra partition that are deleted by one request."""

    kind: int
    qid: int
    partition: int
    bucket: int
    positions: Sequence[Position]


class Undo:
    """One operation's messages to be undone."""

    __slots__ = ("answer", "chunks", "consistency", "deadline", "failed", "flying", "pause", "size")

    def __init__(
        self, written: Iterable[Written], consistency: str, deadline: float, answer: Callable[[Outcome], None]
    ) -> None:
        """Prepares an undo write.

        Args:
            written: What was given to Cassandra.
            consistency: The level it was written at.
            deadline: Boot time until which the outcome is ``none`` if all is confirmed.
            answer: Called once with the outcome.
        """
        self.chunks = _chunks(written)
        self.size = sum(len(chunk.positions) for chunk in self.chunks)
        self.consistency = consistency
        self.deadline = deadline
        self.answer: Callable[[Outcome], None] | None = answer
        self.pause = FIRST_PAUSE
        self.flying = 0
        self.failed: list[_Chunk] = []

    def tell(self, outcome: Outcome) -> None:
        """Answers, unless it is answered already."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(outcome)


_Agenda = list[tuple[float, int, Undo]]
"""A heap of moments (boot time), numbers that tell equal ones apart, and undo writes."""


class UndoWriter:
    """Tries undo writes until they succeed, in a thread of its own.

    Args:
        driver: The way to Cassandra.
        clock: Of deadlines and stamps.
        kept: Deletes that are tried on in the background at most; the oldest are given up beyond.
    """

    def __init__(self, driver: Driver, clock: Clock, *, kept: int = 100_000) -> None:
        self._driver = driver
        self._clock = clock
        self._kept = kept
        self._inbox: SimpleQueue[tuple[Undo, _Chunk | None, bool] | None] = SimpleQueue()
        self._open: dict[Undo, None] = {}
        """All that do not hold yet, oldest first."""
        self._deadlines: _Agenda = []
        self._due: _Agenda = []
        """When each is to be answered, and to be sent. There may be thousands, so they are kept in order."""
        self._numbers = itertools.count()
        self._flying = 0
        self._ended = False
        self.confirmed = 0
        """Messages whose undo write holds."""
        self.unknown = 0
        """Messages that were answered with outcome ``unknown``."""
        self.abandoned = 0
        """Messages that will not be undone any more."""
        self.pending = 0
        self._thread = threading.Thread(target=self._run, name="queuey-undo-writes", daemon=True)
        self._thread.start()

    def undo(self, undo_write: Undo) -> None:
        """Takes an undo write on; never blocks."""
        self._inbox.put((undo_write, None, True))

    def close(self, timeout: float) -> None:
        """Ends the thread when all undo writes hold, or after ``timeout`` seconds."""
        deadline = self._clock.boottime() + timeout
        pause = threading.Event()
        while self.pending and self._clock.boottime() < deadline:
            pause.wait(0.02)
        self._ended = True
        self._inbox.put(None)
        self._thread.join(max(0.1, deadline - self._clock.boottime()))

    def _run(self) -> None:
        while not self._ended:
            try:
                item = self._inbox.get(timeout=self._until_next())
            except Empty:
                item = None
            try:
                if item is not None:
                    self._handle(*item)
                self._look()
            except Exception:
                log.exception("A write could not be undone.")
        for undo_write in self._open:
            self._give_up(undo_write)

    def _until_next(self) -> float:
        """Seconds until something is to be done."""
        while self._deadlines and self._deadlines[0][2].answer is None:
            heappop(self._deadlines)
        moments = [agenda[0][0] for agenda in (self._deadlines, self._due if self._flying < FLYING else []) if agenda]
        return max(0.005, min(moments) - self._clock.boottime()) if moments else IDLE

    def _handle(self, undo_write: Undo, chunk: _Chunk | None, good: bool) -> None:  # noqa: FBT001
        if chunk is None:
            self._open[undo_write] = None
            self.pending += undo_write.size
            self._plan(self._deadlines, undo_write.deadline, undo_write)
            self._plan(self._due, 0.0, undo_write)
            self._shed()
            return
        self._flying -= 1
        undo_write.flying -= 1
        if not good:
            undo_write.failed.append(chunk)
        if undo_write.flying:
            return
        undo_write.chunks, undo_write.failed = undo_write.failed, []
        if not undo_write.chunks:
            self._settle(undo_write)
            return
        self._plan(self._due, self._clock.boottime() + undo_write.pause, undo_write)
        undo_write.pause = min(LONGEST_PAUSE, undo_write.pause * 2)

    def _plan(self, agenda: _Agenda, moment: float, undo_write: Undo) -> None:
        heappush(agenda, (moment, next(self._numbers), undo_write))

    def _settle(self, undo_write: Undo) -> None:
        del self._open[undo_write]
        self.pending -= undo_write.size
        self.confirmed += undo_write.size
        in_time = self._clock.boottime() <= undo_write.deadline
        if undo_write.answer is not None and not in_time:
            self.unknown += undo_write.size
        undo_write.tell("none" if in_time else "unknown")

    def _look(self) -> None:
        """Sends what is due, and answers those whose deadline has passed."""
        now = self._clock.boottime()
        while self._deadlines and self._deadlines[0][0] < now:
            _, _, undo_write = heappop(self._deadlines)
            if undo_write.answer is not None:
                self.unknown += undo_write.size
                undo_write.tell("unknown")
        while self._due and self._due[0][0] <= now and self._flying < FLYING:
            _, _, undo_write = heappop(self._due)
            if undo_write in self._open:
                self._send(undo_write)

    def _send(self, undo_write: Undo) -> None:
        undo_write.flying = len(undo_write.chunks)
        self._flying += undo_write.flying
        for chunk in undo_write.chunks:
            now = self._clock.now()
            time_bucket = (chunk.qid, chunk.partition, chunk.bucket)
            key = message_codec.key_of(*time_bucket)
            deletes = [message_codec.encoded_delete(key, one, undo_timestamp(now, one[0])) for one in chunk.positions]
            done = self._taker(undo_write, chunk)
            try:
                request = Encoded(
                    message_codec.DELETE[chunk.kind],
                    message_codec.DELETED,
                    deletes,
                    message_codec.routing_of(*time_bucket),
                    undo_write.consistency,
                    timeout=TIMEOUT,
                )
                self._driver.send(request, done)
            except Exception as error:
                log.exception("An undo write could not be sent.")
                done(None, InDoubt(f"an undo write could not be sent: {error}"))

    def _taker(self, undo_write: Undo, chunk: _Chunk) -> Callable[[Rows | None, StoreUnavailable | None], None]:
        return lambda _, error: self._inbox.put((undo_write, chunk, error is None))

    def _shed(self) -> None:
        while self.pending > self._kept:
            oldest = next(
                (undo_write for undo_write in self._open if undo_write.answer is None and not undo_write.flying), None
            )
            if oldest is None:
                return
            del self._open[oldest]
            self.pending -= oldest.size
            self._give_up(oldest)

    def _give_up(self, undo_write: Undo) -> None:
        self.abandoned += undo_write.size
        undo_write.tell("unknown")


def _chunks(written: Iterable[Written]) -> list[_Chunk]:
    by_place: dict[tuple[int, int, int, int], list[Position]] = {}
    for some in written:
        key = some.kind, some.qid, some.partition, some.bucket
        by_place.setdefault(key, []).extend(some.positions)
    return [_Chunk(*key, found[at : at + ROWS]) for key, found in by_place.items() for at in range(0, len(found), ROWS)]
