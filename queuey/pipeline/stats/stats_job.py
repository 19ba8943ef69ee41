"""Measures queues: depth, bytes, rate and skew, over any number of queues.

The store measures each partition where its messages are (:meth:`queuey.storage.Bulk.measure`). A task goes through a
range of queues and returns a row for each partition. Messages do not become Spark rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queuey.model import ids
from queuey.model.errors import QueueChanged, QueueNotFound
from queuey.model.ids import LOW_MIN, TICKS_PER_SECOND
from queuey.model.messages import Measure, Queue, Slice
from queuey.pipeline import name_ranges, tasks
from queuey.pipeline.name_ranges import NameRange
from queuey.pipeline.options import StatsOptions
from queuey.pipeline.stats.totals import RecentCounts, Totals, messages_per_second, sum_by_queue, sum_queues
from queuey.pipeline.tasks import Batches
from queuey.spark import open_stores
from queuey.spark.options import StoreOptions
from queuey.spark.source.columns import arrow_schema
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_RECENT_MESSAGES = 100_000
"""Max messages of a partition's last hour that are counted."""
_MICROSECOND = TICKS_PER_SECOND // 1_000_000
_SCHEMA = StructType(
    [
        StructField("queue", StringType(), nullable=False),
        StructField("partitions", IntegerType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("bytes", LongType(), nullable=False),
        StructField("exact", BooleanType(), nullable=False),
        StructField("oldest", TimestampType()),
        StructField("newest", TimestampType()),
        StructField("rate", DoubleType()),
    ]
)
_ROWS = arrow_schema(_SCHEMA)


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of all queues.

    Attributes:
        tally: Sums and lists.
        recent: Name of a deep queue -> recent messages, as far as they are readable.
        at: When the job began, in seconds since 1970.
    """

    tally: Totals
    recent: dict[str, RecentCounts] = {}
    at: float


def run(spark: SparkSession, options: StatsOptions, report_progress: Callable[[str], None] = lambda _: None) -> Stats:
    """Measures queues; with the option ``recent`` also counts recent messages of the deepest ones.

    Raises:
        OptionError: The options are not valid.
        QueueNotFound: A named queue does not exist.
        StoreUnavailable: The store does not answer.
    """
    store = open_stores.opened(options.store)
    began_at = ids.ticks_to_seconds(bridge.run(store.ledger.now()))
    if options.selection is not None:
        name_ranges.check_selection(options.store, options.selection)
    report_progress("listing queues")
    queues = sum_by_queue(_measure_queues(spark, options, report_progress)).persist()
    tally = sum_queues(queues, options.top)
    queues.unpersist()
    recent: dict[str, RecentCounts] = {}
    if options.recent and tally.messages:
        report_progress("counting recent messages")
        recent = _count_recent(store, options.store, tally)
    return Stats(tally=tally, recent=recent, at=began_at)


def frame(spark: SparkSession, options: StatsOptions) -> DataFrame:
    """Returns measures as a DataFrame, with a row for every partition that has messages.

    Columns: ``queue``, ``partitions`` (of the queue), ``partition``, ``messages``, ``bytes``, ``exact``, ``oldest``,
    ``newest`` and ``rate`` (messages a second between these two). Queues are listed now, and measured whenever the
    DataFrame is evaluated.

    Raises:
        OptionError, QueueNotFound, StoreUnavailable: As in :func:`run`.
    """
    if options.selection is not None:
        name_ranges.check_selection(options.store, options.selection)
    return _measure_queues(spark, options).where("messages > 0")


def _measure_queues(
    spark: SparkSession, options: StatsOptions, report_progress: Callable[[str], None] = lambda _: None
) -> DataFrame:
    parts = name_ranges.divide_names(options.store, options.selection, options.size)
    report_progress(f"measuring, in {len(parts):,} tasks")
    return tasks.run_for_rows(
        spark, "measures", _SCHEMA, options.store, [msgspec.msgpack.encode(part) for part in parts]
    )


def measure_rows(options: StoreOptions, payload: bytes) -> Batches:
    pending: list[tuple[object, ...]] = []
    for queue, measures in _measure_range(options, payload):
        pending += [_make_row(queue, measure) for measure in measures if measure.count] or [_make_empty_row(queue)]
        if len(pending) >= name_ranges.PAGE_SIZE:
            yield _to_batch(pending)
            pending = []
    if pending:
        yield _to_batch(pending)


def _make_row(queue: Queue, measure: Measure) -> tuple[object, ...]:
    ends = measure.oldest[0], measure.newest[0]
    oldest, newest = ((ticks - ids.EPOCH_TICKS) // _MICROSECOND for ticks in ends)
    speed = messages_per_second(measure.count, *map(ids.ticks_to_seconds, ends))
    return (
        queue.name,
        queue.partitions,
        measure.partition,
        measure.count,
        measure.size,
        measure.exact,
        oldest,
        newest,
        speed,
    )


def _make_empty_row(queue: Queue) -> tuple[object, ...]:
    return queue.name, queue.partitions, 0, 0, 0, True, None, None, None


def _to_batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ROWS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROWS)


def _measure_range(options: StoreOptions, payload: bytes) -> Iterator[tuple[Queue, list[Measure]]]:
    store = open_stores.opened(options)
    for queues in name_ranges.list_queues(options, msgspec.msgpack.decode(payload, type=NameRange)):
        yield from zip(queues, bridge.iterate(store.bulk.measure(queues)), strict=True)


def _count_recent(store: Store, options: StoreOptions, tally: Totals) -> dict[str, RecentCounts]:
    counts: dict[str, RecentCounts] = {}
    now = bridge.run(store.ledger.now())
    for figures in tally.top.get("messages", ()):
        try:
            queue = open_stores.find_queue(store, options, figures.queue)
            minutes = [_count_since(store, queue, number, now, 60) for number in range(1, queue.partitions + 1)]
            hours = [_count_since(store, queue, number, now, 3600) for number in range(1, queue.partitions + 1)]
        except (QueueChanged, QueueNotFound):
            continue
        more = max(hours) >= MAX_RECENT_MESSAGES
        counts[figures.queue] = RecentCounts(sum(minutes), sum(hours), more)
    return counts


def _count_since(store: Store, queue: Queue, partition: int, now: int, seconds: int) -> int:
    lower = now - seconds * TICKS_PER_SECOND, LOW_MIN
    return bridge.run(store.bulk.extent(queue, Slice(partition, lower, limit=MAX_RECENT_MESSAGES)))[0]
