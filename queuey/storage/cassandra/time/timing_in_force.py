"""The timing that a process uses, as the keyspace has it (:mod:`..cluster.timing`), and its own measurements.

It measures how long its recent writes and undo writes took, so that W and U can be chosen accordingly.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import msgspec

from queuey.model.errors import SettingsError, StoreUnavailable
from queuey.storage.cassandra.cluster import Driver, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.timing import LEASE, StoredTiming, decode, make_settled
from queuey.storage.cassandra.time.clock import SteadyClock

READ_INTERVAL = 1.0
"""Interval between reads of the stored timing, in seconds."""

READ_TIMING = Statement("SELECT timing FROM migrations WHERE singleton = 0 LIMIT 1")


class TimingInForce:
    """The timing of the keyspace; until it has been read, the timing of the options.

    Attributes:
        stored: The timing. This process keeps ``stored.kept``; others may still keep ``stored.assumed``.
        coordinator_timeout: Seconds before another coordinator is asked: a quarter of the shortest W.
    """

    def __init__(self, options: CassandraOptions, clock: SteadyClock) -> None:
        self._use(make_settled(options.timing))
        self._options = options
        self._clock = clock
        self._read_at = -math.inf
        self._asked_at = -math.inf
        self._problem: str | None = None

    def _use(self, stored: StoredTiming) -> None:
        self.stored = stored
        self.coordinator_timeout = min([level.deadline for level in stored.kept.levels.values()], default=0.0) / 4

    def is_fresh(self, at: float) -> bool:
        """Returns whether the timing may be used at a boot time: it was read within LEASE and is usable.

        Always true if the keyspace's timing is not followed.
        """
        return not self._options.follow or (self._problem is None and at - self._read_at <= LEASE)

    def refusal(self) -> StoreUnavailable:
        return StoreUnavailable(self._problem or "the timing of the keyspace could not be read for a while")

    async def renew(self, driver: Driver) -> str | None:
        """Reads the stored timing now. Returns why this process cannot serve, or None if it can.

        Returns None without reading unless the options follow the keyspace.
        """
        if not self._options.follow:
            return None
        began = self._clock.boottime()
        return self._adopt(await driver.ask(StatementRequest(READ_TIMING, (), self._options.catalogue_read)), began)

    def refresh(self, driver: Driver) -> None:
        now = self._clock.boottime()
        if not self._options.follow or now - max(self._read_at, self._asked_at) < READ_INTERVAL:
            return
        self._asked_at = now

        def done(rows: Rows | None, error: Exception | None) -> None:
            if error is None:
                self._adopt(rows or [], now)

        driver.send(StatementRequest(READ_TIMING, (), self._options.catalogue_read), done)

    def _adopt(self, rows: Rows, began: float) -> str | None:
        if began < self._read_at:
            return self._problem
        try:
            if not rows or rows[0][0] is None:
                raise SettingsError("the keyspace has no timing; run `queuey migrate`")  # noqa: TRY301 - as others
            stored = decode(rows[0][0])
        except SettingsError as error:
            self._problem = str(error)
        else:
            if stored.change != self.stored.change:
                self._use(stored)
            self._problem = None
        self._read_at = began
        return self._problem


STEP = 1.1
MIN_DURATION = 1e-4
BUCKETS = 140
"""Number of histogram buckets, each a tenth wider than the one before, from 0.1 ms to a minute."""
COUNTING_INTERVAL = 300.0
"""Interval after which counts start again, in seconds. The counts of the previous interval are included."""
PUBLISH_INTERVAL = 30.0
"""Interval between the rows that publish measurements, in seconds."""

_LOG = math.log(STEP)
PUBLISH_TAILS = Statement("INSERT INTO heartbeats (process, tails) VALUES (?, ?)")


class Tail(msgspec.Struct, frozen=True):
    """Durations of an operation, in seconds.

    Attributes:
        p99, p999, longest: 99th percentile, 99.9th percentile, and maximum.
    """

    count: int = 0
    p99: float = 0.0
    p999: float = 0.0
    longest: float = 0.0


class Measured(msgspec.Struct, frozen=True):
    """The measurements of a process in the last minutes.

    Attributes:
        write: From generating an id to Cassandra's answer.
        undo: From the failure of a write to the confirmation of its undo write.
        clock_error: Max seconds that its clock may be off.
        change: The change id of the timing that it has read.
    """

    write: Tail = Tail()
    undo: Tail = Tail()
    clock_error: float = 0.0
    change: str = ""


class DurationHistogram:
    """A histogram of durations. Threads may race, which at worst loses a count."""

    __slots__ = ("_before", "_clock", "_longest", "_now", "_since")

    def __init__(self, clock: SteadyClock) -> None:
        self._clock = clock
        self._now = [0] * BUCKETS
        self._before = [0] * BUCKETS
        self._longest = [0.0, 0.0]
        self._since = clock.boottime()

    def record(self, seconds: float) -> None:
        if (now := self._clock.boottime()) - self._since > COUNTING_INTERVAL:
            self._rotate(now)
        self._now[min(BUCKETS - 1, max(0, math.ceil(math.log(max(seconds, MIN_DURATION) / MIN_DURATION) / _LOG)))] += 1
        self._longest[0] = max(self._longest[0], seconds)

    def tail(self) -> Tail:
        self._rotate(self._clock.boottime())
        counts = [now + before for now, before in zip(self._now, self._before, strict=True)]
        total, longest = sum(counts), max(self._longest)
        return Tail(total, _quantile(counts, total, 0.99, longest), _quantile(counts, total, 0.999, longest), longest)

    def _rotate(self, now: float) -> None:
        if now - self._since > COUNTING_INTERVAL:
            stale = now - self._since > 2 * COUNTING_INTERVAL
            self._before = [0] * BUCKETS if stale else self._now
            self._now = [0] * BUCKETS
            self._longest = [0.0, 0.0 if stale else self._longest[0]]
            self._since = now


def _quantile(counts: list[int], total: int, part: float, longest: float) -> float:
    remaining = math.ceil(total * part)
    for number, count in enumerate(counts):
        remaining -= count
        if remaining <= 0:
            return min(longest, MIN_DURATION * STEP**number)
    return longest


class Tails:
    """The measurements of a process, which it publishes in its row of ``heartbeats``.

    ``encode_measurements`` returns them as JSON; a clock error that is still unknown counts as 0.
    """

    def __init__(self, clock: SteadyClock, error: Callable[[], float]) -> None:
        self.write = DurationHistogram(clock)
        self.undo = DurationHistogram(clock)
        self._clock = clock
        self._error = error
        self._told_at = -math.inf
        self._lock = threading.Lock()

    def publish(self, driver: Driver, process: str, consistency: str, change: str) -> None:
        now = self._clock.boottime()
        with self._lock:
            if now - self._told_at < PUBLISH_INTERVAL:
                return
            self._told_at = now
        driver.send(
            StatementRequest(PUBLISH_TAILS, (process, self.encode_measurements(change)), consistency),
            lambda _rows, _error: None,
        )

    def encode_measurements(self, change: str) -> str:
        error = self._error()
        clock_error = error if error < math.inf else 0.0  # Infinite until the clock has been compared.
        return msgspec.json.encode(Measured(self.write.tail(), self.undo.tail(), clock_error, change)).decode()
