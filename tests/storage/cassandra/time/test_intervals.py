"""The known difference of two clocks stays true, and a jump beyond it is detected."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.time.clock_check import DRIFT, RESOLUTION, ClockDifference, measure_difference, median_of

MILLISECOND = 1_000_000
SECOND = 1000 * MILLISECOND


class Exchange(NamedTuple):
    """A request to a coordinator and its answer.

    Attributes:
        pause: Nanoseconds before it.
        there, back: Nanoseconds of each way.
        drift: How the difference of the clocks moves meanwhile: nanoseconds in DRIFT.
        early: Nanoseconds by which the coordinator's answer is too low, since it counts milliseconds.
    """

    pause: int
    there: int
    back: int
    drift: float
    early: int


EXCHANGES = st.builds(
    Exchange,
    st.integers(0, 20 * SECOND),
    st.integers(0, SECOND),
    st.integers(0, SECOND),
    st.floats(-1, 1),
    st.integers(0, RESOLUTION),
)


class Clocks:
    """Our time since boot, and a coordinator's clock.

    Args:
        difference: Nanoseconds by which ours is ahead.
    """

    def __init__(self, difference: int) -> None:
        self.now = 1000 * SECOND
        self.difference = difference

    def advance(self, duration: int, drift: float) -> None:
        self.now += duration
        self.difference += int(duration * drift / DRIFT)

    def ask(self, exchange: Exchange) -> ClockDifference:
        """Advances the time by an exchange and returns the difference measured by it."""
        self.advance(exchange.pause, exchange.drift)
        sent = self.now
        self.advance(exchange.there, exchange.drift)
        theirs = self.now - self.difference - exchange.early
        self.advance(exchange.back, exchange.drift)
        return measure_difference(sent, self.now, theirs)

    def holds(self, known: ClockDifference) -> bool:
        low, high, _ = known.at_time(self.now)
        return low <= self.difference <= high


@given(st.integers(-SECOND, SECOND), EXCHANGES, st.lists(EXCHANGES, max_size=20))
def test_the_truth_stays_inside(difference: int, first: Exchange, exchanges: list[Exchange]) -> None:
    """While no clock jumps and drift is within its bound, all answers meet, and their intersection has the truth."""
    clocks = Clocks(difference)
    interval = clocks.ask(first)
    assert clocks.holds(interval)
    for exchange in exchanges:
        answer = clocks.ask(exchange)
        assert interval.is_consistent_with(answer)
        assert answer.is_consistent_with(interval)
        interval = interval.intersect(answer)
        assert clocks.holds(interval)
        assert interval.error <= answer.at_time(interval.at).error


@given(
    st.integers(-SECOND, SECOND),
    st.lists(EXCHANGES, min_size=1, max_size=10),
    EXCHANGES,
    st.sampled_from([-1, 1]),
    st.integers(1, SECOND),
)
def test_a_jump_beyond_the_errors_shows(
    difference: int, exchanges: list[Exchange], last: Exchange, sign: int, more: int
) -> None:
    """A jump that is larger than both intervals together misses the known interval, in either direction."""
    clocks = Clocks(difference)
    interval = clocks.ask(exchanges[0])
    for exchange in exchanges[1:]:
        interval = interval.intersect(clocks.ask(exchange))
    drift = -(-(last.pause + last.there + last.back) // DRIFT) + 2
    answer_width = 2 * RESOLUTION + last.there + last.back
    clocks.difference += sign * (interval.high - interval.low + answer_width + 2 * drift + more)
    assert not interval.is_consistent_with(clocks.ask(last))


def test_of_an_even_number_those_that_are_further_apart_count() -> None:
    """The mean of two clocks that are off by the same amount in both directions is not used."""
    intervals = [ClockDifference(-9, -7, 0), ClockDifference(5, 6, 0)]
    assert median_of(intervals, 0) == ClockDifference(-9, 6, 0)
    assert median_of([*intervals, ClockDifference(0, 1, 0)], 0) == ClockDifference(0, 1, 0)
    assert median_of([*intervals, ClockDifference(0, 1, 0), ClockDifference(2, 3, 0)], 0) == ClockDifference(0, 3, 0)
