"""Results of the client's calls: frozen, typed, with the names of the API's JSON when encoded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from queuey.api.explaining import QueueExplanation
from queuey.api.messages import PostedMessage
from queuey.api.progress import GroupOffset, Move, Offsets
from queuey.api.queues import Hello, PartitionInfo, QueueInfo
from queuey.api.reads import Explanation, ReadMark, Reason
from queuey.api.values import Id
from queuey.client.errors import ApiError
from queuey.client.positions import order_of, time_of
from queuey.messages import ChosenOptions
from queuey.titles import instant, titled

__all__ = [
    "CreatedQueue",
    "Explanation",
    "GroupOffset",
    "Hello",
    "Id",
    "Message",
    "Move",
    "NamePage",
    "Offsets",
    "Page",
    "PartitionInfo",
    "Queue",
    "QueueExplanation",
    "QueueInfo",
    "QueuePage",
    "QueueRead",
    "RawMessage",
    "ReadMark",
    "Reason",
    "Receipt",
    "StreamedMessage",
    "Unread",
]


class Receipt(PostedMessage, frozen=True):
    """The answer to a stored message.

    Example:
        >>> receipt = client.send("orders", "two pears")
        >>> receipt.partition, len(receipt.id)
        (1, 32)

    Attributes:
        id: 32 lower-case hex digits, unique in the partition.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's count.
    """

    @property
    def time(self) -> datetime:
        """The id's time in UTC, cut to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's time in 100 ns steps since 1582-10-15, exactly."""
        return order_of(self.id)[0]


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message of a queue.

    The garbage collector does not track messages, which makes reading them a third faster. If you put an object into a
    body that refers to the message, neither is ever freed.

    Example:
        >>> message = client.read("orders").messages[0]
        >>> message.body, message.partition
        ('one apple', 1)

    Attributes:
        id: 32 lower-case hex digits, unique in the partition.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's count.
        body: ``str`` for text, ``bytes`` for anything else, or the value of a body that was sent as JSON.
        content_type: As given by the producer; None if it gave none.
        headers: As given by the producer, names in lower case.
        key: The key that the producer gave, in an ordered queue or one with ``max_claimed_per_key``; else None.
        early: It lies above the horizon: it is stored, but may vanish yet, and others may come below it.
    """

    id: str = msgspec.field(name="message_id")
    timestamp: str
    partition: int
    body: Any
    content_type: str | None = None
    headers: Mapping[str, str] = {}
    key: str | None = None
    early: bool = False

    @property
    def time(self) -> datetime:
        """The id's time in UTC, cut to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's time in 100 ns steps since 1582-10-15, exactly."""
        return order_of(self.id)[0]


class StreamedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message of a stream.

    Example:
        >>> streamed = next(client.stream("orders", since=0))
        >>> streamed.queue, streamed.message.body
        ('orders', 'one apple')

    Attributes:
        queue: Its queue's name.
        message: The message.
        cursor: Where another stream of the same queues goes on after it.
    """

    queue: str
    message: Message
    cursor: str


class RawMessage(msgspec.Struct, frozen=True):
    """A message with its body as bytes. Fields as in :class:`Message`.

    Example:
        >>> receipt = client.send("orders", b"JPEG", content_type="image/jpeg")
        >>> raw = client.get_raw("orders", receipt)
        >>> raw.body, raw.content_type
        (b'JPEG', 'image/jpeg')
    """

    id: str
    timestamp: str
    partition: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = {}


class Page(msgspec.Struct, frozen=True):
    """The result of one read.

    Example:
        >>> page = client.read("orders", limit=1)
        >>> page.messages[0].body, page.more
        ('one apple', True)
        >>> client.read("orders", since=page.cursor).messages[0].body
        'two eggs'

    Attributes:
        messages: In the order asked for; early ones are the last.
        horizon: An id; nothing at or above it was read, but for early messages.
        next: Per partition, the ``since`` of the next read in the same order; None: a descending read is complete.
        cursor: The position as one text, to be kept; empty when every partition is complete.
        more: Another read now may return messages.
        cursor_safe: False after ``delay=0``: a read that continues from this cursor may miss messages.
    """

    messages: tuple[Message, ...]
    horizon: str
    next: Mapping[int, str | None]
    cursor: str
    more: bool
    cursor_safe: bool = True


class QueueRead(msgspec.Struct, frozen=True):
    """The result of a read of several queues for one of them: a page, or the error.

    Example:
        >>> for part in client.read_queues(["orders", "nothing"]):
        ...     print(part.queue, len(part.page.messages) if part.page else part.error.status)
        orders 2
        nothing 404
    """

    queue: str
    page: Page | None = None
    error: ApiError | None = None


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """Unread messages of a queue, or the error of one that cannot be read.

    Example:
        >>> for part in client.unread(["orders", "nothing"]):
        ...     print(part.queue, part.unread, part.error.status if part.error else None)
        orders 2 None
        nothing None 404

    Attributes:
        read: Per partition the id of the last message that counts as read.
        unread: Messages above; None: not counted, because the call had counted as much as it may. Ask again for these.
        more: There are more than ``unread``.
    """

    queue: str
    read: dict[int, Id] = {}
    unread: int | None = None
    more: bool = False
    error: ApiError | None = None


class Queue(ChosenOptions, frozen=True, kw_only=True):
    """A queue as the server describes it.

    Example:
        >>> queue = client.update_queue("orders", ttl=3600)
        >>> queue.name, queue.partitions, queue.ttl
        ('orders', 1, 3600)

    Attributes:
        partitions, type, consistency, ttl, read_delay, max_deliveries, backoff: As in
            :class:`~queuey.client.QueueFields`.
        dead_letter, on_ack, kind, max_claimed, max_claimed_per_key, claims, description: As in
            :class:`~queuey.client.QueueFields`.
        principals: Callers that may read and delete.
        created: Seconds since 1970; None in the answer to a create.
        application: Only in listings.
        count: Messages, in listings that asked for them.
    """

    name: Annotated[str, titled("queue")] = msgspec.field(name="queue_name")
    principals: tuple[str, ...] = ()
    created: Annotated[float | None, titled(unit=instant)] = None
    application: str | None = None
    count: Annotated[int | None, titled("messages")] = None


class CreatedQueue(Queue, frozen=True, kw_only=True):
    """The answer to a create. ``new`` is False if the queue existed with the same fields.

    Example:
        >>> client.create_queue("orders", partitions=1).new
        False
    """

    new: bool


class QueuePage(msgspec.Struct, frozen=True):
    """One page of the list of queues; ``next`` is the ``start`` of the next one, None at the end.

    Example:
        >>> [queue.name for queue in client.queue_page(limit=10).queues]
        ['orders']

    Attributes:
        patterns: Those of the credential, in which ``*`` stands for any text: the list has only queues that match one
            of them. None: an older service does not say.
    """

    queues: tuple[Queue, ...]
    next: str | None
    patterns: tuple[str, ...] | None = None

    def lists_all(self, prefix: str = "") -> bool:
        """Returns whether the list has every queue whose name begins like this; so assumed of an older service."""
        return self.patterns is None or any(
            pattern.endswith("*") and "*" not in (begin := pattern[:-1]) and prefix.startswith(begin)
            for pattern in self.patterns
        )


class NamePage(msgspec.Struct, frozen=True):
    """One page of the list of queue names; ``next`` is the ``start`` of the next one, None at the end.

    Example:
        >>> client.name_page(limit=10).names
        ('orders',)
    """

    names: tuple[str, ...]
    next: str | None
