"""Archive tasks in Spark's Python workers: find buckets that have messages, and scan them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from queuey.model import ids
from queuey.model.errors import QueueChanged
from queuey.model.ids import Position
from queuey.model.messages import Queue, Slice
from queuey.pipeline import tasks
from queuey.pipeline.archive import buckets
from queuey.pipeline.archive.buckets import ArchiveBucket
from queuey.pipeline.archive.work_units import MAX_COUNTED, BucketSearch, WorkUnit
from queuey.pipeline.tasks import Batches
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, Selection, SourceOptions, StoreOptions, Subscribe
from queuey.spark.source import columns
from queuey.spark.source.latest_offsets import MAX_TRIES
from queuey.spark.source.read_task import scan_rows
from queuey.spark.start_and_end import EARLIEST, LATEST, Bounds
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_READ_SCHEMA = columns.arrow_schema(columns.read_schema(headers=True))
_decode_units = msgspec.msgpack.Decoder(list[WorkUnit]).decode
_decode_unit = msgspec.msgpack.Decoder(WorkUnit).decode
_decode_searches = msgspec.msgpack.Decoder(list[BucketSearch]).decode


def schema() -> StructType:
    return columns.read_schema(headers=True).add("bucket", StringType(), nullable=False)


def make_option_texts(store: StoreOptions) -> dict[str, str]:
    more = {"config": store.config, "application": store.application}
    return {**dict(store.settings), **{name: text for name, text in more.items() if text is not None}}


def make_subscribe_options(selection: Selection) -> dict[str, str]:
    """Returns a selection of whole queues as an option of the format ``queuey``.

    Raises:
        OptionError: The selection names partitions.
    """
    if isinstance(selection, Pattern):
        return {"subscribePattern": selection.regex}
    if isinstance(selection, Assign):
        raise OptionError("only whole queues can be selected, but assign names partitions")
    if any("," in name or name != name.strip() for name in selection.names):
        # A comma-separated list cannot hold such names.
        return {"subscribePattern": "|".join(map(re.escape, selection.names))}
    return {"subscribe": ",".join(selection.names)}


def find_units(spark: SparkSession, store: StoreOptions, shares: Sequence[Sequence[BucketSearch]]) -> list[WorkUnit]:
    packed = [msgspec.msgpack.encode(share) for share in shares]
    return [_decode_unit(unit) for unit in tasks.run_for_values(spark, partial(_find_in_task, store), packed)]


def scan_messages(spark: SparkSession, store: StoreOptions, groups: Sequence[Sequence[WorkUnit]]) -> DataFrame:
    """Returns the messages of units, scanned by one task for each group, in the order of the units in it.

    Skips queues that were deleted or purged since the units were made.
    """
    return tasks.run_for_rows(spark, "units", schema(), store, [msgspec.msgpack.encode(group) for group in groups])


def rows(options: StoreOptions, payload: bytes) -> Batches:
    result = columns.arrow_schema(schema())
    for unit in _decode_units(payload):
        name = pa.scalar(unit.key[1], pa.string())
        for batch in scan_rows(_scan_options(options, unit.queue), [unit], _READ_SCHEMA):
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.repeat(name, batch.num_rows)], schema=result)


def _find_in_task(options: StoreOptions, packed: bytes) -> Iterator[bytes]:
    store = open_stores.opened(options)
    # A ping advances the horizon of stores that advance it only on activity; else the last bucket of queues without new
    # messages would never close.
    bridge.run(store.ping())
    for search in _decode_searches(packed):
        yield from map(
            msgspec.msgpack.encode,
            _find_all_units(
                partial(open_stores.find_existing_queue, store, options, search.queue, search.qid), store, search
            ),
        )


def _find_all_units(look_up: Callable[[], Queue | None], store: Store, search: BucketSearch) -> list[WorkUnit]:
    """Finds the buckets of a queue that have messages. If the queue keeps changing, returns nothing.

    A bucket found in only some partitions would be sealed without the others.
    """
    for _ in range(MAX_TRIES):
        with suppress(QueueChanged):
            return list(_find_units(look_up, store, search))
    return []


def _find_units(look_up: Callable[[], Queue | None], store: Store, search: BucketSearch) -> Iterator[WorkUnit]:
    """Finds units in closed buckets that are not archived yet, by two short reads per bucket that has messages.

    Raises:
        QueueChanged: The queue changed meanwhile.
    """
    queue = look_up()
    if queue is None:
        return
    # The horizon is read first: messages below it, in new partitions too, exist when the queue is looked up.
    end = buckets.find_closed_end(bridge.run(store.bulk.horizon(queue)), search.seconds)
    queue = look_up()
    if queue is None:
        return
    done = [ArchiveBucket(start, search.seconds) for start in search.done]
    for partition in range(1, queue.partitions + 1):
        for lower, upper in buckets.find_gaps(end, done):
            yield from _find_in_gap(store, queue, search, partition, lower, upper)


def _find_in_gap(
    store: Store, queue: Queue, search: BucketSearch, partition: int, lower: Position, upper: Position
) -> Iterator[WorkUnit]:
    lower_bound = lower
    while lower_bound < upper:
        count, reached = bridge.run(store.bulk.extent(queue, Slice(partition, lower_bound, upper, limit=1)))
        if not count:
            return
        bucket = buckets.find_bucket(ids.preceding(reached)[0], search.seconds)
        over = min(upper, bucket.upper)
        weight, _ = bridge.run(store.bulk.extent(queue, Slice(partition, lower_bound, over, limit=MAX_COUNTED)))
        if weight:
            yield WorkUnit(
                queue.name,
                partition,
                lower_bound,
                over,
                queue.uid,
                queue.qid,
                bucket=bucket.start,
                seconds=search.seconds,
                weight=weight,
            )
        lower_bound = over


def _scan_options(store: StoreOptions, queue: str) -> SourceOptions:
    return SourceOptions(
        store=store,
        selection=Subscribe((queue,)),
        starting=Bounds("startingOffsets", EARLIEST),
        ending=Bounds("endingOffsets", LATEST),
        fail_on_data_loss=False,
        headers=True,
    )
