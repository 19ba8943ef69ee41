"""Batch reads. The driver plans slices, and each task scans its slices.

Planning fixes the result: every slice ends below the horizon of that time, so another attempt of a task reads the same
messages, except expired ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from queuey.model.errors import QueueChanged, QueueNotFound
from queuey.model.ids import FIRST, LAST, LOW_MIN, Position
from queuey.model.messages import PartitionBounds, Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import Assign, Pattern, SourceOptions
from queuey.spark.slices import QueueSlice, divide_into_groups
from queuey.spark.source import columns
from queuey.spark.source.latest_offsets import MAX_TRIES
from queuey.spark.source.read_task import scan_rows
from queuey.spark.start_and_end import EARLIEST, At, Bound
from queuey.storage import Store, bridge
from queuey.storage.range_scans import divide

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_TASKS = 200
MAX_PLANNED = 100
"""Max queues that are divided by their number of messages; with more queues, each partition is one slice."""
ROWS_PER_TASK = 50_000
MAX_COUNTED = 10_000
"""Max messages of a range that are counted; a larger range is planned by the size of the whole queue."""


class QueueyReader(DataSourceReader):
    """A batch read.

    It does not implement ``pushFilters``: up to version 4.3, Spark caches the plan of one scan of a DataFrame with its
    filters, and reuses it for scans with other filters, so that rows are lost. Use options to narrow a read.

    Args:
        options: Options of the read.
        schema: The requested columns.

    Raises:
        OptionError: A column does not exist.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns.check_schema(schema, headers=options.headers)
        self._options = options
        self._arrow = columns.arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        parts = plan_slices(self._options)
        return [InputPartition(group) for group in divide_into_groups(parts, _max_tasks(self._options, parts), weight)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions, Spark makes one up.
        return scan_rows(self._options, partition.value or (), self._arrow)


def plan_slices(options: SourceOptions, *, max_divided: int = MAX_PLANNED) -> list[QueueSlice]:
    """Returns the slices of a read, by queue, partition and position.

    Queues that change while others are planned are looked up again.

    Args:
        options: Options of the read.
        max_divided: Max queues that are divided by their number of messages.

    Raises:
        OptionError: A named partition does not exist.
        QueueNotFound: A named queue does not exist.
    """
    queues = open_stores.find_selected_queues(options.store, options.selection)
    ranges_of = _make_range_finder(options, queues)
    store = open_stores.opened(options.store)
    divide = len(queues) <= max_divided

    def parts(queue: Queue) -> list[QueueSlice]:
        ranges = ranges_of(queue)
        slices = (
            _divide_queue(store, queue, options, ranges, len(queues)) if divide else _slice_whole(store, queue, ranges)
        )
        return [
            QueueSlice(queue.name, part.partition, part.lower, part.upper, queue.uid, queue.qid, weight)
            for part, weight in slices
        ]

    return [part for queue in queues for part in _plan_steadily(store, options, queue, parts)]


def _plan_steadily(
    store: Store, options: SourceOptions, queue: Queue, parts: Callable[[Queue], list[QueueSlice]]
) -> Sequence[QueueSlice]:
    for _ in range(MAX_TRIES):
        try:
            return parts(queue)
        except QueueChanged:
            try:
                queue = open_stores.find_queue(store, options.store, queue.name)
            except QueueNotFound:
                if isinstance(options.selection, Pattern):
                    return ()
                raise
    raise QueueChanged(f"queue {queue.name!r} changed {MAX_TRIES} times while it was read")


def weight(part: QueueSlice) -> float:
    return part.weight


def _max_tasks(options: SourceOptions, parts: list[QueueSlice]) -> int:
    needed = math.ceil(sum(part.weight for part in parts) / options.max_records) if options.max_records else 0
    return max(DEFAULT_TASKS, options.min_partitions or 0, needed)


Ranges = dict[int, tuple[Position, Position]]
"""Partition -> positions in ``[lower, upper)``."""


def _make_range_finder(options: SourceOptions, queues: list[Queue]) -> Callable[[Queue], Ranges]:
    """Returns a function that finds the positions to read in each partition of a queue, by the options.

    Raises OptionError now if the options name a partition that does not exist, or a queue that is not read.
    """
    counts = {queue.name: queue.partitions for queue in queues}
    assigned: Mapping[str, Iterable[int]] = {}
    if isinstance(options.selection, Assign):
        assigned = dict(options.selection.partitions)
        for name, numbers in assigned.items():
            if max(numbers) > counts[name]:
                raise OptionError(
                    f"Option assign names partition {max(numbers)} of queue {name!r}, which has {counts[name]}."
                )
    options.starting.check(counts)
    options.ending.check(counts)

    def find_ranges(queue: Queue) -> Ranges:
        return {
            number: (
                _bound_position(options.starting.find_bound(queue.name, number)),
                _bound_position(options.ending.find_bound(queue.name, number)),
            )
            for number in assigned.get(queue.name, range(1, queue.partitions + 1))
        }

    return find_ranges


def _bound_position(bound: Bound) -> Position:
    if isinstance(bound, At):
        return bound.position
    return FIRST if bound == EARLIEST else LAST


def _divide_queue(
    store: Store, queue: Queue, options: SourceOptions, ranges: Ranges, queues: int
) -> Iterator[tuple[Slice, float]]:
    """Yields slices with estimated numbers of messages: narrow ranges as they are, others cut by time."""
    if not ranges:
        return
    few = None if options.min_partitions or options.max_records else _count_narrow(store, queue, ranges)
    if few is not None:
        yield from few
        return
    horizon, partitions = bridge.run(store.messages.inspect(queue, rough=True))
    infos = [
        _estimate_within(info, ranges[info.partition]) for info in partitions if info.partition in ranges and info.count
    ]
    counts = {info.partition: info.count for info in infos}
    total = sum(counts.values())
    rows = min(max(ROWS_PER_TASK, total / DEFAULT_TASKS), options.max_records or math.inf)
    # Rounded up to a multiple of the number of partitions with messages, so that minPartitions is reached.
    filled = len(infos) or 1
    min_pieces = max(math.ceil(total / rows), math.ceil((options.min_partitions or 1) / queues))
    pieces = math.ceil(min_pieces / filled) * filled
    lower, upper = min(low for low, _ in ranges.values()), max(high for _, high in ranges.values())
    slices = divide(infos, lower, min(upper, (horizon, LOW_MIN)), pieces=pieces)
    clipped = [inside for whole in slices if (inside := _clip(whole, ranges)) is not None]
    for number, group in groupby(clipped, key=lambda part: part.partition):
        parts = list(group)
        yield from ((part, max(1.0, counts[number] / len(parts))) for part in parts)


def _estimate_within(info: PartitionBounds, bounds: tuple[Position, Position]) -> PartitionBounds:
    """Reduces a count to the share of the partition's time that is within the bounds, but at least 1."""
    if info.oldest is None or info.newest is None:
        return info
    first, end = info.oldest[0], info.newest[0] + 1
    share = (min(end, bounds[1][0] + 1) - max(first, bounds[0][0])) / (end - first)
    return msgspec.structs.replace(info, count=max(1, round(info.count * share)))


def _count_narrow(store: Store, queue: Queue, ranges: Ranges) -> list[tuple[Slice, float]] | None:
    """Returns nonempty ranges as slices with their numbers of messages.

    Returns None if a range is a whole partition, or holds ``MAX_COUNTED`` messages or more.
    The cost depends only on the messages in the ranges, not on the size of the queue.
    """
    if any(bounds == (FIRST, LAST) for bounds in ranges.values()):
        return None
    counted = []
    for narrow, _ in _slice_whole(store, queue, ranges):
        count, _ = bridge.run(store.bulk.extent(queue, msgspec.structs.replace(narrow, limit=MAX_COUNTED)))
        if count == MAX_COUNTED:
            return None
        if count:
            counted.append((narrow, float(count)))
    return counted


def _slice_whole(store: Store, queue: Queue, ranges: Ranges) -> Iterator[tuple[Slice, float]]:
    horizon = bridge.run(store.bulk.horizon(queue))
    for number, (lower, upper) in ranges.items():
        end = min(upper, (horizon, LOW_MIN))
        if lower < end:
            yield Slice(number, lower, end), 1.0


def _clip(part: Slice, ranges: Ranges) -> Slice | None:
    if part.partition not in ranges:
        return None
    lower, upper = ranges[part.partition]
    low, high = max(part.lower, lower), min(part.upper, upper)
    return msgspec.structs.replace(part, lower=low, upper=high) if low < high else None
