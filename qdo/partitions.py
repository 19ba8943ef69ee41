"""Queues and their partitions, which members share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from qdo.errors import InvalidArgument


def some(things: Iterable[Any], most: int) -> str:
    """Returns the first of several, sorted, and the number of the rest."""
    found = [str(each) for each in sorted(things)]
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


class Queue(NamedTuple):
    """A queue.

    Example:
        >>> from qdo import Queue
        >>> queue = Queue("0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70", "queuey", "orders")
        >>> str(queue)
        '0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70/queuey/orders'

    Attributes:
        service: The id of the service's store, which is the same under whatever address the service is reached.
        application: The application that owns the queue.
        name: Its name.
    """

    service: str
    application: str
    name: str

    def __str__(self) -> str:
        return "/".join(quote(part, safe=":") for part in self)

    @classmethod
    def parse(cls, text: str) -> Queue:
        """Inverse of ``str()``.

        Raises:
            InvalidArgument: The text is not service/application/queue.
        """
        parts = text.split("/")
        if len(parts) != len(cls._fields) or not all(parts):
            raise InvalidArgument(f"{text!r} is not service/application/queue")
        return cls(*(unquote(part) for part in parts))


class Partition(NamedTuple):
    """One partition of a queue. Sorts by queue, then number.

    Example:
        >>> from qdo import Partition
        >>> partition = Partition.parse("0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70/queuey/orders/2")
        >>> partition.queue.name, partition.number
        ('orders', 2)

    Attributes:
        queue: The queue.
        number: From 1 on.
    """

    queue: Queue
    number: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Inverse of ``str()``.

        Raises:
            InvalidArgument: The text is not service/application/queue/partition.
        """
        queue, _, number = text.rpartition("/")
        if not number.isascii() or not number.isdigit() or not int(number):
            raise InvalidArgument(f"{text!r} is not service/application/queue/partition")
        return cls(Queue.parse(queue), int(number))
