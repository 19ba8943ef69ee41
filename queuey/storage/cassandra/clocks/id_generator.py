"""New ids and the timestamps of writes.

Cassandra keeps, of two writes of one cell, the one with the higher timestamp (microseconds); of a write and a delete
with equal ones, the delete. So every write carries one of ours: a new message the time of its id, a delete at least
that of what it deletes, whatever the clocks of the processes say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from queuey import ids
from queuey.errors import InvalidRequest
from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position
from queuey.storage.cassandra.clocks.clock import Clock

TICKS_PER_MICROSECOND = 10
AHEAD = TICKS_PER_SECOND
"""Max ticks that an id may be put ahead of the clock by ``after``, which may be of another process whose clock is ahead
by S. No reader has passed what is ahead, whatever the read delay is; and :class:`Stamps` knows of it."""


class IdGenerator:
    """Ids of new messages: strictly ascending within the process, never below the clock or a horizon given by it.

    Ids of other processes differ in ``low``, which is random; those of this process differ in time.
    """

    __slots__ = ("_clock", "_last", "_lock", "low")

    def __init__(self, clock: Clock, low: int | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self.low = ids.random_low() if low is None else low

    def admit(self, after: Position) -> None:
        """Makes sure that ids may be put above a position.

        Raises:
            InvalidRequest: It is more than a second ahead of the clock and above every id made before: a client could
                move the ids of all callers ahead with it.
        """
        if after[0] > self._clock.now() + AHEAD and after > (self._last, self.low):
            raise InvalidRequest({"X-After": "lies more than a second ahead of the clock"})

    def generate(self, count: int, after: Position | None = None) -> int:
        """Returns the ticks of the first of ``count`` ids; the rest follow tick by tick."""
        with self._lock:
            first = max(self._clock.now(), self._last + 1)
            if after is not None and (first, self.low) <= after:
                first = after[0] + 1
            self._last = first + count - 1
            return first

    def avoid(self, low: int) -> None:
        """Makes no further id with a ``low`` that a client has used: a client may put any id, also our next."""
        with self._lock:
            if low == self.low:
                self.low = ids.random_low()

    def next_time(self) -> int:
        """Returns the lowest ticks that the next id may have; later ids stay above, even if the clock is set back.

        So it is a horizon: this process makes no id below it from now on.
        """
        with self._lock:
            first = max(self._clock.now(), self._last + 1)
            self._last = first - 1
            return first


class Delayed:
    """Ids of the delayed messages of one call.

    An id's time is the due time; its ``low`` is made up for the call and the delay, so no generator is moved and no id
    is made twice.
    """

    __slots__ = ("_lowest", "_made", "_now")

    def __init__(self, now: int, lowest: int) -> None:
        self._now = now
        self._lowest = lowest
        self._made: dict[float, tuple[int, int]] = {}

    def generate(self, delay: float) -> Position:
        low, count = self._made.get(delay) or (ids.random_low(), 0)
        self._made[delay] = low, count + 1
        return max(self._now + round(delay * TICKS_PER_SECOND), self._lowest) + count, low


class Stamps:
    """Timestamps for writes and deletes by id: ascending within the process, and high enough to take effect.

    A delete must lie above the timestamp of what it deletes. That is the time of its id, which may be ahead of the
    clock of the process that made it, or, for what was delayed or put, some process's clock, which is at most
    ``difference`` (seconds) ahead of this one.
    """

    __slots__ = ("_clock", "_difference", "_last", "_lock")

    def __init__(self, clock: Clock, difference: Callable[[], float]) -> None:
        self._clock = clock
        self._difference = difference
        self._last = 0
        self._lock = threading.Lock()

    @property
    def ahead(self) -> int:
        """Ticks by which the time of an id may be ahead of this clock and still be its timestamp.

        It does not change with S, unless that is above a second: what was written before a change of S must yield to
        what is written after it.
        """
        return AHEAD + round(2 * max(1.0, self._difference()) * TICKS_PER_SECOND)

    def above(self, ticks: int) -> int:
        wanted = self.at(self._clock.now(), ticks)
        with self._lock:
            self._last = max(self._last + 1, wanted)
            return self._last

    def at(self, now: int, ticks: int) -> int:
        """Returns the lowest timestamp that will do for the id with these ticks, if it is written at ``now``.

        It does not depend on the process's other writes, so its upper bound follows from the time until which it was
        given.
        """
        return stamp_of(max(now, min(ticks, now + self.ahead)))


def stamp_of(ticks: int) -> int:
    """Returns the timestamp of an instant: whole microseconds since 1970."""
    return (ticks - EPOCH_TICKS) // TICKS_PER_MICROSECOND


def undo_timestamp(now: int, ticks: int) -> int:
    return stamp_of(max(now, ticks))
