"""Sums and rankings over measures of queues, computed in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from queuey.model.titles import format_as, format_estimate, instant, titled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Order = Literal["messages", "bytes", "rate", "skew"]
ORDERS: tuple[Order, ...] = ("messages", "bytes", "rate", "skew")

MIN_MESSAGES_FOR_SKEW = 10
"""Min messages per partition for which skew means anything."""


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Figures of one queue.

    Attributes:
        partitions: Number of partitions.
        messages: Number of live messages, including delayed ones.
        bytes: Total bytes of their bodies.
        largest: Number of messages in the fullest partition.
        exact: True if all was counted, False if some figures are estimated.
        oldest, newest: When its first and last message were stored or are due, in seconds since 1970.
    """

    queue: str
    partitions: int
    messages: Annotated[int, titled(unit=format_estimate("exact", ","))]
    bytes: Annotated[int, titled(unit=format_estimate("exact", ","))]
    largest: int
    exact: bool
    oldest: float
    newest: float

    @property
    def rate(self) -> float:
        return messages_per_second(self.messages, self.oldest, self.newest)

    @property
    def skew(self) -> float:
        """Ratio of the fullest partition to the mean of all: from 1 (even) to the number of partitions."""
        return self.largest * self.partitions / self.messages


class RecentCounts(msgspec.Struct, frozen=True):
    """Messages that a queue received in the last minute and hour; lower bounds if ``more``."""

    minute: int
    hour: int
    more: bool = False


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Figures over many queues.

    Attributes:
        queues: Number of measured queues.
        empty: Number of queues without messages.
        partitions: Number of partitions with messages.
        messages, bytes, exact, oldest, newest: As in :class:`QueueFigures`, over all queues.
        top: Order -> the first queues in it, the greatest first.
    """

    queues: int = 0
    empty: int = 0
    partitions: Annotated[int, titled("partitions with messages", format_as(","))] = 0
    messages: Annotated[int, titled(unit=format_estimate("exact", ","))] = 0
    bytes: Annotated[int, titled(unit=format_estimate("exact", ","))] = 0
    exact: bool = True
    oldest: Annotated[float | None, titled(unit=instant)] = None
    newest: Annotated[float | None, titled(unit=instant)] = None
    top: dict[Order, tuple[QueueFigures, ...]] = {}


def messages_per_second(messages: int, oldest: float, newest: float) -> float:
    return (messages - 1) / max(1.0, newest - oldest)


def sum_by_queue(measures: DataFrame) -> DataFrame:
    """Returns a row for each queue: the columns of :class:`QueueFigures`, ``filled`` partitions, ``rate`` and ``skew``.

    ``skew`` is null if a queue has one partition or too few messages.

    Args:
        measures: A row for each partition with messages, and one with partition 0 for each empty queue.
    """
    from pyspark.sql import functions as f

    queues = measures.groupBy("queue", "partitions").agg(
        f.count_if(f.col("messages") > 0).alias("filled"),
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.max("messages").alias("largest"),
        f.bool_and("exact").alias("exact"),
        (f.unix_micros(f.min("oldest")) / 1e6).alias("oldest"),
        (f.unix_micros(f.max("newest")) / 1e6).alias("newest"),
    )
    enough = (f.col("partitions") > 1) & (f.col("messages") >= MIN_MESSAGES_FOR_SKEW * f.col("partitions"))
    return queues.withColumns(
        {
            "rate": (f.col("messages") - 1) / f.greatest(f.lit(1.0), f.col("newest") - f.col("oldest")),
            "skew": f.when(enough, f.col("largest") * f.col("partitions") / f.col("messages")),
        }
    )


def sum_queues(queues: DataFrame, top: int) -> Totals:
    """Sums queues, and lists the first ones in each order.

    Args:
        queues: The result of :func:`sum_by_queue`, which is evaluated once for the sums and once for each list.
        top: Length of the lists.
    """
    from pyspark.sql import functions as f

    sums = queues.agg(
        f.count(f.lit(1)).alias("queues"),
        f.count_if(f.col("filled") == 0).alias("empty"),
        *(f.coalesce(f.sum(name), f.lit(0)).alias(as_name) for name, as_name in _SUMS.items()),
        f.coalesce(f.bool_and("exact"), f.lit(True)).alias("exact"),  # noqa: FBT003 - Spark's
        f.min("oldest").alias("oldest"),
        f.max("newest").alias("newest"),
    ).first()
    assert sums is not None  # noqa: S101 - sums without groups are one row
    filled, lists = queues.where("filled > 0"), {}
    for order in ORDERS:
        rows = filled.where(f.col(order).isNotNull()).orderBy(f.desc(order), f.desc("queue")).limit(top).collect()
        if rows:
            lists[order] = tuple(QueueFigures(**{name: row[name] for name in _FIGURES}) for row in rows)
    return Totals(**sums.asDict(), top=lists)


_SUMS = {"filled": "partitions", "messages": "messages", "bytes": "bytes"}
_FIGURES = QueueFigures.__struct_fields__
