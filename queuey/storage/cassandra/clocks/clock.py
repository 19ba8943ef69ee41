"""The store's clock, what goes by it, and the ids and timestamps that it gives to writes.

The clock is the time since boot plus an offset. Durations and deadlines are measured on CLOCK_BOOTTIME, which neither a
step of the wall clock nor a stop of the process (SIGSTOP, a suspended laptop) can hide. The wall clock comes in only
through :meth:`Clock.accept`, after a check.

Cassandra keeps, of two writes of one cell, the one with the higher timestamp (microseconds); of a write and a delete
with equal ones, the delete. So every write carries one of ours: a new message the time of its id, a delete at least
that of what it deletes, whatever the clocks of the processes say.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from queuey import ids
from queuey.errors import InvalidRequest
from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included (CLOCK_MONOTONIC where the system has no CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(_CLOCK)


class Clock:
    """Wall clock time that follows the boot time.

    When a virtual machine stands still its boot time does, too. Once the wall clock is right again and accepted,
    the time that was missed counts for ages and deadlines as well: what was read before is as old as it is.
    """

    __slots__ = ("_boottime", "_missed", "_offset", "_wall")

    def __init__(self, boottime: Callable[[], int] = boottime_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._boottime = boottime
        self._wall = wall
        self._offset = wall() - boottime()
        self._missed = 0

    def boottime(self) -> float:
        """Seconds since boot, with those that it is known to have missed: for ages and deadlines."""
        return (self._boottime() + self._missed) / 1e9

    def now(self) -> int:
        return (self._boottime() + self._offset) // 100 + EPOCH_TICKS

    def both(self) -> tuple[int, float]:
        """The time in ticks and the seconds since boot, of one moment."""
        boottime = self._boottime()
        return (boottime + self._offset) // 100 + EPOCH_TICKS, (boottime + self._missed) / 1e9

    def since_boot(self) -> int:
        """Nanoseconds since boot, as the machine counts them."""
        return self._boottime()

    @property
    def offset(self) -> int:
        """Nanoseconds by which the time since 1970 is ahead of that since boot, by the last accepted wall clock."""
        return self._offset

    def wall_offset(self) -> int:
        return self._wall() - self._boottime()

    def drift(self) -> float:
        """Seconds that the wall clock has moved against the boot time since it was last accepted."""
        return (self._wall() - self._boottime() - self._offset) / 1e9

    def accept(self, offset: int) -> None:
        """Accepts the wall clock. If it has moved ahead of the boot time, that may have missed as much."""
        self._missed += max(0, offset - self._offset)
        self._offset = offset


K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache by age and weight. Not for several threads at once, but for ``get``."""

    def __init__(self, now: Callable[[], float], age: Callable[[], float], most: int) -> None:
        self._now = now
        self._age = age
        self._most = most
        self._kept: OrderedDict[K, tuple[float, int]] = OrderedDict()
        """When each was read, and its weight, in the order in which it was put here."""
        self._weight = 0
        self._values: dict[K, V] = {}
        self.get: Callable[[K], V | None] = self._values.get
        """Returns what is kept, which may be too old by now."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: K, value: V, read_at: float, weight: int = 1) -> None:
        """Keeps a value, and drops what is too old by now, or the oldest of what is too much."""
        self.pop(key)
        self._kept[key] = read_at, weight
        self._values[key] = value
        self._weight += weight
        oldest = self._now() - self._age()
        while self._kept:
            key, (began, _) = next(iter(self._kept.items()))
            if began >= oldest and self._weight <= self._most:
                break
            self.pop(key)

    def pop(self, key: K) -> V | None:
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self._weight -= found[1]
        return self._values.pop(key)

    def clear(self) -> None:
        self._kept.clear()
        self._values.clear()
        self._weight = 0


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_SECOND)


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
