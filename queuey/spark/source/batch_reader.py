"""Batch reads: planned once, then each task scans its slices.

What a read gives is fixed when it is planned: every slice ends below the horizon of that moment, so a task that is
tried again reads the same messages, apart from those that have expired.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from queuey import ids
from queuey.errors import QueueChanged, QueueNotFound
from queuey.ids import FIRST, LAST, LOW_MIN, Position
from queuey.messages import Queue, Slice
from queuey.spark import open_stores
from queuey.spark.errors import DataLoss, OptionError
from queuey.spark.options import EARLIEST, Assign, At, Bound, Pattern, SourceOptions
from queuey.spark.source import columns
from queuey.spark.source.latest_offsets import TRIES
from queuey.spark.source.stream_read_task import await_horizon
from queuey.storage import Store
from queuey.storage.scanning import divided

if TYPE_CHECKING:
    import pyarrow as pa

MOST_TASKS = 200
"""Tasks of a read, unless more are asked for: further slices share them."""
MOST_PLANNED = 100
"""Queues that are divided by what they hold; of more queues, each partition is one slice."""
ROWS_PER_TASK = 50_000
BATCH_ROWS = 10_000
BATCH_BYTES = 8 << 20

_log = logging.getLogger(__name__)


class QueueSlice(msgspec.Struct, frozen=True):
    """A slice of a queue as it was when the read was planned."""

    queue: str
    uid: int
    qid: int
    slice: Slice
    weight: float = 1.0


class ReadPartition(InputPartition):
    """What one task reads."""

    def __init__(self, parts: tuple[QueueSlice, ...]) -> None:
        super().__init__(None)
        self.parts = parts


class QueueyReader(DataSourceReader):
    """A batch read.

    It does not take filters from Spark (``pushFilters``): up to 4.3 Spark keeps what one scan of a DataFrame planned
    with its filters, and uses it for others with other filters, so that rows go missing. The options narrow a read.

    Args:
        options: What to read.
        schema: The columns wanted.

    Raises:
        OptionError: There are no such columns.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns.check_schema(schema, headers=options.headers)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plans the tasks. Raises what opening the store and looking up the queues raises, and OptionError."""
        parts = planned(self._options)
        return [ReadPartition(some) for some in shared_out(parts, _most_tasks(self._options, parts))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Scans the slices of one task."""
        # Spark makes up a partition where there are none.
        parts = partition.parts if isinstance(partition, ReadPartition) else ()
        return read_parts(self._options, parts, self._schema)


def planned(options: SourceOptions, *, most: int = MOST_PLANNED) -> list[QueueSlice]:
    """Returns the slices of a read, by queue, partition and position.

    Of very many queues some change while the rest are read: these are looked up again.

    Args:
        options: What to read.
        most: Up to so many queues are divided by what they hold.

    Raises:
        OptionError: Queues or partitions are named that are not there.
        QueueNotFound: Likewise.
    """
    queues = open_stores.selected(options.store, options.selection)
    wanted = _wanted(options, queues)
    store = open_stores.opened(options.store)
    divide = len(queues) <= most

    def parts(queue: Queue) -> list[QueueSlice]:
        ranges = wanted(queue)
        slices = _divided(store, queue, options, ranges, len(queues)) if divide else _whole(store, queue, ranges)
        return [QueueSlice(queue.name, queue.uid, queue.qid, part, weight) for part, weight in slices]

    return [part for queue in queues for part in _steadily(store, options, queue, parts)]


def _steadily(
    store: Store, options: SourceOptions, queue: Queue, parts: Callable[[Queue], list[QueueSlice]]
) -> Sequence[QueueSlice]:
    """Plans a queue with its row as it is now; one of a pattern that is gone has nothing.

    Raises:
        QueueNotFound: A queue that is named is gone.
    """
    for _ in range(TRIES):
        try:
            return parts(queue)
        except QueueChanged:
            try:
                queue = open_stores.queue(store, options.store, queue.name)
            except QueueNotFound:
                if isinstance(options.selection, Pattern):
                    return ()
                raise
    raise QueueChanged(f"queue {queue.name!r} changes all the time")


def shared_out(parts: list[QueueSlice], tasks: int) -> list[tuple[QueueSlice, ...]]:
    """Shares slices out to at most about so many tasks, neighbours together, of about equal weight."""
    if len(parts) <= tasks:
        return [(part,) for part in parts]
    share = sum(part.weight for part in parts) / tasks
    found: list[list[QueueSlice]] = [[]]
    weight = 0.0
    for part in parts:
        if found[-1] and weight + part.weight / 2 > share * len(found):
            found.append([])
        found[-1].append(part)
        weight += part.weight
    return [tuple(some) for some in found]


def read_parts(
    options: SourceOptions, parts: Sequence[QueueSlice], schema: StructType, *, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Scans slices, in batches of at most so many rows.

    Raises:
        DataLoss: A queue was purged or deleted since the read was planned, and that is not to be overlooked.
    """
    if not parts:
        return
    arrow = columns.arrow_schema(schema)
    bodies = columns.needs_bodies(arrow)
    store = open_stores.opened(options.store)
    owner = open_stores.application(store, options.store)
    for _, some in groupby(parts, key=lambda part: part.queue):
        slices = list(some)
        try:
            for part in slices:
                for batch in _scanned(store, owner, part, rows=rows, bodies=bodies):
                    yield columns.rows_of(batch, part.queue, part.slice.partition, arrow)
        except (QueueChanged, QueueNotFound) as error:
            text = f"Queue {slices[0].queue!r} was purged or deleted while it was being read"
            if options.fail_on_data_loss:
                raise DataLoss(f"{text}; with option failOnDataLoss=false what is left of it is left out.") from error
            _log.warning("%s: the rest of it is left out.", text)


def _scanned(store: Store, owner: str, part: QueueSlice, *, rows: int, bodies: bool) -> Iterator[pa.RecordBatch]:
    """Scans a slice, through changes of the queue that leave its messages what they are.

    Raises:
        QueueChanged: It was purged, or another queue has taken the name.
        QueueNotFound: It was deleted.
        StoreUnavailable: The store does not answer, or this machine's clock is far behind the driver's.
    """
    left = msgspec.structs.replace(part.slice, limit=rows, max_bytes=BATCH_BYTES)
    while True:
        queue = store.queue(owner, part.queue, fresh=True)
        if (queue.uid, queue.qid) != (part.uid, part.qid):
            raise QueueChanged(f"queue {part.queue!r} is not the one that was planned for")
        try:
            await_horizon(store, queue, left.upper)
            for batch in store.scan_arrow(queue, left, bodies=bodies):
                yield batch
                last = batch.column("ticks")[-1].as_py(), batch.column("low")[-1].as_py()
                left = msgspec.structs.replace(left, lower=ids.following(last))
        except QueueChanged:
            continue
        return


def _most_tasks(options: SourceOptions, parts: list[QueueSlice]) -> int:
    asked = math.ceil(sum(part.weight for part in parts) / options.max_records) if options.max_records else 0
    return max(MOST_TASKS, options.min_partitions or 0, asked)


Ranges = dict[int, tuple[Position, Position]]
"""Partition -> positions in ``[lower, upper)``."""


def _wanted(options: SourceOptions, queues: list[Queue]) -> Callable[[Queue], Ranges]:
    """Returns what says which range of each partition the options ask for."""
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

    def wanted(queue: Queue) -> Ranges:
        return {
            number: (
                _place(options.starting.of(queue.name, number)),
                _place(options.ending.of(queue.name, number)),
            )
            for number in assigned.get(queue.name, range(1, queue.partitions + 1))
        }

    return wanted


def _place(bound: Bound) -> Position:
    if isinstance(bound, At):
        return bound.position
    return FIRST if bound == EARLIEST else LAST


def _divided(
    store: Store, queue: Queue, options: SourceOptions, ranges: Ranges, queues: int
) -> Iterator[tuple[Slice, float]]:
    """Divides what a queue holds in these ranges into slices, and says how many messages are about in each."""
    if not ranges:
        return
    horizon, infos = store.inspect(queue)
    counts = {info.partition: info.count for info in infos if info.partition in ranges}
    total = sum(counts.values())
    rows = min(max(ROWS_PER_TASK, total / MOST_TASKS), options.max_records or math.inf)
    # Rounded up to equal shares of the partitions that hold anything, so that minPartitions is reached.
    filled = sum(1 for count in counts.values() if count) or 1
    wanted = max(math.ceil(total / rows), math.ceil((options.min_partitions or 1) / queues))
    pieces = math.ceil(wanted / filled) * filled
    lower, upper = min(low for low, _ in ranges.values()), max(high for _, high in ranges.values())
    slices = divided(infos, lower, min(upper, (horizon, LOW_MIN)), pieces=pieces)
    clipped = [part for one in slices if (part := _clipped(one, ranges)) is not None]
    for number, some in groupby(clipped, key=lambda part: part.partition):
        parts = list(some)
        yield from ((part, max(1.0, counts.get(number, 1) / len(parts))) for part in parts)


def _whole(store: Store, queue: Queue, ranges: Ranges) -> Iterator[tuple[Slice, float]]:
    """Returns the ranges as they are, below the horizon."""
    horizon = store.horizon(queue)
    for number, (lower, upper) in ranges.items():
        end = min(upper, (horizon, LOW_MIN))
        if lower < end:
            yield Slice(number, lower, end), 1.0


def _clipped(part: Slice, ranges: Ranges) -> Slice | None:
    if part.partition not in ranges:
        return None
    lower, upper = ranges[part.partition]
    low, high = max(part.lower, lower), min(part.upper, upper)
    return msgspec.structs.replace(part, lower=low, upper=high) if low < high else None
