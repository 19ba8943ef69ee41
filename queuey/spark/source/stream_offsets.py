"""Offsets of a stream, and the plan of a micro-batch between two offsets. Pure.

An offset in a checkpoint is JSON::

    {"v": 1, "queues": {"orders": {"1-3": "5f4c80001c3b11f08000000000000000", "4": "earliest"}}}

A key is a partition, or a range of partitions with the same position. The position is the next one to read. So an
offset contains the number of partitions of each queue, and the content of a micro-batch depends only on its two
offsets: a batch that runs again after a crash has the same input partitions in the same order, which sinks rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import msgspec

from queuey.model import ids
from queuey.model.ids import FIRST, LOW_MIN, Position
from queuey.spark.errors import OptionError
from queuey.spark.slices import QueuePartition, QueueSlice, divide_into_groups
from queuey.spark.start_and_end import EARLIEST, parse_partition_numbers

VERSION = 1
DEFAULT_TASKS = 200


class ScannedTo(NamedTuple):
    """The number of messages found in a range, and the position up to which they were read."""

    found: int
    position: Position


class StreamOffset(msgspec.Struct, frozen=True):
    """The next position to read in each partition; ``FIRST`` for the beginning, and for a missing partition."""

    positions: dict[QueuePartition, Position] = {}

    def position_of(self, queue_partition: QueuePartition) -> Position:
        return self.positions.get(queue_partition, FIRST)

    def with_changes(
        self, changes: Mapping[QueuePartition, Position], gone: Iterable[QueuePartition] = ()
    ) -> StreamOffset:
        dropped = set(gone)
        kept = {
            queue_partition: position
            for queue_partition, position in self.positions.items()
            if queue_partition not in dropped
        }
        return StreamOffset({**kept, **changes})

    def to_json(self) -> dict[str, Any]:
        """Returns the value for the checkpoint. Equal offsets always give equal texts."""
        queues: dict[str, dict[str, str]] = {}
        placed = sorted(self.positions.items())
        # Consecutive partitions of a queue have the same difference to their index.
        runs = groupby(enumerate(placed), lambda one: (one[1][0][0], one[1][0][1] - one[0], one[1][1]))
        for (queue, _, position), run in runs:
            numbers = [number for _, ((_, number), _) in run]
            key = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
            queues.setdefault(queue, {})[key] = EARLIEST if position == FIRST else ids.to_hex(position)
        return {"v": VERSION, "queues": queues}


def parse(value: object) -> StreamOffset:
    """Parses the value in a checkpoint.

    Raises:
        OptionError: A newer version or another source wrote it.
    """
    if not isinstance(value, dict) or not isinstance(value.get("v"), int) or not isinstance(value.get("queues"), dict):
        raise OptionError("The checkpoint has no offsets of queues: use another one, or the query that created it.")
    if value["v"] != VERSION:
        raise OptionError(f"The checkpoint was written by a newer version of Queuey (format {value['v']}).")
    positions: dict[QueuePartition, Position] = {}
    try:
        for queue, runs in value["queues"].items():
            for key, text in runs.items():
                position = FIRST if text == EARLIEST else ids.parse_position(text)
                positions.update({(queue, number): position for number in parse_partition_numbers("offset", key)})
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError("The checkpoint has invalid offsets.") from error
    return StreamOffset(positions)


def find_ranges(start: StreamOffset, end: StreamOffset) -> list[QueueSlice]:
    return [
        QueueSlice(*queue_partition, start.position_of(queue_partition), upper)
        for queue_partition, upper in sorted(end.positions.items())
        if start.position_of(queue_partition) < upper
    ]


def plan_tasks(start: StreamOffset, end: StreamOffset, *, min_tasks: int | None = None) -> list[tuple[QueueSlice, ...]]:
    """Divides the ranges between two offsets into tasks.

    Args:
        start: Inclusive.
        end: Exclusive.
        min_tasks: Approximate min number of tasks. Ranges are cut into pieces of equal time, except ranges from the
            beginning of a partition, whose time is unknown.

    Returns:
        The ranges of each task, in the order of :func:`find_ranges`. At most ``DEFAULT_TASKS`` tasks, or ``min_tasks``
        if that is more.
    """
    pieces = find_ranges(start, end)
    if min_tasks is not None and 0 < len(pieces) < min_tasks:
        share = -(-min_tasks // len(pieces))
        pieces = [piece for whole in pieces for piece in _cut_by_time(whole, share)]
    return divide_into_groups(pieces, max(DEFAULT_TASKS, min_tasks or 0))


ScanExtent = Callable[[QueueSlice, int], ScannedTo]
"""Returns the extent of a range, up to a max number of messages."""


def find_occupied(
    waiting: Sequence[QueueSlice], extent: ScanExtent
) -> tuple[dict[QueuePartition, Position], set[QueuePartition]]:
    ends: dict[QueuePartition, Position] = {}
    empty: set[QueuePartition] = set()
    for queue_slice in waiting:
        if _has_messages(queue_slice, extent):
            ends[queue_slice.queue_partition] = queue_slice.upper
        else:
            empty.add(queue_slice.queue_partition)
    return ends, empty


def _has_messages(part: QueueSlice, extent: ScanExtent) -> bool:
    reached = extent(part, 1)
    while not reached.found and part.lower < reached.position < part.upper:
        part = msgspec.structs.replace(part, lower=reached.position)
        reached = extent(part, 1)
    return reached.found > 0


def share_messages(
    waiting: Sequence[QueueSlice], limit: int, extent: ScanExtent
) -> tuple[dict[QueuePartition, Position], set[QueuePartition]]:
    """Distributes a number of messages to ranges, as equally as their content allows.

    The range with the oldest messages goes first. If there are more partitions than messages, the others have their
    turn in later batches.

    Args:
        waiting: The ranges that may be read.
        limit: Max messages to read from all ranges.
        extent: Returns the extent of a range, up to a max number of messages.

    Returns:
        The new ends of ranges from which to read, and the partitions of empty ranges.
    """
    ends: dict[QueuePartition, Position] = {}
    empty: set[QueuePartition] = set()
    remaining = limit
    waiting = sorted(waiting, key=lambda queue_slice: (queue_slice.lower, queue_slice.queue_partition))
    while waiting and remaining:
        quota = max(1, remaining // len(waiting))
        behind: list[QueueSlice] = []
        for queue_slice in waiting:
            if not remaining:
                break
            reached = extent(queue_slice, min(quota, remaining))
            remaining -= reached.found
            if reached.found or queue_slice.queue_partition in ends:
                ends[queue_slice.queue_partition] = reached.position
            if queue_slice.lower < reached.position < queue_slice.upper:
                behind.append(msgspec.structs.replace(queue_slice, lower=reached.position))
            elif queue_slice.queue_partition not in ends:
                empty.add(queue_slice.queue_partition)
        waiting = behind
    return ends, empty


def _cut_by_time(part: QueueSlice, count: int) -> list[QueueSlice]:
    if part.lower == FIRST:
        return [part]
    width = part.upper[0] - part.lower[0]
    inner = [(part.lower[0] + width * number // count, LOW_MIN) for number in range(1, count)]
    bounds = sorted({part.lower, part.upper, *(bound for bound in inner if part.lower < bound < part.upper)})
    return [QueueSlice(*part.queue_partition, low, high) for low, high in pairwise(bounds)]
