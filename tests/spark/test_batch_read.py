"""Batch reads of queues, and mistakes found when a read or a write is planned: one clear message, and no task runs."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from queuey.model import ids
from queuey.spark import failures
from tests.spark.kept import Kept
from tests.spark.pipeline.archive.archives import list_contents, read_content

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


UNREACHABLE = {
    "store": "cassandra://127.0.0.1:1/nowhere",
    "deadline": "2",
    "cassandra_timeout": "1",
    "consistency.weak": "deadline=1",
}
READ = {"subscribe": "orders"}


def define(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("queuey").options(**options).load()


def read(spark: SparkSession, **options: str) -> None:
    define(spark, **options).count()


def read_body(spark: SparkSession, **options: str) -> None:
    spark.read.format("queuey").schema("body BINARY").options(**options).load().count()


def write_number(spark: SparkSession, **options: str) -> None:
    spark.sql("SELECT 1 AS value").write.format("queuey").mode("append").options(**options).save()


def write(spark: SparkSession, mode: str = "append", **options: str) -> None:
    spark.sql("SELECT 'a' AS value").write.format("queuey").mode(mode).options(**options).save()


@pytest.mark.parametrize(
    ("work", "options", "says"),
    [
        (define, {"subscrib": "orders"}, "Unknown option subscrib. Did you mean subscribe?"),
        (define, {}, "exactly one of subscribe, subscribePattern and assign"),
        (define, {**READ, "cassandra_password": "hunter2"}, "cassandra_password is not of the form"),
        (read, {**READ, "startingOffsets": '{"orders":{"9":-2}}'}, "names partition 9 of queue 'orders'"),
        (read, {**READ, "application": "nobody"}, "There is no application 'nobody' in the store."),
        (read, {**READ, **UNREACHABLE}, "Cassandra cannot be reached"),
        (read_body, READ, "A read has no column 'body': it has value, queue, partition, id,"),
        (write_number, {"queue": "orders"}, "The column value is of type int"),
        (write, {"queue": "nowhere"}, "has no queue 'nowhere'"),
        (write, {"queue": "orders", "mode": "overwrite"}, "Queues can only be appended to"),
        (write, {"queue": "orders", "colour": "red"}, "Unknown option colour"),
    ],
)
def test_mistakes(work: Any, options: dict[str, str], says: str, spark: SparkSession, embedded: Kept) -> None:  # noqa: ANN401 - any of the above
    """A mistake gives one line at the end of the error, without a secret, before any task has run or row is stored."""
    queue = embedded.queue("orders")
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "a mistake")
    with pytest.raises(PySparkException) as refused:
        work(spark, **({} if "store" in options else embedded.options) | options)
    failure = failures.explain(refused.value)
    assert failure is not None
    assert says in failure.text
    assert "hunter2" not in str(refused.value)
    assert not spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    assert embedded.all(queue) == []


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize("where", ["embedded", "clustered"])
def test_every_message_is_a_row(where: str, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """A read gives every message of the queues once, with all its columns."""
    kept: Kept = request.getfixturevalue(where)
    stored = {name: kept.fill(kept.queue(name, partitions=n), 200) for name, n in (("orders", 3), ("events", 1))}
    kept.fill(kept.queue("other"), 5)
    frame = define(spark, **kept.options, subscribe="orders, events", includeHeaders="true")
    for name, messages in stored.items():
        rows = frame.where(f"queue = '{name}'").collect()
        assert sorted(map(read_content, rows)) == list_contents(messages)
        instants = {one.id: ids.ticks_to_seconds(one.ticks) for one in messages}
        assert {row.id: row.timestamp.timestamp() for row in rows} == pytest.approx(instants, rel=0, abs=1e-5)
    assert frame.count() == 400


@pytest.mark.parametrize("switch", ["true", "false"])
def test_filters_on_one_frame(switch: str, spark: SparkSession, embedded: Kept) -> None:
    """Several filters on one frame each give their rows, whichever of them Spark pushes down."""
    embedded.fill(embedded.queue(partitions=3), 30)
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, switch)
    try:
        frame = define(spark, **embedded.options, subscribe="orders")
        assert frame.where("partition = 2").count() == 10
        assert frame.count() == 30
        assert frame.where("partition = 1").union(frame.where("partition > 1")).count() == 30
    finally:
        spark.conf.set(PUSHDOWN, str(before))
