"""Undo writes: deletes of messages whose write failed, timed out or came late.

An undo write deletes one id at the consistency level of the write. Its timestamp is at least that of the write, so no
hint and no slow replica brings the message back once a quorum has the delete. States::

    trying ──(all confirmed before the deadline)──► answered: none
       │──(deadline passed)──► answered: unknown ──► trying on in the background ──► settled
       └──(an attempt failed)──► trying again, after longer and longer pauses

Each id has its own DELETE, never a range, because ids of other processes lie in between. Deletes that are due in one
Cassandra partition are sent together, so a burst of failed writes costs few requests. All of this runs in the thread of
the store's loop.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from queuey.model.errors import Outcome, StoreUnavailable
from queuey.model.ids import Position
from queuey.storage.cassandra.cluster import Driver, Encoded, InDoubt, Rows
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.time.clock import SteadyClock, undo_timestamp
from queuey.storage.cassandra.write.write_batches import FLUSH_ROWS, Written

log = logging.getLogger(__name__)

MAX_DELETES_PER_REQUEST = 100
"""Max deletes in one request."""
TIMEOUT_RATIO, FIRST_PAUSE_RATIO = 1 / 2, 1 / 8
"""Timeout of an attempt, and pause after the first attempt, as fractions of W."""
MAX_FIRST_PAUSE = 0.1
MAX_PAUSE = 5.0
MIN_TIMER_DELAY = 0.005
"""Min delay of a timer, in seconds."""
MAX_IN_FLIGHT = 500
"""Max requests in flight: undo writes must not add to an overload that made the writes fail."""


class _Chunk(NamedTuple):
    """Messages of one Cassandra partition that are deleted by one request."""

    ttl_class: int
    qid: int
    partition: int
    bucket: int
    positions: Sequence[Position]


_Part = tuple["Undo", _Chunk]


class Undo:
    """The undo write of an operation: the deletes that are not confirmed yet, and who gets the outcome."""

    __slots__ = ("answer", "began", "chunks", "consistency", "deadline", "failed", "flying", "pause", "size", "timeout")

    def __init__(
        self, written: Iterable[Written], level: ResolvedLevel, deadline: float, answer: Callable[[Outcome], object]
    ) -> None:
        """``deadline``: boot time by which all deletes must be confirmed for the outcome ``none``."""
        self.chunks = _divide_into_chunks(written)
        self.size = sum(len(chunk.positions) for chunk in self.chunks)
        self.consistency = level.writes
        self.timeout = level.deadline * TIMEOUT_RATIO
        self.deadline = deadline
        self.began = 0.0
        self.answer: Callable[[Outcome], object] | None = answer
        self.pause = min(MAX_FIRST_PAUSE, level.deadline * FIRST_PAUSE_RATIO)
        self.flying = 0
        self.failed: list[_Chunk] = []

    def finish(self, outcome: Outcome) -> None:
        answer, self.answer = self.answer, None
        try:
            if answer is not None:
                answer(outcome)
        except Exception:
            log.exception("The result of an undo write could not be delivered.")


def ignore_seconds(_seconds: float) -> None: ...


_Agenda = list[tuple[float, int, Undo]]
"""A heap of boot times, sequence numbers that order equal times, and undo writes."""


class UndoWriter:
    """Tries undo writes until they succeed, or are given up because more than ``kept`` messages wait.

    ``undo`` may be called from any thread. ``note`` gets the seconds that each undo write took.
    """

    def __init__(
        self, driver: Driver, clock: SteadyClock, *, note: Callable[[float], None] = ignore_seconds, kept: int = 100_000
    ) -> None:
        self._driver = driver
        self._loop = driver.loop
        self._clock = clock
        self._note = note
        self._kept = kept
        self._open: dict[Undo, None] = {}
        """Undo writes that are not confirmed yet, oldest first."""
        self._deadlines: _Agenda = []
        self._due: _Agenda = []
        """Undo writes by the time at which they are answered, and by the time at which they are sent."""
        self._numbers = itertools.count()
        self._flying = 0
        self._ended = False
        self._is_woken = False
        self._timer_at = math.inf
        self.confirmed = 0
        """Messages whose undo write is confirmed."""
        self.unknown = 0
        """Messages that were answered with outcome ``unknown``."""
        self.abandoned = 0
        """Messages whose undo write was given up."""
        self.pending = 0

    def undo(self, undo_write: Undo) -> None:
        self._loop.call(self._begin_undo, undo_write)

    def _wake(self) -> None:
        if not self._is_woken and not self._ended:
            self._is_woken = True
            self._loop.soon(self._run_due)

    def close(self, timeout: float) -> None:
        deadline = self._clock.boottime() + timeout
        pause = threading.Event()
        while self.pending and self._clock.boottime() < deadline:
            pause.wait(0.02)
        self._ended = True
        if self.pending:
            self._loop.call(self._give_up_all)

    def _give_up_all(self) -> None:
        for undo_write in self._open:
            self._give_up(undo_write)

    def _set_timer(self) -> None:
        while self._deadlines and self._deadlines[0][2].answer is None:
            heappop(self._deadlines)
        moments = [
            agenda[0][0] for agenda in (self._deadlines, self._due if self._flying < MAX_IN_FLIGHT else []) if agenda
        ]
        if moments and min(moments) < self._timer_at:
            self._timer_at = min(moments)
            self._loop.later(max(MIN_TIMER_DELAY, self._timer_at - self._clock.boottime()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = math.inf
        self._wake()

    def _begin_undo(self, undo_write: Undo) -> None:
        self._open[undo_write] = None
        undo_write.began = self._clock.boottime()
        self.pending += undo_write.size
        self._plan(self._deadlines, undo_write.deadline, undo_write)
        self._plan(self._due, 0.0, undo_write)
        self._drop_oldest()
        self._wake()

    def _on_answer(self, parts: Sequence[_Part], rows: Rows | None, error: StoreUnavailable | None) -> None:
        self._flying -= 1
        # All have the same time, so deletes that failed together are sent together again.
        now = rows[0][0] if rows else self._clock.boottime()
        for undo_write, chunk in parts:
            undo_write.flying -= 1
            if error is not None:
                undo_write.failed.append(chunk)
            if undo_write.flying:
                continue
            undo_write.chunks, undo_write.failed = undo_write.failed, []
            if not undo_write.chunks:
                self._settle(undo_write, now)
                continue
            self._plan(self._due, now + undo_write.pause, undo_write)
            undo_write.pause = min(MAX_PAUSE, undo_write.pause * 2)
        self._wake()

    def _plan(self, agenda: _Agenda, moment: float, undo_write: Undo) -> None:
        heappush(agenda, (moment, next(self._numbers), undo_write))

    def _settle(self, undo_write: Undo, now: float) -> None:
        """Ends a confirmed undo write. The outcome is ``none`` if it was in time, else ``unknown``."""
        del self._open[undo_write]
        self.pending -= undo_write.size
        self.confirmed += undo_write.size
        self._note(now - undo_write.began)
        in_time = now <= undo_write.deadline
        if undo_write.answer is not None and not in_time:
            self.unknown += undo_write.size
        undo_write.finish("none" if in_time else "unknown")

    def _run_due(self) -> None:
        self._is_woken = False
        if self._ended:
            return
        now = self._clock.boottime()
        while self._deadlines and self._deadlines[0][0] < now:
            _, _, undo_write = heappop(self._deadlines)
            if undo_write.answer is not None:
                self.unknown += undo_write.size
                undo_write.finish("unknown")
        self._send_due(now)
        if self._due and self._due[0][0] <= now and self._flying < MAX_IN_FLIGHT:
            self._wake()
        else:
            self._set_timer()

    def _send_due(self, now: float) -> None:
        requests: dict[tuple[Any, ...], list[_Part]] = {}
        rows: dict[tuple[Any, ...], int] = {}
        row_count = 0
        while (
            self._due
            and self._due[0][0] <= now
            and self._flying + len(requests) < MAX_IN_FLIGHT
            and row_count < FLUSH_ROWS
        ):
            _, _, undo_write = heappop(self._due)
            if undo_write not in self._open:
                continue
            row_count += undo_write.size
            undo_write.flying = len(undo_write.chunks)
            for chunk in undo_write.chunks:
                place = *chunk[:4], undo_write.consistency, undo_write.timeout
                if rows.get(place, 0) + len(chunk.positions) > MAX_DELETES_PER_REQUEST:
                    self._send(requests.pop(place))
                    del rows[place]
                requests.setdefault(place, []).append((undo_write, chunk))
                rows[place] = rows.get(place, 0) + len(chunk.positions)
        for parts in requests.values():
            self._send(parts)

    def _send(self, parts: Sequence[_Part]) -> None:
        self._flying += 1
        (undo_write, chunk), now = parts[0], self._clock.now()
        time_bucket = (chunk.qid, chunk.partition, chunk.bucket)
        key = message_codec.key_of(*time_bucket)
        deletes = [
            message_codec.encode_delete(key, position, undo_timestamp(now, position[0]))
            for _, sent_chunk in parts
            for position in sent_chunk.positions
        ]
        try:
            request = Encoded(
                message_codec.DELETE[chunk.ttl_class],
                message_codec.DELETE_VALUE_COUNT,
                deletes,
                message_codec.routing_of(*time_bucket),
                undo_write.consistency,
                timeout=undo_write.timeout,
            )
            self._driver.send(request, partial(self._on_answer, parts))
        except Exception as error:
            log.exception("An undo write could not be sent.")
            self._on_answer(parts, None, InDoubt(f"an undo write could not be sent: {error}"))

    def _drop_oldest(self) -> None:
        """Gives up the oldest undo writes while too many messages are pending, but none unanswered or in flight."""
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
        undo_write.finish("unknown")


def _divide_into_chunks(written: Iterable[Written]) -> list[_Chunk]:
    by_place: dict[tuple[int, int, int, int], list[Position]] = {}
    for run in written:
        key = run.kind, run.qid, run.partition, run.bucket
        by_place.setdefault(key, []).extend(run.positions)
    return [
        _Chunk(*key, positions[first : first + MAX_DELETES_PER_REQUEST])
        for key, positions in by_place.items()
        for first in range(0, len(positions), MAX_DELETES_PER_REQUEST)
    ]
