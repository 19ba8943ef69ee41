"""Writes to queues, in batches and as streams, with Spark."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey import ids
from queuey.messages import Meta
from queuey.spark import register
from queuey.spark.sink import write_reports
from queuey.spark.sink.arrow_rows import MAX_CHUNK_ROWS
from queuey.spark.sink.exactly_once import WriteCounts
from queuey.spark.sink.ledger_entry import decode
from queuey.spark.sink.write_task import TaskIdentity
from queuey.storage import bridge
from tests.backends import APP
from tests.spark.kept import Kept
from tests.spark.mortal import Deaths, make_mortal_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 25_000


def numbers(spark: SparkSession, count: int, tasks: int) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("concat('m', id) AS value")


def write(frame: DataFrame, kept: Kept, form: str = "queuey", **options: str) -> None:
    options = {"queue": "orders", "lead": "2", **options}
    frame.write.format(form).mode("append").options(**kept.options, **options).save()


def bodies(kept: Kept, name: str = "orders") -> list[str]:
    """Returns the texts of a queue, once all of its ids are due."""
    queue = bridge.run(kept.store.catalogue.queue(APP, name, fresh=True))
    newest = [info.newest for info in bridge.run(kept.store.messages.inspect(queue))[1] if info.newest is not None]
    if newest:
        kept.settle(queue, max(newest))
    return [str(message.body) for message in kept.all(queue)]


def check_stored_once(found: list[str], count: int) -> None:
    assert len(found) == count
    assert Counter(found) == Counter(f"m{number}" for number in range(count))


@pytest.fixture(autouse=True)
def registered(spark: SparkSession) -> None:
    """Registers the format ``queuey``."""
    register(spark)


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
    assert len(bodies(embedded)) == 100
    messages = embedded.all(queue)
    assert {str(message.body if isinstance(message.body, str) else message.body.decode()) for message in messages} == {
        f"m{number}" for number in range(100)
    }
    for message in messages:
        body = message.body.decode() if isinstance(message.body, bytes) else message.body
        number = int(body[1:])
        assert message.partition == number % 3 + 1
        assert message.meta == Meta("text/plain", (("n", str(number)),))
        assert message.expires - message.ticks == 60 * ids.TICKS_PER_SECOND
    read = spark.read.format("queuey").options(**embedded.options, subscribe="orders").load()
    assert read.count() == 100


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
    deaths = Deaths(tmp_path / "deaths", chunk=1)
    deaths.directory.mkdir()
    spark.dataSource.register(make_mortal_source("mortal", deaths))
    count = 5 * 12_000
    write(numbers(spark, count, 5), kept, "mortal", run="first")
    assert len(deaths.list_deaths()) == 5
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
    deaths = Deaths(tmp_path / "deaths", point="half")
    deaths.directory.mkdir()
    spark.dataSource.register(make_mortal_source("mortal", deaths))
    rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).parquet(str(source_directory))
    query = (
        rows.writeStream.format("mortal")
        .options(**embedded.options, queue="orders", lead="2", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(90)
    finally:
        query.stop()
    assert [name.split("-")[0] for name in deaths.list_deaths()] == ["0", "1", "2"]
    check_stored_once(bodies(embedded), 6000)


@pytest.mark.parametrize(
    ("select", "options", "mode", "text"),
    [
        (["1 AS value"], {}, "append", "The column value is of type int"),
        (["'a' AS value"], {"queue": "nowhere"}, "append", "nowhere"),
        (["'a' AS value"], {}, "overwrite", "Queues can only be appended to"),
        (["'a' AS value"], {"colour": "red"}, "append", "Unknown option colour"),
    ],
)
def test_mistakes_are_told_at_planning(
    spark: SparkSession, embedded: Kept, select: list[str], options: dict[str, str], mode: str, text: str
) -> None:
    """Wrong columns, unknown queues and other modes end a write before any task runs, with one message."""
    embedded.queue("orders")
    frame = spark.range(1).selectExpr(*select)
    tracker = spark.sparkContext.statusTracker()
    jobs = set(tracker.getJobIdsForGroup())
    writer = frame.write.format("queuey").mode(mode).options(**{**embedded.options, "queue": "orders", **options})
    with pytest.raises(Exception, match=text):
        writer.save()
    assert set(tracker.getJobIdsForGroup()) == jobs
    assert bodies(embedded) == []
