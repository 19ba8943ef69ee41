"""The store's clock: the time since boot plus an offset.

Durations and deadlines are measured on CLOCK_BOOTTIME, which neither a step of the wall clock nor a stop of the process
(SIGSTOP, a suspended laptop) can hide. The wall clock comes in only through :meth:`Clock.accept`, after a check.
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


def ticks(seconds: float) -> int:
    return round(seconds * TICKS_PER_SECOND)
