"""Measures of queues, the lag of groups, and the forecast of messages lost to TTL, against a simulation."""

from __future__ import annotations

import json
import math
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import FIRST, TICKS_PER_SECOND
from queuey.model.messages import NewMessage, OffsetChange
from queuey.pipeline.options import LagOptions, StatsOptions
from queuey.pipeline.stats import lag, stats_job
from queuey.pipeline.stats.lag import Forecast, GroupObservation, UnreadBacklog, forecast
from queuey.spark.options import Pattern, Subscribe
from queuey.storage import bridge
from tests.spark.kept import Kept
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DEPTHS = {"deep": 60, "uneven": 41, "shallow": 3, "narrow": 20}
BODY = "x" * 500


def fill_queues(kept: Kept) -> None:
    """Creates two queues of two partitions with messages, one of one partition, and one without messages."""
    for name, depth in DEPTHS.items():
        queue = kept.queue(name, partitions=1 if name == "narrow" else 2)
        spread = name in {"deep", "shallow"}
        kept.post(queue, [NewMessage(BODY, 2 if spread and n % 2 else 1, 600) for n in range(depth)])
    kept.queue("empty", partitions=2)


def test_measuring_with_spark(spark: SparkSession, embedded: Kept) -> None:
    """Tasks measure ranges of queues, and the results are merged; the DataFrame has a row for each partition in use."""
    fill_queues(embedded)
    said: list[str] = []
    report = stats_job.run(spark, StatsOptions(store=embedded.store_options, top=2, size=2), said.append)
    found, depth = report.tally, sum(DEPTHS.values())
    assert (found.queues, found.empty, found.partitions) == (5, 1, 6)
    assert (found.messages, found.bytes) == (depth, depth * len(BODY))
    assert [one.queue for one in found.top["messages"]] == ["deep", "uneven"]
    assert [(one.queue, one.skew) for one in found.top["skew"]] == [("uneven", 2.0), ("deep", 1.0)]
    assert {name: (one.minute, one.hour, one.more) for name, one in report.recent.items()} == {
        "deep": (60, 60, False),
        "uneven": (41, 41, False),
    }
    assert said[:2] == ["listing queues", "measuring, in 3 tasks"]
    stats_job.frame(
        spark, StatsOptions(store=embedded.store_options, selection=Pattern("[du].*"))
    ).createOrReplaceTempView("m")
    rows = spark.sql(
        "SELECT queue, count(*) AS parts, sum(messages) AS messages, sum(bytes) AS bytes, bool_and(exact) AS exact, "
        "bool_and(oldest <= newest AND oldest > now() - INTERVAL 10 MINUTES) AS timely FROM m GROUP BY queue ORDER BY 1"
    ).collect()
    assert [tuple(row) for row in rows] == [
        ("deep", 2, 60, 60 * len(BODY), True, True),
        ("uneven", 1, 41, 41 * len(BODY), True, True),
    ]


def behind(kept: Kept) -> list[str]:
    """Creates a queue of which a group has read 30 of the 50 messages of partition 1; returns their ids."""
    queue = kept.queue("deep", partitions=2, ttl=1000)
    posted = kept.post(queue, [NewMessage(BODY, 1, 1000) for _ in range(50)])
    kept.queue("other")
    bridge.run(kept.store.offsets.set_offsets(queue, "g", [OffsetChange(1, posted[29].position)]))
    return [message.id for message in posted]


def test_lag_of_groups(spark: SparkSession, embedded: Kept) -> None:
    """Each group has a row per partition; its forecast loss is what TTL takes in the given time."""
    stored = behind(embedded)
    report = lag.run(spark, LagOptions(store=embedded.store_options, within=2000))
    assert (report.partitions, report.behind, report.messages, report.lost) == (2, 1, 20, 20)
    [row] = report.rows
    assert (row.queue, row.partition, row.group, row.offset, row.messages) == ("deep", 1, "g", stored[29], 20)
    assert row.forecast.first is not None
    assert 900 < row.forecast.first <= 1000
    soon = lag.run(spark, LagOptions(store=embedded.store_options, selection=Subscribe(("deep", "other")), within=60))
    assert (soon.messages, soon.lost, soon.first) == (20, 0, None)


def test_two_observations_show_who_keeps_up(spark: SparkSession, embedded: Kept) -> None:
    """Between two observations the backlog of an idle group ages by a second per second, others by less."""
    stored = behind(embedded)
    queue = embedded.queue("deep")
    bridge.run(embedded.store.offsets.set_offsets(queue, "idle", [OffsetChange(1, ids.parse_position(stored[0]))]))
    waited: list[float] = []

    def wait(seconds: float) -> None:
        began = ids.now_ticks()
        until(lambda: ids.now_ticks() > began + TICKS_PER_SECOND)
        last, new = embedded.post(queue, [NewMessage(BODY, 1, 1000) for _ in range(2)])
        bridge.run(embedded.store.offsets.set_offsets(queue, "g", [OffsetChange(1, last.position)]))
        waited.append(seconds)
        until(lambda: ids.now_ticks() > new.ticks + TICKS_PER_SECOND)

    report = lag.run(spark, LagOptions(store=embedded.store_options, within=3000, sample=5), wait=wait)
    assert waited == [5]
    rows = {row.group: row for row in report.rows}
    assert {group: row.messages for group, row in rows.items()} == {"idle": 51, "g": 1}
    assert rows["idle"].forecast.lost >= 51
    assert rows["idle"].growth == pytest.approx(1, abs=0.01)
    assert rows["g"].growth is not None
    assert rows["g"].growth < 0.9


def observation(at: float, oldest: float, newest: float) -> GroupObservation:
    read, written, now = (round(seconds * TICKS_PER_SECOND) for seconds in (at - oldest, at - newest, at))
    ages = {"oldest": oldest, "newest": newest, "ttl": 1000.0}
    return GroupObservation("q", 1, "g", FIRST, 101, exact=True, read=read, written=written, at=now, **ages)


@pytest.mark.parametrize(
    ("oldest", "growth", "first"), [(130, 1, 870), (106, 0.2, 4470), (100, 0, None), (90, -1 / 3, None)]
)
def test_how_the_age_of_a_backlog_grows(oldest: float, growth: float, first: float | None) -> None:
    """The growth is the ageing of the oldest unread message in seconds per second between two observations."""
    earlier = observation(1000, 100, 20)
    judged = lag.make_group_lag(observation(1030, oldest, 20), earlier, 10_000)
    assert judged.growth == pytest.approx(growth, abs=0.001)
    assert judged.forecast.first == (None if first is None else pytest.approx(first))
    assert lag.make_group_lag(observation(1030, oldest, 20), None, 10_000).growth is None
    over = lag.make_group_lag(observation(1030, oldest, 50), earlier, 10_000).forecast
    assert over.lost == (101 if growth == 1 else 0), "nothing has come any more, and what is there is read in time"


def test_the_report_is_a_document(embedded: Kept) -> None:
    """A report survives JSON, and lists first the rows that lose first."""
    row = lag.make_group_lag(observation(1000, 1, 0.5), None, 10)
    rows = [
        msgspec.structs.replace(row, queue=f"q{n}", messages=n, forecast=Forecast(first, 1 if first else 0))
        for n, first in enumerate([None, 5.0, 2.0, None])
    ]
    report = lag.make_report(rows, LagOptions(store=embedded.store_options, top=3), 7.0)
    assert [row.queue for row in report.rows] == ["q2", "q1", "q3"]
    assert (report.partitions, report.behind, report.messages, report.first, report.lost) == (4, 3, 6, 2.0, 2)
    assert json.loads(msgspec.json.encode(report))["rows"][0]["forecast"] == {"first": 2.0, "lost": 1}


def simulate_loss(backlog: UnreadBacklog, within: float) -> list[float]:
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
def backlogs(draw: st.DrawFn) -> UnreadBacklog:
    """Draws a partition of a few messages that were not all sent at once, the oldest still alive."""
    ttl = draw(st.floats(5.0, 60.0))
    oldest = draw(st.floats(5.0, ttl))
    newest = draw(st.floats(0.0, 0.9)) * oldest
    growth = draw(st.one_of(st.just(1.0), st.floats(0.05, 1.0), st.floats(-2.0, 0.0)))
    coming, number = draw(st.sampled_from([(False, 0), (False, 1), (False, 50), (True, 2), (True, 50)]))
    return UnreadBacklog(count=number, oldest=oldest, newest=newest, ttl=ttl, growth=growth, coming=coming)


@given(backlogs(), st.floats(0.5, 90.0))
@example(UnreadBacklog(count=200, oldest=20, newest=0, ttl=20, growth=0.01), 100)
def test_as_many_are_lost_as_in_a_simulation(backlog: UnreadBacklog, within: float) -> None:
    """The forecast number of lost messages differs from the simulation by at most three at both ends."""
    lost = simulate_loss(backlog, within)
    losses = forecast(backlog, within)
    assert abs(losses.lost - len(lost)) <= 3
    assert (losses.first is None) == (losses.lost == 0)
    assert losses.first is None or 0 <= losses.first <= within


@given(backlogs(), st.floats(0.5, 60.0), st.floats(0.0, 60.0), st.floats(0.0, 1.0))
def test_more_time_loses_more_and_more_reading_less(
    backlog: UnreadBacklog, within: float, longer: float, faster: float
) -> None:
    """A longer forecast never shows fewer losses, and faster reading never more."""
    losses = forecast(backlog, within)
    assert forecast(backlog, within + longer).lost >= losses.lost
    quick = msgspec.structs.replace(backlog, growth=backlog.growth - faster)
    assert forecast(quick, within).lost <= losses.lost


def test_a_group_that_is_slower_than_its_producers() -> None:
    """A group that reads 8 of 10 messages a second loses every fifth once its backlog is as old as the TTL."""
    backlog = UnreadBacklog(count=1001, oldest=100, newest=0, ttl=150, growth=0.2, coming=True)
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
        UnreadBacklog(**fields)  # type: ignore[arg-type]
