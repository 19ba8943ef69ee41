"""Slices of queues: what tasks of Spark scan, and how work is shared out among them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import accumulate, groupby
from typing import TypeVar

import msgspec

from queuey.ids import Position

T = TypeVar("T")
QueuePartition = tuple[str, int]
"""A partition: the queue's name and the number."""


class QueueSlice(msgspec.Struct, frozen=True, gc=False):
    """Positions of one partition in ``[lower, upper)``.

    Attributes:
        uid, qid: The queue and its messages that are meant; others are not touched. None: whatever has the name.
        weight: How many messages are in it, about.
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
        """The partition."""
        return self.queue, self.partition


def shared_out(items: Iterable[T], tasks: int, weight: Callable[[T], float] = lambda _: 1) -> list[tuple[T, ...]]:
    """Shares items out to at most so many tasks, neighbours together, each of about the same weight.

    Args:
        items: In their order.
        tasks: At least one.
        weight: Of an item, above 0.
    """
    items = list(items)
    if len(items) <= tasks:
        return [(item,) for item in items]
    ends = list(accumulate(map(weight, items)))
    # Rounding may make the last number one too large.
    numbers = (min(math.ceil(end * tasks / ends[-1]), tasks) for end in ends)
    numbered = zip(numbers, items, strict=True)
    return [tuple(item for _, item in some) for _, some in groupby(numbered, key=lambda pair: pair[0])]
