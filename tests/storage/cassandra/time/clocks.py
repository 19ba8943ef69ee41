"""The clocks of one machine, moved by the test."""

from __future__ import annotations

from queuey.model import ids
from queuey.model.ids import TICKS_PER_SECOND
from queuey.storage.cassandra.time.clock import SteadyClock

START = 1_750_000_000.0
"""A start time, in seconds since 1970."""


class Machine:
    """Time since boot and a wall clock, and the store's clock on them."""

    def __init__(self) -> None:
        self.boottime = 1000.0
        self.ahead = 0.0
        """Seconds by which the wall clock is ahead of the true time."""
        self.clock = SteadyClock(boottime=lambda: round(self.boottime * 1e9), wall=lambda: round(self.wall * 1e9))

    @property
    def true(self) -> float:
        """The true time in seconds since 1970."""
        return START + self.boottime - 1000.0

    @property
    def wall(self) -> float:
        return self.true + self.ahead

    @property
    def error(self) -> float:
        """Seconds by which the store's clock is ahead of the true time."""
        return (self.clock.now() - ids.EPOCH_TICKS) / TICKS_PER_SECOND - self.true

    def advance(self, seconds: float) -> None:
        self.boottime += seconds
