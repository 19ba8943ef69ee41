"""The store's clock, caches that go by it, and the ids and timestamps of writes.

The clock is the time since boot plus an offset. Durations and deadlines are measured on CLOCK_BOOTTIME. Neither a step
of the wall clock nor a suspend (SIGSTOP, a closed laptop) can falsify it. The wall clock only sets the offset, through
:meth:`SteadyClock.accept`, after a check.

Of two writes to one cell, Cassandra keeps the one with the higher timestamp (microseconds); of a write and a delete
with equal timestamps, the delete. So every write carries a timestamp from here: a new message the time of its id, a
delete at least the timestamp of what it deletes, whatever the clocks of the processes say.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from queuey.model import ids
from queuey.model.errors import InvalidRequest
from queuey.model.ids import EPOCH_TICKS, TICKS_PER_SECOND, Position

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


boottime_ns = partial(time.clock_gettime_ns, _CLOCK)
"""Nanoseconds since boot, including suspends (CLOCK_MONOTONIC if the system has no CLOCK_BOOTTIME)."""


class SteadyClock:
    """Wall clock time that follows the boot time.

    ``now`` counts ticks, as ids do. ``wall_offset`` belongs to the present wall clock, accepted or not.

    When a virtual machine is paused, its boot time stops as well. Once the corrected wall clock is accepted, the missed
    time counts for ages and deadlines: what was read before is as old as it really is. It does not count for waits. A
    wall clock that was behind and is set right looks the same, and then no time was missed.

    Attributes:
        raw_boottime_ns: Returns the nanoseconds since boot, without the missed time.
        wall_ns: Returns the wall clock's nanoseconds since 1970.
        offset: Nanoseconds from the boot time to the time since 1970, by the last accepted wall clock.
    """

    __slots__ = ("_missed", "offset", "raw_boottime_ns", "wall_ns")

    def __init__(self, boottime: Callable[[], int] = boottime_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self.raw_boottime_ns = boottime
        self.wall_ns = wall
        self.offset = wall() - boottime()
        self._missed = 0

    def boottime(self) -> float:
        """Seconds since boot, plus the time that is known to be missed. For ages and deadlines."""
        return (self.raw_boottime_ns() + self._missed) / 1e9

    def now(self) -> int:
        return (self.raw_boottime_ns() + self.offset) // 100 + EPOCH_TICKS

    def now_and_boottime(self) -> tuple[int, float]:
        boottime = self.raw_boottime_ns()
        return (boottime + self.offset) // 100 + EPOCH_TICKS, (boottime + self._missed) / 1e9

    def seconds_since(self, began: int) -> float:
        """Seconds that have certainly passed since the raw boot time ``began``. For waits until others have ended."""
        return (self.raw_boottime_ns() - began) / 1e9

    def wall_offset(self) -> int:
        return self.wall_ns() - self.raw_boottime_ns()

    def drift(self) -> float:
        """Seconds that the wall clock has moved against the boot time since it was last accepted."""
        return (self.wall_ns() - self.raw_boottime_ns() - self.offset) / 1e9

    def accept(self, offset: int) -> None:
        """Accepts a wall clock offset. If it has grown, the boot time may have missed the difference."""
        self._missed += max(0, offset - self.offset)
        self.offset = offset


K = TypeVar("K")
V = TypeVar("V")


class ExpiringCache(Generic[K, V]):
    """A cache limited by age and weight. For one thread, except ``get``."""

    def __init__(self, now: Callable[[], float], age: Callable[[], float], most: int) -> None:
        self._now = now
        self._age = age
        self._most = most
        self._kept: OrderedDict[K, tuple[float, int]] = OrderedDict()
        """By key, when the value was read and its weight, in order of insertion."""
        self._weight = 0
        self._values: dict[K, V] = {}
        self.get: Callable[[K], V | None] = self._values.get
        """Returns the value of a key, which may be too old by now."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: K, value: V, read_at: float, weight: int = 1) -> None:
        former = self._kept.pop(key, None)
        if former is not None:
            self._weight -= former[1]
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
        entry = self._kept.pop(key, None)
        if entry is None:
            return None
        self._weight -= entry[1]
        return self._values.pop(key)

    def clear(self) -> None:
        self._kept.clear()
        self._values.clear()
        self._weight = 0


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_SECOND)


TICKS_PER_MICROSECOND = 10
MAX_TICKS_AHEAD = TICKS_PER_SECOND
"""Max ticks that ``after`` may put an id ahead of the clock. ``after`` may come from a process whose clock is ahead by
S. No reader has passed times that are ahead, whatever the read delay is. :class:`Stamps` allows for it."""


class IdGenerator:
    """Generates ids of new messages: strictly ascending, never below the clock or a horizon that it has returned.

    Ids of different processes differ in ``low``, which is random; ids of one process differ in time.
    """

    __slots__ = ("_clock", "_last", "_lock", "low")

    def __init__(self, clock: SteadyClock, low: int | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0
        self.low = ids.random_low() if low is None else low

    def check_after(self, after: Position) -> None:
        """Checks that ids may be generated above a position.

        Raises:
            InvalidRequest: The position is more than a second ahead of the clock and above every id generated here. A
                client could otherwise move the ids of all callers ahead.
        """
        if after[0] > self._clock.now() + MAX_TICKS_AHEAD and after > (self._last, self.low):
            raise InvalidRequest({"X-After": "lies more than a second ahead of the clock"})

    def generate(self, count: int, after: Position | None = None) -> int:
        with self._lock:
            first = max(self._clock.now(), self._last + 1)
            if after is not None and (first, self.low) <= after:
                first = after[0] + 1
            self._last = first + count - 1
            return first

    def avoid_low(self, low: int) -> None:
        """Changes ``low`` if a client has put an id with the same one: its next id could be the next one here."""
        with self._lock:
            if low == self.low:
                self.low = ids.random_low()

    def next_time(self) -> int:
        """Returns the lowest ticks of the next id. All later ids stay above, even if the clock is set back.

        So it is a horizon: this process generates no id below it any more.
        """
        with self._lock:
            first = max(self._clock.now(), self._last + 1)
            self._last = first - 1
            return first


class DelayedIds:
    """Generates ids of the delayed messages of one call.

    The id's time is the due time. Its ``low`` is random for each call and delay, so no generator moves and no id
    repeats.
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
    """Timestamps for writes and deletes by id: ascending in the process, and high enough to take effect.

    The timestamp of a delete must exceed that of the message. A new message has the time of its id, which may be ahead
    of its process's clock. A message that was delayed or put has the time of some process's clock, which is at most
    ``difference`` (seconds) ahead of this one.
    """

    __slots__ = ("_clock", "_difference", "_last", "_lock")

    def __init__(self, clock: SteadyClock, difference: Callable[[], float]) -> None:
        self._clock = clock
        self._difference = difference
        self._last = 0
        self._lock = threading.Lock()

    @property
    def max_ticks_ahead(self) -> int:
        """Ticks by which the time of an id may be ahead of this clock and still be its timestamp.

        It does not change with S while that is at most a second: writes before a change of S must yield to writes after
        it.
        """
        return MAX_TICKS_AHEAD + round(2 * max(1.0, self._difference()) * TICKS_PER_SECOND)

    def make_above(self, ticks: int) -> int:
        stamp = self.find_lowest(self._clock.now(), ticks)
        with self._lock:
            self._last = max(self._last + 1, stamp)
            return self._last

    def find_lowest(self, now: int, ticks: int) -> int:
        """Returns the lowest timestamp that takes effect for an id with these ticks, if it is written at ``now``.

        It does not depend on other writes of the process, so the time limit of the write bounds it.
        """
        return stamp_of(max(now, min(ticks, now + self.max_ticks_ahead)))


def stamp_of(ticks: int) -> int:
    return (ticks - EPOCH_TICKS) // TICKS_PER_MICROSECOND


def undo_timestamp(now: int, ticks: int) -> int:
    return stamp_of(max(now, ticks))
