"""Scans of whole ranges, built on the read and inspect calls of any store."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import msgspec

from queuey.model import ids
from queuey.model.ids import LOW_MIN, Position
from queuey.model.messages import Message, PartitionBounds, Queue, Slice
from queuey.storage import Messages


async def scan(messages: Messages, queue: Queue, part: Slice) -> AsyncIterator[list[Message]]:
    more = True
    while more:
        [page] = await messages.read(queue, [part])
        if page.messages:
            yield page.messages
        more = page.more and page.next is not None
        if page.next is not None:
            bounds = {"upper": ids.following(page.next)} if part.descending else {"lower": page.next}
            part = msgspec.structs.replace(part, **bounds)


def divide(partitions: Sequence[PartitionBounds], lower: Position, upper: Position, *, pieces: int) -> list[Slice]:
    """Divides a range into slices that can be scanned in parallel.

    Each partition that is not empty gets at least one slice. Slices have about the same number of messages if these are
    spread evenly over time.

    Args:
        partitions: Result of :meth:`~queuey.storage.Messages.inspect`.
        lower: The lowest position (inclusive).
        upper: The upper bound (exclusive).
        pieces: Approximate number of slices.

    Returns:
        The slices by partition and position. They do not overlap.
    """
    total = sum(info.count for info in partitions) or 1
    slices: list[Slice] = []
    for info in partitions:
        if info.count:
            slices += _divide(info, lower, upper, max(1, round(pieces * info.count / total)))
    return slices


def _divide(info: PartitionBounds, lower: Position, upper: Position, pieces: int) -> list[Slice]:
    low = lower if info.oldest is None else max(lower, info.oldest)
    high = upper if info.newest is None else min(upper, ids.following(info.newest))
    if low >= high:
        return []
    step = max(1, math.ceil((high[0] + 1 - low[0]) / pieces))
    bounds = [low, *((low[0] + step * number, LOW_MIN) for number in range(1, pieces)), high]
    return [
        Slice(info.partition, first, min(last, high)) for first, last in pairwise(bounds) if first < min(last, high)
    ]
