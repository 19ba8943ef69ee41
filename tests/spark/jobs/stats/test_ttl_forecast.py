"""What TTL takes before it is read, against message-by-message simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from queuey.spark.jobs.stats.ttl_forecast import Backlog, Forecast, forecast

RATES = st.one_of(st.just(0.0), st.floats(0.05, 20.0))


def simulated(backlog: Backlog, within: float) -> list[float]:
    """When messages go unread, each followed on its own; the reader takes the next one as soon as its rate lets it."""
    step = (backlog.oldest - backlog.newest) / max(1, backlog.count - 1)
    messages = [(0.0, max(0.0, backlog.ttl - backlog.oldest + n * step)) for n in range(backlog.count)]
    if backlog.arriving:
        stored = [n / backlog.arriving for n in range(1, math.floor(within * backlog.arriving) + 1)]
        messages += [(at, at + backlog.ttl) for at in stored]
    pause = 1 / backlog.reading if backlog.reading else math.inf
    lost, ready = [], pause
    for begins, ends in messages:
        now = max(ready, begins)
        if ends > now:
            ready = now + pause
        elif ends <= within:
            lost.append(ends)
    return lost


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    """Any partition of at most a few hundred messages."""
    ttl = draw(st.floats(1.0, 60.0))
    newest, oldest = sorted((draw(st.floats(0.0, ttl)), draw(st.floats(0.0, ttl))))
    count = draw(st.integers(0, 200))
    return Backlog(count=count, oldest=oldest, newest=newest, ttl=ttl, arriving=draw(RATES), reading=draw(RATES))


@given(backlogs(), st.floats(0.5, 120.0))
@example(Backlog(count=3, oldest=10, newest=10, ttl=10, reading=1), 5)
@example(Backlog(count=200, oldest=20, newest=0, ttl=20, arriving=10, reading=9.99), 100)
def test_as_many_are_lost_as_in_a_simulation(backlog: Backlog, within: float) -> None:
    """The number lost is that of a simulation of single messages, to within two that are halfway read.

    Rates say nothing of a group that reads no message or two in the life of one.
    """
    assume(not backlog.reading or backlog.reading * backlog.ttl >= 2)
    lost = simulated(backlog, within)
    found = forecast(backlog, within)
    assert abs(found.lost - len(lost)) <= 2
    assert (found.first is None) == (found.lost == 0)
    if found.first is not None:
        assert 0 <= found.first <= within


@given(backlogs(), st.floats(0.5, 120.0))
def test_a_group_that_stands_still_loses_exactly_what_expires(backlog: Backlog, within: float) -> None:
    """Without reading and arrivals the forecast is exact: what reaches the age of the TTL, and when the first does."""
    still = Backlog(count=backlog.count, oldest=backlog.oldest, newest=backlog.newest, ttl=backlog.ttl)
    lost = simulated(still, within)
    found = forecast(still, within)
    assert abs(found.lost - len(lost)) <= 1
    if found.lost and lost:
        assert found.first == pytest.approx(lost[0], abs=1e-6)


@given(backlogs(), st.floats(0.5, 60.0), st.floats(0.0, 60.0), st.floats(0.0, 20.0))
def test_more_time_loses_more_and_more_reading_less(
    backlog: Backlog, within: float, longer: float, faster: float
) -> None:
    """Looking further ahead never shows fewer losses, and reading faster never more."""
    found = forecast(backlog, within)
    assert forecast(backlog, within + longer).lost >= found.lost
    quick = Backlog(
        count=backlog.count,
        oldest=backlog.oldest,
        newest=backlog.newest,
        ttl=backlog.ttl,
        arriving=backlog.arriving,
        reading=backlog.reading + faster,
    )
    assert forecast(quick, within).lost <= found.lost + 1


def test_a_group_that_falls_behind_loses_for_ever() -> None:
    """A group slower than the producers loses, once its backlog is as old as the TTL, what it does not keep up with."""
    found = forecast(Backlog(count=0, oldest=0, newest=0, ttl=100, arriving=10, reading=8), 1000)
    # It is 2 a second behind; at 8 a second it takes 100 s to come to what was stored 100 s ago: after 500 s.
    assert found.first == pytest.approx(500, abs=1)
    assert found.lost == pytest.approx(2 * 500, abs=5)
    assert found.rate == pytest.approx(2)


def test_a_group_that_keeps_up_loses_nothing() -> None:
    """Whoever reads as fast as messages come and expire loses none, ever."""
    assert forecast(Backlog(count=1000, oldest=50, newest=0, ttl=100, arriving=20, reading=40), 1e9) == Forecast()


@pytest.mark.parametrize(
    "fields",
    [
        {"count": -1, "oldest": 1, "newest": 1, "ttl": 1},
        {"count": 1, "oldest": 1, "newest": 2, "ttl": 1},
        {"count": 1, "oldest": 1, "newest": 1, "ttl": 0},
        {"count": 1, "oldest": 1, "newest": 1, "ttl": 1, "reading": -1},
    ],
)
def test_impossible_backlogs_are_refused(fields: dict[str, float]) -> None:
    """A struct that cannot be is not made."""
    with pytest.raises(ValueError, match=r"backlog|rates"):
        Backlog(**fields)  # type: ignore[arg-type]
