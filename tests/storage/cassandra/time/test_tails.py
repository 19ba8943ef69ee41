"""Tests of the measured durations of writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuey.storage.cassandra.time.clock import SteadyClock
from queuey.storage.cassandra.time.timing_in_force import COUNTING_INTERVAL, MIN_DURATION, STEP, DurationHistogram, Tail


class Machine:
    """A machine whose time the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.clock = SteadyClock(boottime=lambda: round(self.seconds * 1e9), wall=lambda: 10**18)


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=300))
def test_quantiles_are_right_but_for_their_class(times: list[float]) -> None:
    """A quantile is never below the true one, and at most a tenth above."""
    counted = DurationHistogram(Machine().clock)
    for seconds in times:
        counted.record(seconds)
    tail, ordered = counted.tail(), sorted(times)
    assert (tail.count, tail.longest) == (len(times), ordered[-1])
    for part, found in ((0.99, tail.p99), (0.999, tail.p999)):
        true = ordered[-(-len(times) * round(part * 1000) // 1000) - 1]
        assert true - 1e-9 <= found <= max(true, MIN_DURATION) * STEP + 1e-9


def test_what_is_old_is_forgotten() -> None:
    """A measurement counts for one span and the next one."""
    machine = Machine()
    counted = DurationHistogram(machine.clock)
    counted.record(3.0)
    machine.seconds += COUNTING_INTERVAL + 1
    counted.record(0.01)
    assert (counted.tail().count, counted.tail().longest) == (2, 3.0)
    machine.seconds += COUNTING_INTERVAL + 1
    assert counted.tail() == Tail(1, 0.01, 0.01, 0.01)
    machine.seconds += 2 * COUNTING_INTERVAL + 1
    assert counted.tail() == Tail()
