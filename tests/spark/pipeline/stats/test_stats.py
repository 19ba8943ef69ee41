"""Measures of queues, and the lag of groups."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest

from queuey import ids
from queuey.ids import FIRST, TICKS_PER_SECOND
from queuey.messages import NewMessage, OffsetChange
from queuey.pipeline.options import LagOptions, StatsOptions
from queuey.pipeline.stats import lag, stats_job
from queuey.pipeline.stats.lag import GroupObservation
from queuey.pipeline.stats.totals import Totals
from queuey.pipeline.stats.ttl_forecast import Forecast
from queuey.spark.errors import OptionError
from queuey.spark.options import Pattern, Subscribe
from queuey.storage import bridge
from tests.spark.kept import Kept
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEPTHS = {"deep": 60, "uneven": 41, "shallow": 3, "narrow": 20}
BODY = "x" * 500


def fill_queues(kept: Kept) -> Kept:
    """Creates two queues of two partitions with messages, one of one partition, and one without messages."""
    for name, depth in DEPTHS.items():
        queue = kept.queue(name, partitions=1 if name == "narrow" else 2)
        spread = name in {"deep", "shallow"}
        kept.post(queue, [NewMessage(BODY, 2 if spread and n % 2 else 1, 600) for n in range(depth)])
    kept.queue("empty", partitions=2)
    return kept


def check_totals(found: Totals) -> None:
    assert (found.queues, found.empty, found.partitions) == (5, 1, 6)
    assert (found.messages, found.bytes) == (sum(DEPTHS.values()), sum(DEPTHS.values()) * len(BODY))
    assert [one.queue for one in found.top["messages"]] == ["deep", "uneven"]
    assert [one.queue for one in found.top["skew"]] == ["uneven", "deep"]
    assert [one.skew for one in found.top["skew"]] == [2.0, 1.0]


def test_measuring_with_spark(spark: SparkSession, embedded: Kept) -> None:
    """Tasks measure ranges of queues, and the results are merged."""
    fill_queues(embedded)
    said: list[str] = []
    report = stats_job.run(spark, StatsOptions(store=embedded.store_options, top=2, size=2), said.append)
    check_totals(report.tally)
    assert {name: (one.minute, one.hour, one.more) for name, one in report.recent.items()} == {
        "deep": (60, 60, False),
        "uneven": (41, 41, False),
    }
    assert said[:2] == ["listing queues", "measuring, in 3 tasks"]


def test_measures_can_be_queried(spark: SparkSession, embedded: Kept) -> None:
    """The DataFrame has a row for each partition with messages of any kind."""
    fill_queues(embedded)
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


def test_offsets_of_a_file_stand_for_a_group(embedded: Kept) -> None:
    """A group that the store does not know takes its offsets from a file; deleted queues are left out."""
    stored = behind(embedded)
    offsets = {"deep": {1: embedded.all(embedded.queue("deep"))[9].position}, "gone": {1: (0, 0)}}
    options = LagOptions(store=embedded.store_options, offsets=offsets, groups=("workers",))
    rows = [
        msgspec.msgpack.decode(one, type=lag.GroupObservation)
        for payload in lag._make_payloads(options)
        for one in lag._observe(options.store, options.groups, payload)
    ]
    assert [(row.queue, row.partition, row.group, row.count) for row in rows] == [
        ("deep", 1, "workers", 40),
        ("deep", 2, "workers", 0),
    ]
    assert ids.to_hex(rows[0].position) == stored[9]
    with pytest.raises(OptionError, match="do not change"):
        LagOptions(store=embedded.store_options, offsets=offsets, sample=1)


def test_the_report_is_a_document(embedded: Kept) -> None:
    """A report survives JSON, and lists first the rows that lose first."""
    rows = [
        lag.GroupLag(
            queue=f"q{number}",
            partition=1,
            group="g",
            offset=None,
            messages=number,
            exact=True,
            seconds=1.0,
            growth=None,
            forecast=Forecast(first, 1 if first else 0),
        )
        for number, first in enumerate([None, 5.0, 2.0, None])
    ]
    report = lag.make_report(rows, LagOptions(store=embedded.store_options, top=3), 7.0)
    assert [row.queue for row in report.rows] == ["q2", "q1", "q3"]
    assert (report.partitions, report.behind, report.messages, report.first, report.lost) == (4, 3, 6, 2.0, 2)
    assert json.loads(msgspec.json.encode(report))["rows"][0]["forecast"] == {"first": 2.0, "lost": 1}
