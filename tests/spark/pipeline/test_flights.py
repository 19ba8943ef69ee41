"""A real bulk feed: flight records into a partitioned queue, into an archive, and compared exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey import ids
from queuey.pipeline.archive.archive_job import archive
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.verify import CheckOptions, check
from queuey.spark.options import Subscribe
from tests.backends import APP
from tests.spark.kept import Kept, quiet
from tests.spark.pipeline.archive.archives import options, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE = Path(__file__).parents[1] / "data/flights-20k.parquet"
VARIABLE = "QUEUEY_FLIGHTS"
ALL = os.environ.get(VARIABLE)
"""Looked up when tests are collected: the fixtures take such variables away."""


def flights(spark: SparkSession, path: Path) -> DataFrame:
    """Returns one JSON text for each flight, and where it starts, by which it gets its partition."""
    return spark.read.parquet(str(path)).selectExpr("to_json(struct(*)) AS value", "origin AS key")


def there_and_back(
    spark: SparkSession, kept: Kept, path: Path, to: Path, *, partitions: int, seconds: int, lead: int
) -> int:
    """Writes flights to a queue, archives it and compares; returns how many there were."""
    rows = flights(spark, path)
    writer = rows.selectExpr("*", "'json' AS valueType").write.format("queuey").mode("append")
    more = {"application": APP, "queue": "flights", "create": "true", "partitions": str(partitions), "lead": str(lead)}
    writer.options(**kept.options, **more, run="flights").save()
    queue = kept.store.queue(APP, "flights", fresh=True)
    newest = max(one.newest[0] for one in next(iter(kept.store.measure([queue]))))
    end = ArchiveBucket(int(ids.ticks_to_seconds(newest)) // seconds * seconds, seconds).upper[0]

    def over() -> bool:
        kept.store.ping()
        return kept.store.horizon(queue) >= end

    until(over, 3 * (seconds + lead))
    report = archive(spark, options(kept, to, selection=Subscribe(("flights",)), seconds=seconds), quiet)
    assert report.ok
    held = spark.read.parquet(str(to / "messages")).selectExpr("CAST(value AS STRING) AS value")
    wanted = rows.select("value")
    # Some flights are recorded more than once, so how often each is there counts as well.
    assert held.exceptAll(wanted).count() == wanted.exceptAll(held).count() == 0
    checked = check(spark, CheckOptions(store=kept.named, selection=Subscribe(("flights",)), archive=str(to)), quiet)
    assert checked.ok
    assert checked.messages == report.messages
    return report.messages


@pytest.mark.slow  # Archives are compared with their queues in archive/test_archive.py, of fewer messages.
def test_twenty_thousand_flights(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """A slice of the flights goes through an embedded store and comes back row for row."""
    count = there_and_back(spark, embedded, SLICE, tmp_path / "archive", partitions=4, seconds=1, lead=3)
    assert count == 20_000


@pytest.mark.slow
@pytest.mark.skipif(ALL is None, reason=f"{VARIABLE} does not say where the 3 million flights are (a Parquet file)")
def test_three_million_flights(spark: SparkSession, clustered: Kept, tmp_path: Path) -> None:
    """All flights go through Cassandra and come back row for row."""
    assert ALL is not None
    count = there_and_back(spark, clustered, Path(ALL), tmp_path / "archive", partitions=8, seconds=60, lead=30)
    assert count == 3_000_000
