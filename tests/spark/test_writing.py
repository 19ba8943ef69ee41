"""Writes to queues, in batches and as streams, with Spark."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey.model import ids
from queuey.model.messages import Meta
from queuey.spark import register
from queuey.spark.sink import write_reports
from queuey.spark.sink.arrow_rows import MAX_CHUNK_ROWS
from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.ledger_entry import decode
from queuey.spark.sink.write_task import TaskIdentity
from queuey.storage import bridge
from tests.backends import APP
from tests.spark.faults.faulty import Faults, FaultySource
from tests.spark.kept import Kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 25_000


def numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("concat('m', id) AS value")


def write(frame: DataFrame, kept: Kept, form: str = "queuey", **options: str) -> None:
    options = {"queue": "orders", "lead": "2", **options}
    frame.write.format(form).mode("append").options(**kept.options, **options).save()


def bodies(kept: Kept) -> list[str]:
    """Returns the texts of the queue, once all of its ids are due."""
    return [str(message.body) for message in kept.settle_and_read("orders")]


def check_stored_once(found: list[str], count: int) -> None:
    assert len(found) == count
    assert Counter(found) == Counter(f"m{number}" for number in range(count))


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    """Registers the formats ``queuey`` and ``faulty``."""
    register(spark)
    spark.dataSource.register(FaultySource)


def test_rows_are_written_once_and_can_be_read(spark: SparkSession, embedded: Kept) -> None:
    """Rows become visible to readers, with the values of their columns, as soon as their ids are due."""
    queue = embedded.queue("orders", partitions=3)
    frame = spark.range(0, 100, 1, 2).selectExpr(
        "CAST(concat('m', id) AS binary) AS value",
        "CAST(id % 3 + 1 AS int) AS partition",
        "CAST(60 AS int) AS ttl",
        "'text/plain' AS contentType",
        "array(named_struct('key', 'n', 'value', CAST(string(id) AS binary))) AS headers",
    )
    write(frame, embedded, lead="0.2")
    bodies(embedded)
    found = [(one.body, one.partition, one.meta, one.expires - one.ticks) for one in embedded.all(queue)]
    assert sorted(found, key=str) == sorted(
        (
            (f"m{n}".encode(), n % 3 + 1, Meta("text/plain", (("n", str(n)),)), 60 * ids.TICKS_PER_SECOND)
            for n in range(100)
        ),
        key=str,
    )
    assert spark.read.format("queuey").options(**embedded.options, subscribe="orders").load().count() == 100


@pytest.mark.parametrize("where", ["embedded", "clustered"])
def test_a_run_is_written_once_however_often(where: str, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """A write with ``run`` that is repeated as a whole writes the same messages once, and reports that."""
    kept: Kept = request.getfixturevalue(where)
    kept.queue("orders", partitions=4)
    frame = numbers(spark, ROWS, 2)
    write(frame, kept, run="first")
    assert write_reports.report(kept.store, APP, "first") == WriteCounts(rows=ROWS, written=ROWS)
    write(frame, kept, run="first")
    assert write_reports.report(kept.store, APP, "first") == WriteCounts(rows=ROWS, skipped=ROWS)
    check_stored_once(bodies(kept), ROWS)
    write(numbers(spark, 10, 1), kept)
    write(numbers(spark, 10, 1), kept)
    assert len(bodies(kept)) == ROWS + 20


@pytest.mark.parametrize("where", ["embedded", pytest.param("clustered", marks=pytest.mark.slow)])
def test_tasks_that_are_killed_once_each_leave_every_row_once(
    where: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """If each task's Python worker dies once, at a different point of its second chunk, retries leave exact rows."""
    kept: Kept = request.getfixturevalue(where)
    kept.queue("orders", partitions=2)
    faults = Faults(str(tmp_path / "faults"), chunk=1)
    (tmp_path / "faults").mkdir()
    count = 5 * 12_000
    write(numbers(spark, count, 5), kept, "faulty", run="first", **faults.option)
    assert len(faults.list_done()) == 5
    check_stored_once(bodies(kept), count)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [2, 7])
def test_a_million_numbered_rows_are_in_order(tasks: int, spark: SparkSession, clustered: Kept) -> None:
    """If each partition is in one task, sorted as a replay sorts it, ids follow the numbers, and no row moves."""
    count = 1_000_000
    queue = clustered.queue("orders", partitions=8)
    columns = "CAST(id AS string) AS value", "CAST(id % 8 + 1 AS int) AS partition", "id DIV 8 AS sequence"
    frame = spark.range(0, count, 1, tasks).selectExpr(*columns).repartition(tasks, "partition")
    write(frame.sortWithinPartitions("partition", "sequence"), clustered, run="first", lead="100")
    counts = write_reports.report(clustered.store, APP, "first")
    assert counts is not None
    # Two tasks that share a piece may write some of its rows a second time, at the same ids.
    assert (counts.rows, counts.moved, counts.kept, counts.expired) == (count, 0, 0, 0)
    work = TaskIdentity.make("run", APP, "first").shared_name(f"{queue.uid:x}")
    entries = [
        decode(bridge.run(clustered.store.ledger.entry(work, piece)) or b"")
        for piece in range(count // 8 // MAX_CHUNK_ROWS)
    ]
    assert {len(entry.generations) for entry in entries} == {1}
    assert all(lower.end <= upper.generations[0].base for lower, upper in pairwise(entries))


def test_a_stream_whose_tasks_are_killed_writes_every_row_once(
    spark: SparkSession, embedded: Kept, tmp_path: Path
) -> None:
    """If every task of every micro-batch dies once, each row is still written once."""
    embedded.queue("orders", partitions=2)
    source_directory = tmp_path / "given"
    for number in range(3):
        frame = spark.range(number * 2000, (number + 1) * 2000, 1, 1).selectExpr("concat('m', id) AS value")
        frame.write.mode("append").parquet(str(source_directory))
    faults = Faults(str(tmp_path / "faults"), "half")
    (tmp_path / "faults").mkdir()
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(source_directory))
    options = {**embedded.options, **faults.option, "queue": "orders", "lead": "2"}
    writing = rows.writeStream.format("faulty").options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
    query = writing.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()
    assert [name.split("-")[0] for name in faults.list_done()] == ["0", "1", "2"]
    check_stored_once(bodies(embedded), 6000)
