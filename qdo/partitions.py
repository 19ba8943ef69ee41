"""Queues and their partitions, which members share; and which queues a member wants."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from qdo.errors import InvalidArgument
from queuey.client.deadletters import matches_patterns


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


QUEUE_NAME = r"^(?!\.{0,2}$|_)[^/\ud800-\udfff]+$"
_SPECIAL = re.compile(r"[*?\[]")


class Subscription(msgspec.Struct, frozen=True):
    """The names and patterns of wanted queues; made by :func:`subscribe`.

    Attributes:
        names: Queues; they need not exist yet.
        patterns: Shell patterns, case-sensitive: ``*``, ``?``, ``[a-z]``.
        service: The id of its store; see :class:`qdo.partitions.Queue`.
        application: The application.
    """

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    service: str = ""
    application: str = ""

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns)

    def wants(self, name: str) -> bool:
        """Returns True if a queue of this name is wanted.

        See :func:`queuey.client.deadletters.matches_patterns`.
        """
        return name in self.names or matches_patterns(name, self.patterns)

    def takes(self, queue: Queue) -> bool:
        """Returns True if a queue is wanted and of this application and service."""
        return queue[:2] == (self.service, self.application) and self.wants(queue.name)

    def literal_prefixes(self) -> list[str]:
        """Returns the literal prefixes of the patterns; none of them begins with another."""
        kept: list[str] = []
        for text in sorted({_SPECIAL.split(pattern, 1)[0] for pattern in self.patterns}):
            if not kept or not text.startswith(kept[-1]):
                kept.append(text)
        return kept

    def with_all(self, others: Iterable[Subscription]) -> Subscription:
        """Returns a union with others of the same application and service."""
        same = [one for one in others if (one.service, one.application) == (self.service, self.application)]
        names = self.names.union(*(one.names for one in same))
        patterns = dict.fromkeys([*self.patterns, *sorted({each for one in same for each in one.patterns})])
        return msgspec.structs.replace(self, names=names, patterns=tuple(patterns))


def subscribe(names: Iterable[str], patterns: Iterable[str], service: str = "", application: str = "") -> Subscription:
    """Raises InvalidArgument if no queue can have such a name."""
    if isinstance(names, str) or isinstance(patterns, str):
        raise InvalidArgument("queues and patterns are lists of texts")
    wanted = Subscription(frozenset(names), tuple(dict.fromkeys(patterns)), service, application)
    for name in wanted.names:
        if re.search(QUEUE_NAME, name) is None:
            rule = 'a name is not empty, has no "/", is not "." or ".." and does not begin with "_"'
            raise InvalidArgument(f"no queue can be named {name!r}: {rule}")
    if "" in wanted.patterns:
        raise InvalidArgument("an empty pattern matches no queue")
    return wanted
