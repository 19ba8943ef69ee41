"""The known difference of two clocks: intervals, which widen with age and narrow with every answer.

All values are nanoseconds. A difference is our time since boot less the time that a coordinator tells, so that neither
of our clocks needs to be set for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

RESOLUTION = 1_000_000
"""Max nanoseconds that a coordinator's time may be wrong by: it counts milliseconds."""
DRIFT = 1000
"""Min ratio of a time to the change of two clocks' difference in it."""


class Interval(NamedTuple):
    """Where a difference of two clocks lies.

    Attributes:
        low, high: Its bounds.
        at: The time since boot at which that held.
    """

    low: int
    high: int
    at: int

    def at_time(self, now: int) -> Interval:
        """Returns where it lies at another time: wider by the drift."""
        more = -(-abs(now - self.at) // DRIFT)
        return Interval(self.low - more, self.high + more, now)

    def meets(self, other: Interval) -> bool:
        """Returns whether both may hold, if no clock was set and no machine stood still between them."""
        more = -(-abs(other.at - self.at) // DRIFT)
        return self.low - more <= other.high and other.low <= self.high + more

    def and_also(self, other: Interval) -> Interval:
        now = max(self.at, other.at)
        mine, theirs = self.at_time(now), other.at_time(now)
        return Interval(max(mine.low, theirs.low), min(mine.high, theirs.high), now)

    def standstill_since(self, known: Interval) -> int:
        """Returns the longest standstill of our machine, from when ``known`` held to this answer."""
        return known.at_time(self.at).high - self.low

    @property
    def middle(self) -> int:
        return (self.low + self.high) // 2

    @property
    def error(self) -> int:
        return (self.high - self.low + 1) // 2


def measured(sent: int, received: int, theirs: int) -> Interval:
    """Returns what an answer says."""
    return Interval(sent - theirs - RESOLUTION, received - theirs + RESOLUTION, sent)


def median_of(intervals: Iterable[Interval], now: int) -> Interval:
    """Returns the medians of the lows and of the highs, of an even number those that are further apart.

    When one node of three does not answer and another's clock is off, the mean of two would let a clock pass that is
    off by as much.
    """
    found = [interval.at_time(now) for interval in intervals]
    lows, highs = sorted(one.low for one in found), sorted(one.high for one in found)
    return Interval(lows[(len(found) - 1) // 2], highs[len(found) // 2], now)
