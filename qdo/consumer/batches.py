"""What is handed out, and how an answer is divided among the partitions that it is about."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from qdo.partitions import Partition
from queuey.client import Message

_number = attrgetter("partition")


class Batch(NamedTuple):
    """Messages of one partition, in order.

    Example:
        >>> from qdo import Consumer
        >>> from queuey.client import AsyncClient
        >>> with Consumer(AsyncClient()) as consumer:
        ...     (first,) = consumer.assign({"orders": [1]})
        ...     consumer.seek(first, "earliest")
        ...     (batch,) = consumer.poll()
        >>> batch.partition.number, [message.body for message in batch.messages]
        (1, ['one apple', 'two eggs'])

    Attributes:
        partition: The partition.
        messages: At least one; each comes after the last one handed out before.
    """

    partition: Partition
    messages: list[Message]


def divide(messages: Sequence[Message]) -> Iterator[tuple[int, list[Message]]]:
    """Divides what a read gave, partition after partition in ascending order, at the bounds between them.

    Costs by the number of partitions that have any, not by the number of messages.
    """
    start = 0
    while start < len(messages):
        number = messages[start].partition
        end = bisect_right(messages, number, start, key=_number)
        yield number, list(messages[start:end])
        start = end


def weigh(messages: Sequence[Message]) -> int:
    """Returns about how many bytes the bodies take. They are packed, as that is the fastest way to sum them up."""
    bodies = [message.body for message in messages]
    try:
        return len(msgspec.msgpack.encode(bodies))
    except OverflowError:  # a JSON number beyond 64 bits
        return len(repr(bodies))
