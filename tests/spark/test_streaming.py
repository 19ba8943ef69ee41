"""Streaming reads as Spark runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey.model.messages import Message, NewMessage, Queue, QueueSpec
from queuey.storage import bridge
from tests.pages import runnable_blocks
from tests.spark.faults.faulty import QUERY, READ_POINTS, Faults, FaultySource
from tests.spark.kept import TTL, Kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def stream(spark: SparkSession, kept: Kept, source: str = "queuey", **options: str) -> DataFrame:
    return spark.readStream.format(source).options(**kept.options, **options).load()


def post(kept: Kept, queue: Queue, count: int) -> list[Message]:
    items = [NewMessage(f"{queue.name} {n}", n % queue.partitions + 1, TTL) for n in range(count)]
    return kept.post(queue, items)


def into_parquet(frame: DataFrame, queue_partition: Path) -> StreamingQuery:
    writing = frame.writeStream.format("parquet").option("checkpointLocation", str(queue_partition / "checkpoint"))
    return writing.trigger(availableNow=True).start(str(queue_partition / "rows"))


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    """The name of a table in memory."""
    yield "streamed"
    spark.catalog.dropTempView("streamed")


def test_a_stream_gives_every_message_once(spark: SparkSession, embedded: Kept, table: str, tmp_path: Path) -> None:
    """A stream gives stored and new messages, also of new partitions and queues; without news no batch runs."""
    first = embedded.queue("log-1")
    sent = post(embedded, first, 50)
    frame = stream(spark, embedded, subscribePattern="log-.*", startingOffsets="earliest", group="spark")
    writing = frame.select("id", "queue", "partition").writeStream.format("memory").queryName(table)
    checkpoint = tmp_path / "checkpoint"
    query = writing.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        first = bridge.run(embedded.store.catalogue.update_queue(first, QueueSpec(partitions=3)))
        sent += post(embedded, first, 30) + post(embedded, embedded.queue("log-2", partitions=2), 20)
        query.processAllAvailable()
        assert sorted(row.id for row in spark.table(table).collect()) == sorted(one.id for one in sent)
        batches = sorted(path.name for path in (checkpoint / "commits").iterdir())
        for _ in range(3):
            query.processAllAvailable()
        assert sorted(path.name for path in (checkpoint / "commits").iterdir()) == batches
        offsets = bridge.run(embedded.store.offsets.group_offsets(first, "spark"))
        places = [(one.partition, one.position) for one in offsets]
        assert [lag.count for lag in bridge.run(embedded.store.messages.lag(first, places))] == [0, 0, 0]
    finally:
        query.stop()


def test_every_row_is_written_once_whatever_fails(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """Runs that fail at each point between the logs, and one with every task killed once, write each id once."""
    spark.dataSource.register(FaultySource)
    queue = embedded.queue(partitions=3)
    directory = tmp_path / "faults"
    directory.mkdir()
    limits = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}

    def start(faults: Faults) -> StreamingQuery:
        frame = stream(spark, embedded, "faulty", subscribe="orders", **limits, **faults.option)
        return into_parquet(frame, tmp_path)

    sent = post(embedded, queue, 200)
    for point in READ_POINTS:
        query = start(Faults(str(directory), point, QUERY))
        # A failed task is retried.
        with nullcontext() if point == "read" else pytest.raises(Exception, match=f"Deliberate: {point}"):
            query.awaitTermination()
        assert (directory / point).exists()
        sent += post(embedded, queue, 100)
    start(Faults(str(directory), "read")).awaitTermination()
    assert len(list(directory.glob("*-*-read"))) >= 3
    written = Counter(row.id for row in spark.read.parquet(str(tmp_path / "rows")).select("id").collect())
    assert written == Counter(one.id for one in sent)


def test_the_example_of_the_page_runs(spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """The example of following a queue writes every message."""
    sent = embedded.fill(embedded.queue(partitions=2), 20)
    [block] = runnable_blocks("docs/spark.md", below="Streaming")
    example = block.text.replace("orders.checkpoint", str(tmp_path / "checkpoint"))
    example = example.replace("orders.parquet", str(tmp_path / "rows")).replace(".load()", ".options(**place).load()")
    exec(compile(example, str(PAGE), "exec"), {"spark": spark, "place": embedded.options})
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.id for row in rows) == sorted(one.id for one in sent)
