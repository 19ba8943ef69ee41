"""Where a stream stands, and what follows from two such places. Pure.

In a checkpoint it is JSON::

    {"v": 1, "queues": {"orders": {"1-3": "5f4c80001c3b11f08000000000000000", "4": "earliest"}}}

A key is a partition, or several in a row that stand at the same place; the place is the next position to be read. So
how many partitions each queue has is part of it, and what a micro-batch reads follows from its two ends alone: a batch
that runs again after a crash has the very same input partitions in the same order, which sinks count on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import msgspec

from queuey import ids
from queuey.ids import FIRST, LOW_MIN, Position
from queuey.spark.errors import OptionError
from queuey.spark.slices import QueuePartition, QueueSlice, shared_out
from queuey.spark.start_and_end import EARLIEST, partition_numbers

VERSION = 1
DEFAULT_TASKS = 200
"""Default number of input partitions of a micro-batch."""


class ScannedTo(NamedTuple):
    """How far some messages of a range reach: how many were found, and up to where was read."""

    found: int
    position: Position


class StreamOffset(msgspec.Struct, frozen=True):
    """Where a stream stands in each partition: the next position to be read, ``FIRST`` for the beginning."""

    positions: dict[QueuePartition, Position] = {}

    def of(self, queue_partition: QueuePartition) -> Position:
        """Returns the position of a partition; one that is new is read from its beginning."""
        return self.positions.get(queue_partition, FIRST)

    def moved(self, changes: Mapping[QueuePartition, Position], gone: Iterable[QueuePartition] = ()) -> StreamOffset:
        """Returns the offset with some partitions further on and others left out."""
        dropped = set(gone)
        kept = {
            queue_partition: position
            for queue_partition, position in self.positions.items()
            if queue_partition not in dropped
        }
        return StreamOffset({**kept, **changes})

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps; the same offset always gives the same text."""
        queues: dict[str, dict[str, str]] = {}
        placed = sorted(self.positions.items())
        # Within a queue, partitions in a row are as far from their index as each other.
        runs = groupby(enumerate(placed), lambda one: (one[1][0][0], one[1][0][1] - one[0], one[1][1]))
        for (queue, _, position), run in runs:
            numbers = [number for _, ((_, number), _) in run]
            key = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
            queues.setdefault(queue, {})[key] = EARLIEST if position == FIRST else ids.to_hex(position)
        return {"v": VERSION, "queues": queues}


def parse(value: object) -> StreamOffset:
    """Reads what a checkpoint kept.

    Raises:
        OptionError: A newer version wrote it, or it is no offset of this source.
    """
    if not isinstance(value, dict) or not isinstance(value.get("v"), int) or not isinstance(value.get("queues"), dict):
        raise OptionError("The checkpoint holds no offsets of queues: was it made by a query over another source?")
    if value["v"] != VERSION:
        raise OptionError(f"The checkpoint was written by a newer version of Queuey (format {value['v']}).")
    positions: dict[QueuePartition, Position] = {}
    try:
        for queue, runs in value["queues"].items():
            for key, text in runs.items():
                position = FIRST if text == EARLIEST else ids.parse_position(text)
                positions.update({(queue, number): position for number in partition_numbers("offset", key)})
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError("The checkpoint holds offsets that cannot be read.") from error
    return StreamOffset(positions)


def ranges(start: StreamOffset, end: StreamOffset) -> list[QueueSlice]:
    """Returns what lies between two offsets, by queue and partition. Nothing where the end is not above the start."""
    return [
        QueueSlice(*queue_partition, start.of(queue_partition), upper)
        for queue_partition, upper in sorted(end.positions.items())
        if start.of(queue_partition) < upper
    ]


def plan(start: StreamOffset, end: StreamOffset, *, least: int | None = None) -> list[tuple[QueueSlice, ...]]:
    """Divides what lies between two offsets into tasks.

    Args:
        start: Inclusive.
        end: Exclusive.
        least: About so many tasks at least: ranges are cut into pieces of equal time (not those that begin at the
            beginning of a partition: nothing here says when that was).

    Returns:
        The ranges of each task, in the order of :func:`ranges` throughout. Max ``DEFAULT_TASKS``, unless ``least`` is
        more.
    """
    pieces = ranges(start, end)
    if least is not None and 0 < len(pieces) < least:
        share = -(-least // len(pieces))
        pieces = [piece for one in pieces for piece in _cut(one, share)]
    return shared_out(pieces, max(DEFAULT_TASKS, least or 0))


ScanExtent = Callable[[QueueSlice, int], ScannedTo]
"""Returns how far at most so many messages of a range reach."""


def occupied(
    waiting: Sequence[QueueSlice], extent: ScanExtent
) -> tuple[dict[QueuePartition, Position], set[QueuePartition]]:
    """Returns where to stop in each range so that all of it is read, and the ranges that hold nothing."""
    ends: dict[QueuePartition, Position] = {}
    empty: set[QueuePartition] = set()
    for one in waiting:
        if _holds_any(one, extent):
            ends[one.queue_partition] = one.upper
        else:
            empty.add(one.queue_partition)
    return ends, empty


def _holds_any(one: QueueSlice, extent: ScanExtent) -> bool:
    there = extent(one, 1)
    while not there.found and one.lower < there.position < one.upper:
        one = msgspec.structs.replace(one, lower=there.position)
        there = extent(one, 1)
    return there.found > 0


def share(
    waiting: Sequence[QueueSlice], limit: int, extent: ScanExtent
) -> tuple[dict[QueuePartition, Position], set[QueuePartition]]:
    """Shares a number of messages among ranges, as equally as what they hold allows.

    The range with the oldest messages goes first: if there are more partitions than messages to be shared, each has its
    turn in a later batch.

    Args:
        waiting: What may be read.
        limit: How many messages may be read of all together.
        extent: Returns how far at most so many messages of a range reach.

    Returns:
        Where to stop in each range of which something is to be read; and the ranges that hold nothing at all.
    """
    ends: dict[QueuePartition, Position] = {}
    empty: set[QueuePartition] = set()
    left = limit
    waiting = sorted(waiting, key=lambda one: (one.lower, one.queue_partition))
    while waiting and left:
        each = max(1, left // len(waiting))
        behind: list[QueueSlice] = []
        for one in waiting:
            if not left:
                break
            there = extent(one, min(each, left))
            left -= there.found
            if there.found or one.queue_partition in ends:
                ends[one.queue_partition] = there.position
            if one.lower < there.position < one.upper:
                behind.append(msgspec.structs.replace(one, lower=there.position))
            elif one.queue_partition not in ends:
                empty.add(one.queue_partition)
        waiting = behind
    return ends, empty


def _cut(one: QueueSlice, count: int) -> list[QueueSlice]:
    """Cuts a range into pieces of equal time."""
    if one.lower == FIRST:
        return [one]
    width = one.upper[0] - one.lower[0]
    inner = [(one.lower[0] + width * number // count, LOW_MIN) for number in range(1, count)]
    bounds = sorted({one.lower, one.upper, *(bound for bound in inner if one.lower < bound < one.upper)})
    return [QueueSlice(*one.queue_partition, low, high) for low, high in pairwise(bounds)]
