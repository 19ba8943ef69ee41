"""Slices of queues for Spark tasks to scan, and the distribution of work to tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate, groupby
from typing import TypeVar

import msgspec

from queuey.model.ids import Position

T = TypeVar("T")
QueuePartition = tuple[str, int]


class QueueSlice(msgspec.Struct, frozen=True, gc=False):
    """Positions of one partition in ``[lower, upper)``.

    Attributes:
        uid, qid: Ids of the queue; a new queue with its name, or a purged one, is not read. None allows any queue with
            the name.
        weight: Approximate number of messages in it.
    """

    queue: str
    partition: int
    lower: Position
    upper: Position
    uid: int | None = None
    qid: int | None = None
    weight: float = 1.0

    @property
    def queue_partition(self) -> QueuePartition:
        return self.queue, self.partition


def divide_into_groups(
    items: Iterable[T], tasks: int, weight: Callable[[T], float] = lambda _: 1
) -> list[tuple[T, ...]]:
    """Divides items into consecutive groups of about equal weight.

    Args:
        items: The items in order.
        tasks: Max groups, at least one.
        weight: Returns the weight of an item, above 0.
    """
    items = list(items)
    if len(items) <= tasks:
        return [(item,) for item in items]
    ends = list(accumulate(map(weight, items)))
    # Rounding may make the last number too large by one.
    numbers = (min(math.ceil(end * tasks / ends[-1]), tasks) for end in ends)
    numbered = zip(numbers, items, strict=True)
    return [tuple(item for _, item in group) for _, group in groupby(numbered, key=lambda pair: pair[0])]
