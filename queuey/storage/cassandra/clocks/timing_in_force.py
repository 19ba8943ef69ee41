"""The times that a process goes by, as they stand in the keyspace (:mod:`..timing`)."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
