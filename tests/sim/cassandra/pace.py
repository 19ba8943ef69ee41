"""The timing of a simulated store. All events are scaled to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from queuey.storage.cassandra import CassandraOptions
from queuey.storage.cassandra.cluster import timing
from queuey.storage.cassandra.cluster.timing import KeyspaceTiming


@dataclass(frozen=True)
class Pace:
    """W, U, S, D and C, and what depends on them.

    Attributes:
        timing: These times.
        heartbeat: Seconds between checks of a clock.
        calm: Seconds without faults until everything has finished.
    """

    timing: KeyspaceTiming
    heartbeat: float
    calm: float

    @property
    def scale(self) -> float:
        """Factor for durations, relative to :data:`PATIENT`."""
        return self.timing.levels["strong"].delay / timing.MANY_CENTRES_TIMING.levels["strong"].delay

    @property
    def clocks(self) -> float:
        return self.timing.clock_difference / timing.MANY_CENTRES_TIMING.clock_difference

    def options(self) -> CassandraOptions:
        options = CassandraOptions(heartbeat=self.heartbeat, timeout=4.0 * self.scale, reap_interval=None)
        return with_timing(options, self.timing)


PATIENT = Pace(timing.MANY_CENTRES_TIMING, heartbeat=0.5, calm=25.0)
"""For several data centres."""
SOON = Pace(timing.ONE_CENTRE_TIMING, heartbeat=0.25, calm=16.0)
"""For one data centre."""


def with_timing(options: CassandraOptions, timing: KeyspaceTiming) -> CassandraOptions:
    levels = {
        name: replace(level, delay=timing.levels[name].delay, deadline=timing.levels[name].deadline)
        if level.safe
        else level
        for name, level in options.levels.items()
    }
    return replace(options, clock_difference=timing.clock_difference, row_age=timing.row_age, levels=levels)
