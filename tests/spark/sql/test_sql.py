"""Queues as tables and views of Spark SQL."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import PySparkException

from queuey.model.messages import Message
from queuey.spark.progress import ProgressMetrics
from queuey.spark.sink import write_reports
from tests.backends import APP
from tests.spark.kept import Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAD = "0.2"


@pytest.fixture
def sent(embedded: Kept) -> list[Message]:
    """Twenty messages of queue ``orders``."""
    return embedded.fill(embedded.queue("orders", partitions=2), 20)


@pytest.fixture(autouse=True)
def nothing_left(spark: SparkSession) -> Iterator[None]:
    """Drops the tables and views of a test."""
    yield
    for table in spark.sql("SHOW TABLES").collect():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.tableName}")


def create(spark: SparkSession, kept: Kept, what: str, **options: str) -> None:
    listed = ", ".join(f"{name} '{text}'" for name, text in (kept.options | options).items())
    spark.sql(f"CREATE {what} USING queuey OPTIONS ({listed})")


def written(kept: Kept, name: str = "copies") -> list[str]:
    return sorted(str(one.body) for one in kept.settle_and_read(name))


def test_a_table_is_read(spark: SparkSession, embedded: Kept, sent: list[Message], tmp_path: Path) -> None:
    """A table can be described, read in batches with further options, and followed as a stream."""
    create(spark, embedded, "TABLE of_orders", subscribe="orders", startingOffsets="earliest")
    described = {row.col_name: row for row in spark.sql("DESCRIBE of_orders").collect()}
    assert described["id"].data_type == "string"
    assert described["value"].comment == "the body; text is UTF-8"
    assert "unique in its partition" in described["id"].comment
    frame = spark.read.option("minPartitions", "4").table("of_orders")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.id for row in frame.collect()) == sorted(one.id for one in sent)
    own = f"""assign='{{"orders":[2]}}', data='{embedded.options["data"]}'"""
    rows = spark.sql(f"SELECT id FROM of_orders WITH ({own})").collect()
    assert sorted(row.id for row in rows) == sorted(one.id for one in sent if one.partition == 2)
    writing = spark.readStream.table("of_orders").select("id").writeStream.format("parquet")
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writing.start(str(tmp_path / "rows")).awaitTermination()
    followed = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.id for row in followed) == sorted(one.id for one in sent)


def test_a_table_is_written_to(spark: SparkSession, embedded: Kept) -> None:
    """INSERT and ``writeTo`` write to the queue of the table; missing columns have the defaults of any write.

    So does each appending statement whose rows need no conversion.
    """
    queue = embedded.queue("copies", partitions=3)
    create(spark, embedded, "TABLE copies", queue="copies", lead=LEAD)
    spark.sql("INSERT INTO copies (value, partition) VALUES ('d', 3), ('e', 1)")
    spark.range(2).selectExpr("concat('f', id) AS value", "60 AS ttl").writeTo("copies").append()
    with pytest.raises(PySparkException, match="can only be appended to"):
        spark.sql("INSERT OVERWRITE copies (value) VALUES ('g')").collect()
    headers = "headers array<struct<key: string, value: binary>>"
    columns = f"value string, key string, partition int, ttl int, valueType string, contentType string, {headers}"
    assert [field.split()[0] for field in columns.split(", ")[:7]] == spark.table("copies").columns
    a, b, c = (spark.createDataFrame([(text, *[None] * 6)], columns) for text in "abc")
    a.writeTo("copies").append()
    b.write.insertInto("copies")
    c.createOrReplaceTempView("given")
    spark.sql("INSERT INTO copies SELECT * FROM given")
    assert written(embedded) == ["a", "b", "c", "d", "e", "f0", "f1"]
    places = {str(one.body): one.partition for one in embedded.all(queue)}
    assert (places["d"], places["e"]) == (3, 1)


def test_a_view_is_read(spark: SparkSession, embedded: Kept, sent: list[Message]) -> None:
    """A temporary view may select columns, so that bodies are not read."""
    create(spark, embedded, "TEMPORARY VIEW places (partition INT, id STRING)", subscribe="orders")
    assert spark.table("places").columns == ["partition", "id"]
    rows = spark.sql("SELECT id FROM places WHERE partition = 1").collect()
    assert sorted(row.id for row in rows) == sorted(one.id for one in sent if one.partition == 1)


def test_a_stream_reports_itself(spark: SparkSession, embedded: Kept, sent: list[Message], tmp_path: Path) -> None:
    """Progress has the rows read, written and left, metrics add up, and the store keeps the outcome of rows."""
    embedded.queue("copies")
    registry = CollectorRegistry()
    listener = ProgressMetrics(embedded.options, registry=registry)
    spark.streams.addListener(listener)
    read = spark.readStream.format("queuey").options(**embedded.options, subscribe="orders")
    rows = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "12").load()
    writing = rows.selectExpr("id AS value").writeStream.format("queuey").trigger(availableNow=True)
    writing = writing.options(**embedded.options, queue="copies", lead=LEAD)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    labels = {"query": str(query.id)}
    until = time.monotonic() + 60  # Listeners are called later.
    while registry.get_sample_value("queuey_stream_written_rows_total", labels) != len(sent):
        assert time.monotonic() < until
        time.sleep(0.05)
    spark.streams.removeListener(listener)
    assert registry.get_sample_value("queuey_stream_lag_messages", labels) == 0
    told = [
        (batch.numInputRows, batch.sink.numOutputRows, json.loads(batch.sources[0].latestOffset)["lag"]["messages"])
        for batch in query.recentProgress
        if batch.numInputRows
    ]
    assert told == [(12, 12, 8), (8, 8, 0)]
    noted = write_reports.stream_report(embedded.store, APP, str(query.id))
    assert noted is not None
    assert (noted.last.rows, noted.total.rows, noted.total.written) == (8, 20, 20)
    assert written(embedded) == sorted(one.id for one in sent)
