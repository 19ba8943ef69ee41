"""Queues, their partitions, and subscriptions of members to queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from qdo.errors import InvalidArgument
from queuey.client.deadletters import matches_patterns


def join_first(things: Iterable[Any], most: int, form: Callable[[Any], str] = str) -> str:
    texts = [form(thing) for thing in sorted(things)]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


class Queue(NamedTuple):
    """A queue.

    Example:
        >>> from qdo import Queue
        >>> queue = Queue("0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70", "queuey", "orders")
        >>> str(queue)
        '0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70/queuey/orders'

    Attributes:
        service: The id of the service's store. It does not depend on the address of the service.
        application: The application that owns the queue.
        name: The name of the queue.
    """

    service: str
    application: str
    name: str

    def __str__(self) -> str:
        return "/".join(quote(part, safe=":") for part in self)

    @classmethod
    def parse(cls, text: str) -> Queue:
        """Parses the result of ``str()``.

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
        number: The partition's number in its queue; the first is 1.
    """

    queue: Queue
    number: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Parses the result of ``str()``.

        Raises:
            InvalidArgument: The text is not service/application/queue/partition.
        """
        queue, _, number = text.rpartition("/")
        if not number.isascii() or not number.isdigit() or not int(number):
            raise InvalidArgument(f"{text!r} is not service/application/queue/partition")
        return cls(Queue.parse(queue), int(number))


QUEUE_NAME = r"^(?!\.{0,2}$|_)[^/\ud800-\udfff]+$"
_WILDCARD = re.compile(r"[*?\[]")


class Subscription(msgspec.Struct, frozen=True):
    """The queues that a member wants to read; made by :func:`subscribe`, which checks the names and patterns.

    Attributes:
        names: Names of queues, which need not exist yet.
        patterns: Case-sensitive shell patterns for names: ``*``, ``?``, ``[a-z]``.
        service: The id of the service's store; see :class:`qdo.partitions.Queue`.
        application: The application that owns the queues.
    """

    names: frozenset[str] = frozenset()
    patterns: tuple[str, ...] = ()
    service: str = ""
    application: str = ""

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns)

    def matches_name(self, name: str) -> bool:
        """Returns whether the subscription has a queue of this name.

        See :func:`queuey.client.deadletters.matches_patterns`.
        """
        return name in self.names or matches_patterns(name, self.patterns)

    def matches(self, queue: Queue) -> bool:
        """Returns whether the subscription has this queue: its service and application match, too."""
        return queue[:2] == (self.service, self.application) and self.matches_name(queue.name)

    def literal_prefixes(self) -> list[str]:
        """Returns the literal prefixes of the patterns, without those that begin with another one."""
        prefixes: list[str] = []
        for prefix in sorted({_WILDCARD.split(pattern, 1)[0] for pattern in self.patterns}):
            if not prefixes or not prefix.startswith(prefixes[-1]):
                prefixes.append(prefix)
        return prefixes

    def with_all(self, others: Iterable[Subscription]) -> Subscription:
        """Returns the union with those of the others that have the same application and service."""
        same = [other for other in others if (other.service, other.application) == (self.service, self.application)]
        names = self.names.union(*(other.names for other in same))
        patterns = dict.fromkeys([*self.patterns, *sorted({pattern for other in same for pattern in other.patterns})])
        return msgspec.structs.replace(self, names=names, patterns=tuple(patterns))


def subscribe(names: Iterable[str], patterns: Iterable[str], service: str = "", application: str = "") -> Subscription:
    if isinstance(names, str) or isinstance(patterns, str):
        raise InvalidArgument("queues and patterns are lists of strings, not a string")
    subscription = Subscription(frozenset(names), tuple(dict.fromkeys(patterns)), service, application)
    for name in subscription.names:
        if re.search(QUEUE_NAME, name) is None:
            rule = 'a name is not empty, has no "/", is not "." or ".." and does not begin with "_"'
            raise InvalidArgument(f"{name!r} is not a valid queue name: {rule}")
    if "" in subscription.patterns:
        raise InvalidArgument("an empty pattern matches no queue")
    return subscription
