"""The store's clock: the time since boot plus an offset that is only taken over when it was found sound.

Durations and deadlines are measured on CLOCK_BOOTTIME, which neither a step of the wall clock nor a stop of the process
(SIGSTOP, a suspended laptop) can hide. The wall clock comes in only through :meth:`Clock.accept`, after
:mod:`queuey.storage.cassandra.ids.clock_check` has compared it with the coordinators' clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included (CLOCK_MONOTONIC where the system has no CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(_CLOCK)


class Clock:
    """Wall clock time that follows the boot time.

    Args:
        boottime: Nanoseconds since boot.
        wall: Nanoseconds since 1970.
    """

    __slots__ = ("_boottime", "_offset", "_wall")

    def __init__(self, boottime: Callable[[], int] = boottime_ns, wall: Callable[[], int] = time.time_ns) -> None:
        self._boottime = boottime
        self._wall = wall
        self._offset = wall() - boottime()

    def boottime(self) -> float:
        """Seconds since boot: for ages and deadlines."""
        return self._boottime() / 1e9

    def now(self) -> int:
        """The time in ticks."""
        return (self._boottime() + self._offset) // 100 + EPOCH_TICKS

    def both(self) -> tuple[int, float]:
        """The time in ticks and the seconds since boot, of one moment."""
        boottime = self._boottime()
        return (boottime + self._offset) // 100 + EPOCH_TICKS, boottime / 1e9

    def wall(self) -> float:
        """The machine's wall clock as it is now, in seconds since 1970."""
        return self._wall() / 1e9

    def drift(self) -> float:
        """Seconds that the wall clock has moved against the boot time since it was last accepted."""
        return (self._wall() - self._boottime() - self._offset) / 1e9

    def accept(self) -> None:
        """Takes over the wall clock as it is now."""
        self._offset = self._wall() - self._boottime()


def ticks(seconds: float) -> int:
    """Returns a duration in ticks."""
    return round(seconds * TICKS_PER_SECOND)
