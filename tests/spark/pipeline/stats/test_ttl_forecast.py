"""The forecast of messages lost to TTL before they are read, against a message-by-message simulation."""

from __future__ import annotations

import math
from itertools import count

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuey.pipeline.stats.ttl_forecast import Backlog, Forecast, forecast


def simulate_loss(backlog: Backlog, within: float) -> list[float]:
    """Returns when messages are lost; the reader takes the next message as its pace allows."""
    step = (backlog.oldest - backlog.newest) / max(1, backlog.count - 1)
    pause = step / (1 - backlog.growth) if backlog.growth < 1 else math.inf
    lost, now = [], pause
    for number in count() if backlog.coming else range(backlog.count):
        ends = max(0.0, backlog.ttl - backlog.oldest + number * step)
        if ends > within:
            break
        if ends >= now:
            now += pause
        else:
            lost.append(ends)
    return lost


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    """Draws a partition of a few messages that were not all sent at once, the oldest still alive."""
    ttl = draw(st.floats(5.0, 60.0))
    oldest = draw(st.floats(5.0, ttl))
    newest = draw(st.floats(0.0, 0.9)) * oldest
    growth = draw(st.one_of(st.just(1.0), st.floats(0.05, 1.0), st.floats(-2.0, 0.0)))
    coming, number = draw(st.sampled_from([(False, 0), (False, 1), (False, 50), (True, 2), (True, 50)]))
    return Backlog(count=number, oldest=oldest, newest=newest, ttl=ttl, growth=growth, coming=coming)


@given(backlogs(), st.floats(0.5, 90.0))
@example(Backlog(count=200, oldest=20, newest=0, ttl=20, growth=0.01), 100)
def test_as_many_are_lost_as_in_a_simulation(backlog: Backlog, within: float) -> None:
    """The forecast number of lost messages differs from the simulation by at most three at both ends."""
    lost = simulate_loss(backlog, within)
    losses = forecast(backlog, within)
    assert abs(losses.lost - len(lost)) <= 3
    assert (losses.first is None) == (losses.lost == 0)
    assert losses.first is None or 0 <= losses.first <= within


@given(backlogs(), st.floats(0.5, 90.0))
def test_a_group_that_stands_still_loses_exactly_what_expires(backlog: Backlog, within: float) -> None:
    """Without reading the forecast is exact: the messages that reach the TTL, and the time of the first."""
    still = msgspec.structs.replace(backlog, growth=1.0)
    lost = simulate_loss(still, within)
    losses = forecast(still, within)
    assert abs(losses.lost - len(lost)) <= 1
    if losses.lost and lost:
        assert losses.first == pytest.approx(lost[0], abs=1e-6)


@given(backlogs(), st.floats(0.5, 60.0), st.floats(0.0, 60.0), st.floats(0.0, 1.0))
def test_more_time_loses_more_and_more_reading_less(
    backlog: Backlog, within: float, longer: float, faster: float
) -> None:
    """A longer forecast never shows fewer losses, and faster reading never more."""
    losses = forecast(backlog, within)
    assert forecast(backlog, within + longer).lost >= losses.lost
    quick = msgspec.structs.replace(backlog, growth=backlog.growth - faster)
    assert forecast(quick, within).lost <= losses.lost


def test_a_group_that_is_slower_than_its_producers() -> None:
    """A group that reads 8 of 10 messages a second loses every fifth once its backlog is as old as the TTL."""
    backlog = Backlog(count=1001, oldest=100, newest=0, ttl=150, growth=0.2, coming=True)
    assert forecast(backlog, 1250) == Forecast(250.0, 1 + 1000 * 10 // 5)
    assert forecast(msgspec.structs.replace(backlog, coming=False), 1250) == Forecast()
    assert forecast(backlog, 249) == Forecast()


@pytest.mark.parametrize(
    "fields",
    [
        {"count": -1, "oldest": 1, "newest": 1, "ttl": 1},
        {"count": 1, "oldest": 1, "newest": 2, "ttl": 1},
        {"count": 1, "oldest": 1, "newest": 1, "ttl": 0},
        {"count": 1, "oldest": 1, "newest": 1, "ttl": 1, "growth": 2},
    ],
)
def test_impossible_backlogs_are_refused(fields: dict[str, float]) -> None:
    """An impossible backlog is refused."""
    with pytest.raises(ValueError, match=r"backlog|grows"):
        Backlog(**fields)  # type: ignore[arg-type]
