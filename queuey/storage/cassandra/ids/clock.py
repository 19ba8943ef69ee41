"""The store's clock, and whether it agrees with the cluster's.

The clock is the time since boot plus an offset. Durations and deadlines are measured on CLOCK_BOOTTIME, which neither a
step of the wall clock nor a stop of the process (SIGSTOP, a suspended laptop) can hide. The wall clock comes in only
through :meth:`Clock.accept`, after a check.

Several times a second the process asks the coordinators for their time. It compares its clock with the median of their
answers: beyond 0.4 S it neither writes nor reads, so two processes that do are never more than S apart (0.4 S each, and
at most 0.1 S of error in each comparison). States::

    unknown ──(a check within 0.4 S)──► sound ◄──(a check within 0.4 S)── refusing
       ▲                                 │  └──(a check beyond 0.4 S)────────▲
       └──(no check for GAP, or the wall clock jumped against the boot time)─┘ (before an acknowledgement)

When a virtual machine stands still, all its clocks stop, and only a check shows it. So an acknowledgement needs a check
that began at most FRESH before the answer to the write came. If the write took longer, the check must have begun after
the write was sent. Writes that are answered within FRESH after a standstill, and before the first check, may be
acknowledged too late.

The wall clock is accepted only when it is within 0.3 S of the median itself, so a wall clock that is set wrongly does
no harm to a running process. If the clock had to be corrected by more than 0.4 S, as after a virtual machine stood
still, then it has timed writes wrongly: no write whose id was made before the correction counts as in time.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from queuey.errors import StoreUnavailable
from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND
from queuey.storage.cassandra.driver import Driver, Request, Rows, Statement

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_ns() -> int:
    """Nanoseconds since boot, time asleep included (CLOCK_MONOTONIC where the system has no CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(_CLOCK)


class Clock:
    """Wall clock time that follows the boot time.

    When a virtual machine stands still its boot time does, too. Once the wall clock is right again and accepted,
    the time that was missed counts for ages and deadlines as well: what was read before is as old as it is.

    Args:
        boottime: Nanoseconds since boot.
        wall: Nanoseconds since 1970.
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
        """The time in ticks."""
        return (self._boottime() + self._offset) // 100 + EPOCH_TICKS

    def both(self) -> tuple[int, float]:
        """The time in ticks and the seconds since boot, of one moment."""
        boottime = self._boottime()
        return (boottime + self._offset) // 100 + EPOCH_TICKS, (boottime + self._missed) / 1e9

    def wall(self) -> float:
        """The machine's wall clock as it is now, in seconds since 1970."""
        return self._wall() / 1e9

    def drift(self) -> float:
        """Seconds that the wall clock has moved against the boot time since it was last accepted."""
        return (self._wall() - self._boottime() - self._offset) / 1e9

    def accept(self, error: float = math.inf) -> None:
        """Takes over the wall clock as it is now.

        Args:
            error: Seconds by which it may be ahead of this clock without any standstill.
        """
        offset = self._wall() - self._boottime()
        if offset - self._offset > error * 1e9:
            self._missed += offset - self._offset
        self._offset = offset


def ticks(seconds: float) -> int:
    """Returns a duration in ticks."""
    return round(seconds * TICKS_PER_SECOND)


log = logging.getLogger(__name__)

RED = 0.3
REFUSE = 0.4
ERROR = 0.1
"""Parts of S: beyond which health is red, beyond which nothing is served, and how exact a comparison must be."""
GAP = 10.0
"""Seconds without a check after which one comes before the next acknowledgement."""

FRESH = 1.0
"""Seconds before the answer to a write in which a check must have begun for the write to be acknowledged."""

ATTEMPTS = 5
AGAIN = 0.05
"""Attempts at a check that an acknowledgement waits for, and seconds between them."""
LATE = 1.0
"""Seconds by which the driver may be late in reporting that a node did not answer."""

_NOW = Statement("SELECT now() FROM system.local")


class ClockReading(NamedTuple):
    """A coordinator's time as it was asked for.

    Attributes:
        node: Its address.
        clock: Seconds that our id clock is ahead of it (negative: behind).
        wall: The same of our wall clock.
        error: Half the time that the answer took: how far both may be wrong.
    """

    node: str
    clock: float
    wall: float
    error: float


class ClockCheck:
    """The state, and the decisions; :class:`ClockWatch` asks the nodes.

    Args:
        clock: The clock that ids are made with.
        difference: S in seconds.
    """

    def __init__(self, clock: Clock, difference: float) -> None:
        self._clock = clock
        self._difference = difference
        self._checked: float | None = None
        self._began = -math.inf
        self._drift = 0.0
        self._refusing = False
        self.wrong_until = -math.inf
        """Boot time at which the id clock was last found beyond 0.4 S off: what it timed before may have been late."""
        self.median = 0.0
        """Seconds by which the id clock was ahead of the coordinators' median."""
        self.off: tuple[str, ...] = ()
        """Coordinators whose own clocks are beyond 0.3 S of the median."""
        self.wall_off = False

    def note(self, readings: Sequence[ClockReading], began: float | None = None) -> None:
        """Takes a round of answers into account; those that took too long to be exact count for nothing.

        Args:
            readings: The answers.
            began: Boot time at which the round began; None: now.
        """
        exact = [reading for reading in readings if reading.error <= ERROR * self._difference]
        if not exact:
            return
        median = _middle(reading.clock for reading in exact)
        wall = _middle(reading.wall for reading in exact)
        self.wall_off = abs(wall) > RED * self._difference
        usual = statistics.median(reading.clock for reading in exact)
        self.off = tuple(one.node for one in exact if abs(one.clock - usual) > RED * self._difference)
        if abs(median) > REFUSE * self._difference:
            self.wrong_until = self._clock.boottime()
        drift = statistics.median(reading.wall - reading.clock for reading in exact)
        if not self.wall_off and abs(self._clock.drift() - drift) <= ERROR * self._difference:
            self._clock.accept(ERROR * self._difference)
            median, drift = wall, self._clock.drift()
        refusing = abs(median) > REFUSE * self._difference
        if refusing != self._refusing:
            log.log(
                logging.ERROR if refusing else logging.WARNING,
                "The clock is %+.3f s off the Cassandra nodes': %s.",
                median,
                "nothing is served until it is right" if refusing else "serving again",
            )
        self.median, self._refusing = median, refusing
        self._checked, self._drift = self._clock.boottime(), drift
        self._began = self._checked if began is None else began

    def sound(self, since: float = -math.inf) -> bool:
        """Returns whether the last check still says that ids and horizons may be made.

        Args:
            since: Boot time; the check must have begun then or later.
        """
        return (
            self._checked is not None
            and not self._refusing
            and self._began >= since
            and self._clock.boottime() - self._checked <= GAP
            and abs(self._clock.drift() - self._drift) <= ERROR * self._difference
        )

    @property
    def refusing(self) -> bool:
        """Whether the clock was found to be off."""
        return self._refusing

    def complaint(self) -> str | None:
        """Says what makes health red, None if nothing does."""
        if self._checked is None:
            return "the clock has not been compared with the Cassandra nodes' yet"
        if abs(self.median) > RED * self._difference:
            return f"the clock is {self.median:+.3f} s off the Cassandra nodes'"
        if self.wall_off:
            return "the wall clock of this machine is off the Cassandra nodes'"
        if self.off:
            return f"the clocks of these Cassandra nodes are off: {', '.join(self.off)}"
        return None


def _middle(values: Iterable[float]) -> float:
    """Returns the median; of an even number of values the one in the middle that is further from 0.

    When one node of three does not answer and another's clock is off, their mean would let a clock pass that is off by
    as much.
    """
    found = sorted(values)
    return max(found[(len(found) - 1) // 2], found[len(found) // 2], key=abs)


class ClockWatch:
    """Asks the coordinators again and again.

    Args:
        driver: The way to them.
        clock: The clock that ids are made with.
        skew: Gets the answers.
        interval: Seconds between rounds; None: only when :meth:`check` is called.
    """

    def __init__(self, driver: Driver, clock: Clock, skew: ClockCheck, interval: float | None) -> None:
        self._driver = driver
        self._clock = clock
        self._clock_check = skew
        self._interval = interval
        self._ended = threading.Event()
        self._asking = threading.Lock()
        self._thread: threading.Thread | None = None
        if interval is not None:
            self._thread = threading.Thread(target=self._run, name="queuey-clock-check", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the rounds."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def check(self, timeout: float = 1.0, *, since: float | None = None) -> bool:
        """Asks now and returns whether the clock is sound; several callers share a round.

        Args:
            timeout: Seconds to wait for the nodes.
            since: Boot time; a round that began then or later will do, and no other. None: a new one.
        """
        wanted = -math.inf if since is None else since
        if not self._asking.acquire(timeout=timeout):
            return self._clock_check.sound(wanted)
        try:
            if since is None or not self._clock_check.sound(since):
                began = self._clock.boottime()
                self._clock_check.note(self._ask(timeout), began)
        finally:
            self._asking.release()
        return self._clock_check.sound(wanted)

    def sound(self) -> bool:
        """Returns whether the clock may be trusted, by the last check."""
        return self._clock_check.sound()

    def refusing(self) -> bool:
        """Returns whether the clock was found to be off."""
        return self._clock_check.refusing

    def vouches(self, minted: float) -> bool:
        """Returns whether the time since an id was made (boot time) was measured correctly, by the last check."""
        return self._clock_check.sound() and minted > self._clock_check.wrong_until

    def require(self) -> None:
        """Makes sure that the clock is sound, by asking if need be.

        Raises:
            StoreUnavailable: It is off, or no node said that it is not.
        """
        if not self._clock_check.sound() and not self.check():
            raise self.refusal()

    def confirm(self, arrived: float) -> None:
        """Makes sure of the clock before a write is acknowledged, by asking if need be.

        Args:
            arrived: Boot time at which the answer to the write came.

        Raises:
            StoreUnavailable: It is off, or no node said that it is not.
        """
        for _ in range(ATTEMPTS):
            if self.confirmed(arrived) or self.check(since=arrived - FRESH):
                return
            if self._clock_check.refusing or self._clock.boottime() - arrived > FRESH or self._ended.wait(AGAIN):
                break
        raise self.refusal()

    def confirmed(self, arrived: float) -> bool:
        """Returns whether the last check is recent enough to acknowledge a write; see :meth:`confirm`."""
        return self._clock_check.sound(arrived - FRESH)

    def refusal(self) -> StoreUnavailable:
        """Says, without asking, why nothing is served."""
        if (problem := self._driver.problem()) is not None:
            return StoreUnavailable(problem)
        return StoreUnavailable(
            self._clock_check.complaint() or "the clock could not be compared with the Cassandra nodes'"
        )

    def _run(self) -> None:
        self._driver.ready(0.0)
        while not self._ended.is_set():
            try:
                self.check()
            except Exception:
                log.exception("The clock could not be compared with the Cassandra nodes'.")
            # A second comparison soon after the start, so that requests need not wait for the first round.
            self._ended.wait(self._interval if self._driver.problem() is None else 0.2)

    def _ask(self, timeout: float) -> list[ClockReading]:
        readings: list[ClockReading] = []
        waiting = threading.Semaphore(0)
        nodes = [host.address for host in self._driver.hosts() if host.up]
        for node in nodes:
            request = Request(_NOW, consistency="ONE", timeout=timeout, host=node)
            self._driver.send(request, self._taker(node, readings, waiting))
        for _ in nodes:
            if not waiting.acquire(timeout=timeout + LATE):
                break  # The driver was closed: no callback comes any more.
        return list(readings)

    def _taker(self, node: str, readings: list[ClockReading], waiting: threading.Semaphore) -> Callable[..., None]:
        began, before = self._clock.boottime(), self._clock.wall()

        def done(rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is None and rows:
                took = self._clock.boottime() - began
                theirs: UUID = rows[0][0]
                seconds = (theirs.time - EPOCH_TICKS) / TICKS_PER_SECOND
                ours = (self._clock.now() - EPOCH_TICKS) / TICKS_PER_SECOND
                wall = (before + self._clock.wall()) / 2
                readings.append(ClockReading(node, ours - took / 2 - seconds, wall - seconds, took / 2))
            waiting.release()

        return done
