"""Batch reads of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from queuey import ids
from queuey.messages import Message
from queuey.spark.source import columns
from queuey.storage import bridge
from tests.spark.kept import Kept

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def reading(spark: SparkSession, kept: Kept, **options: str) -> DataFrame:
    return spark.read.format("queuey").options(**kept.options, **options).load()


def seen(row: Row) -> tuple[object, ...]:
    headers = tuple((header.key, bytes(header.value).decode()) for header in row.headers or ())
    return row.queue, row.partition, row.id, bytes(row.value), row.valueType, row.contentType, headers, row.position


def make_expected_row(queue: str, message: Message) -> tuple[object, ...]:
    meta, text = message.meta, isinstance(message.body, str)
    body = message.body.encode() if isinstance(message.body, str) else message.body
    kind = "json" if meta is not None and meta.json else "text" if text else "bytes"
    content_type, headers = (None, ()) if meta is None else (meta.content_type, meta.headers)
    place = columns.position_text(message.position)
    return queue, message.partition, message.id, body, kind, content_type, headers, place


def microseconds(spark: SparkSession, frame: DataFrame) -> dict[str, tuple[int, int]]:
    """Returns id -> id time and end in microseconds since 1970, as Spark has them."""
    rows = frame.selectExpr("id", "unix_micros(timestamp) AS since", "unix_micros(expires) AS until").collect()
    return {row.id: (row.since, row.until) for row in rows}


@pytest.mark.parametrize("where", ["embedded", "clustered"])
def test_every_message_is_a_row(where: str, spark: SparkSession, request: pytest.FixtureRequest) -> None:
    """A read gives every message of the queues once, with all its columns."""
    kept: Kept = request.getfixturevalue(where)
    orders, events = kept.queue("orders", partitions=3), kept.queue("events")
    stored = [("orders", one) for one in kept.fill(orders, 400)] + [("events", one) for one in kept.fill(events, 50)]
    kept.fill(kept.queue("other"), 5)
    frame = reading(spark, kept, subscribe="orders, events", includeHeaders="true")
    assert sorted(map(seen, frame.collect())) == sorted(make_expected_row(queue, message) for queue, message in stored)
    assert microseconds(spark, frame) == {
        one.id: ((one.ticks - ids.EPOCH_TICKS) // 10, (one.expires - ids.EPOCH_TICKS) // 10) for _, one in stored
    }


@pytest.mark.parametrize("switch", ["true", "false"])
def test_filters_on_one_frame(switch: str, spark: SparkSession, embedded: Kept) -> None:
    """Several filters on one frame each give their rows, whichever of them Spark pushes down."""
    embedded.fill(embedded.queue(partitions=3), 30)
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, switch)
    try:
        frame = reading(spark, embedded, subscribe="orders")
        assert frame.where("partition = 2").count() == 10
        assert frame.count() == 30
        assert frame.where("partition = 1").union(frame.where("partition > 1")).count() == 30
    finally:
        spark.conf.set(PUSHDOWN, str(before))


def test_a_purged_queue_is_loss(spark: SparkSession, embedded: Kept) -> None:
    """A purge after a read was planned fails it, or leaves the queue out if loss is accepted."""
    queue = embedded.queue()
    embedded.fill(queue, 10)
    frames = [reading(spark, embedded, subscribe="orders", failOnDataLoss=text) for text in ("true", "false")]
    assert [frame.count() for frame in frames] == [10, 10]
    bridge.run(embedded.store.catalogue.purge_queue(queue))
    with pytest.raises(Exception, match="Queue 'orders' was purged or deleted while it was being read"):
        frames[0].count()
    assert frames[1].count() == 0
