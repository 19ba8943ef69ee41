"""The times that a process goes by, as they stand in the keyspace (:mod:`..timing`), and what it measures of them.

It measures how long its writes and undo writes took lately, so that W and U can be chosen by that.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping

import msgspec

from queuey.errors import SettingsError, StoreUnavailable
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.driver import Driver, Request, Rows, Statement
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.cassandra.timing import LEASE, StoredTiming, Timing, decode, settled

EVERY = 1.0
"""Interval after which the times are read again, in seconds."""

READ = Statement("SELECT timing FROM migrations WHERE singleton = 0 LIMIT 1")


class TimingInForce:
    """The times that a process goes by: those in the keyspace; until they are read, those of the options."""

    def __init__(self, options: CassandraOptions, clock: Clock) -> None:
        self.stored = settled(options.timing)
        self._options = options
        self._clock = clock
        self._read_at = -math.inf
        self._asked_at = -math.inf
        self._problem: str | None = None

    @property
    def kept(self) -> Timing:
        return self.stored.kept

    @property
    def assumed(self) -> Timing:
        return self.stored.assumed

    def clock_difference(self) -> float:
        """Returns the S that this process keeps within."""
        return self.stored.kept.clock_difference

    def fresh(self, at: float) -> bool:
        return not self._options.follow or (self._problem is None and at - self._read_at <= LEASE)

    def patience(self) -> float:
        """Timeout of a coordinator before another one is asked, in seconds: W / 4."""
        return min([level.deadline for level in self.kept.levels.values()]) / 4

    def refusal(self) -> StoreUnavailable:
        return StoreUnavailable(self._problem or "the times that stand in the keyspace could not be read for a while")

    async def renew(self, driver: Driver) -> str | None:
        """Reads the stored times; returns why this process cannot serve, None if it can."""
        if not self._options.follow:
            return None
        began = self._clock.boottime()
        return self._take(await driver.ask(Request(READ, (), self._options.catalogue_read)), began)

    def refresh(self, driver: Driver) -> None:
        """Begins to read the stored times again if that is due; never blocks."""
        now = self._clock.boottime()
        if not self._options.follow or now - max(self._read_at, self._asked_at) < EVERY:
            return
        self._asked_at = now

        def done(rows: Rows | None, error: Exception | None) -> None:
            if error is None:
                self._take(rows or [], now)

        driver.send(Request(READ, (), self._options.catalogue_read), done)

    def _take(self, rows: Rows, began: float) -> str | None:
        if began < self._read_at:
            return self._problem
        try:
            if not rows or rows[0][0] is None:
                raise SettingsError("no times stand in the keyspace; run `queuey migrate`")  # noqa: TRY301 - as others
            stored = decode(rows[0][0])
            compare(self._options.stated, stored)
        except SettingsError as error:
            self._problem = str(error)
        else:
            if stored.change != self.stored.change:
                self.stored = stored
            self._problem = None
        self._read_at = began
        return self._problem


def compare(stated: Mapping[str, float], stored: StoredTiming) -> None:
    """Refuses settings that differ from what stands in the keyspace; during a change they may be of either set."""
    for name, value in stated.items():
        there = [timing.values().get(name, value) for timing in (stored.kept, stored.assumed)]
        if value not in there:
            raise SettingsError(
                f"setting {name} is {value:g}, but {there[-1]:g} stands in the keyspace, for all processes: leave the "
                "setting out, or change what stands there by `queuey timing`"
            )


STEP = 1.1
SHORTEST = 1e-4
BUCKETS = 140
"""Number of classes in which times are counted, each a tenth longer than the one before: from 0.1 ms to a minute."""
SPAN = 300.0
"""Interval after which counts begin anew, in seconds; those of the span before count as well."""
TOLD_EVERY = 30.0
"""Interval between the rows that tell others, in seconds."""

_LOG = math.log(STEP)
TELL_TAILS = Statement("INSERT INTO heartbeats (process, tails) VALUES (?, ?)")


class Tail(msgspec.Struct, frozen=True):
    """How long something took, in seconds.

    Attributes:
        count: How often it was measured.
        p99, p999, longest: Ninety-nine of a hundred took no longer, 999 of a thousand, and none.
    """

    count: int = 0
    p99: float = 0.0
    p999: float = 0.0
    longest: float = 0.0


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a process in the last minutes.

    Attributes:
        write: From the making of an id to the answer of Cassandra.
        undo: From the failure of a write to its undo write's confirmation.
        clock_error: Seconds by which its clock may be off at most.
        change: What stands in the keyspace, as it has read it.
    """

    write: Tail = Tail()
    undo: Tail = Tail()
    clock_error: float = 0.0
    change: str = ""


class Counted:
    """Counts how long something takes. Threads may race; what is lost is a count."""

    __slots__ = ("_before", "_clock", "_longest", "_now", "_since")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now = [0] * BUCKETS
        self._before = [0] * BUCKETS
        self._longest = [0.0, 0.0]
        self._since = clock.boottime()

    def note(self, seconds: float) -> None:
        self._turn()
        self._now[min(BUCKETS - 1, max(0, math.ceil(math.log(max(seconds, SHORTEST) / SHORTEST) / _LOG)))] += 1
        self._longest[0] = max(self._longest[0], seconds)

    def tail(self) -> Tail:
        self._turn()
        counts = [now + before for now, before in zip(self._now, self._before, strict=True)]
        total, longest = sum(counts), max(self._longest)
        return Tail(total, _quantile(counts, total, 0.99, longest), _quantile(counts, total, 0.999, longest), longest)

    def _turn(self) -> None:
        if (now := self._clock.boottime()) - self._since > SPAN:
            stale = now - self._since > 2 * SPAN
            self._before = [0] * BUCKETS if stale else self._now
            self._now = [0] * BUCKETS
            self._longest = [0.0, 0.0 if stale else self._longest[0]]
            self._since = now


def _quantile(counts: list[int], total: int, part: float, longest: float) -> float:
    """Returns the upper end of the class that reaches a part of all."""
    left = math.ceil(total * part)
    for number, count in enumerate(counts):
        left -= count
        if left <= 0:
            return min(longest, SHORTEST * STEP**number)
    return longest


class Tails:
    """The measurements of a process, which it writes to its row of ``heartbeats``."""

    def __init__(self, clock: Clock, error: Callable[[], float]) -> None:
        self.write = Counted(clock)
        self.undo = Counted(clock)
        self._clock = clock
        self._error = error
        self._told_at = -math.inf
        self._lock = threading.Lock()

    def tell(self, driver: Driver, process: str, consistency: str, change: str) -> None:
        now = self._clock.boottime()
        with self._lock:
            if now - self._told_at < TOLD_EVERY:
                return
            self._told_at = now
        driver.send(Request(TELL_TAILS, (process, self.text(change)), consistency), lambda _rows, _error: None)

    def text(self, change: str) -> str:
        error = self._error()
        known = error if error < math.inf else 0.0  # Nobody has compared the clock yet.
        return msgspec.json.encode(Measured(self.write.tail(), self.undo.tail(), known, change)).decode()
