"""What the client's calls return: frozen, typed, with the names of the API's JSON when encoded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from queuey.client.errors import ApiError
from queuey.client.positions import order_of, time_of
from queuey.messages import Acknowledgement, Backoff

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
"""What is checked of an id where an answer is read; of a message's there is a quicker check."""

Instant = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,12}\.[0-9]{7}\Z")]


class Receipt(msgspec.Struct, frozen=True):
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

    id: Id = msgspec.field(name="key")
    timestamp: Instant
    partition: Annotated[int, msgspec.Meta(ge=1)]

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
        cursor: The same as one text, to be kept; empty when every partition is complete.
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


class ReadMark(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where the caller has read a queue.

    Example:
        >>> first = client.read("orders", limit=1).messages[0]
        >>> client.mark_read("orders", first).read == {1: first.id}
        True

    Attributes:
        read: Per partition the id of the last message that counts as read.
        pending: Seconds until the mark can be set as asked: reads do not show everything below it yet. 0: it is set.
    """

    read: dict[int, Id]
    pending: float = 0.0


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller has not read of a queue, or the error of one that cannot be read.

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


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the server describes it.

    Example:
        >>> queue = client.update_queue("orders", ttl=3600)
        >>> queue.name, queue.partitions, queue.ttl
        ('orders', 1, 3600)

    Attributes:
        principals: Callers that may read and delete.
        ttl: Seconds; None: the service's default.
        read_delay: Seconds; None: that of the consistency level on the server.
        max_deliveries: Deliveries by claims before a message becomes a dead letter; 0: no limit.
        backoff: The delay after a delivery that has failed; None: the service's default.
        dead_letter: The queue of dead letters; blank: the queue's name and ``.dead``.
        on_ack: ``keep`` or ``delete`` acknowledged messages.
        kind: ``plain``, ``dedup`` or ``ordered``.
        max_claimed, max_claimed_per_key: Live claims at most, of the queue and of one message key; 0: no limit.
        created: Seconds since 1970; None in the answer to a create.
        application: Only in listings.
        count: Messages, in listings that asked for them.
    """

    name: str = msgspec.field(name="queue_name")
    partitions: int
    type: str
    consistency: str
    principals: tuple[str, ...] = ()
    ttl: int | None = None
    read_delay: float | None = None
    max_deliveries: int = 0
    backoff: Backoff | None = None
    dead_letter: str = ""
    on_ack: str = "keep"
    kind: str = "plain"
    max_claimed: int = 0
    max_claimed_per_key: int = 0
    created: float | None = None
    application: str | None = None
    count: int | None = None


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


class PartitionInfo(msgspec.Struct, frozen=True):
    """The state of one partition. ``oldest`` and ``newest`` are ids; None if the partition is empty.

    Example:
        >>> info = client.info("orders").partition_info[1]
        >>> info.count, info.exact
        (2, True)
    """

    count: int
    exact: bool
    oldest: Id | None
    newest: Id | None


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue.

    Example:
        >>> info = client.info("orders")
        >>> info.store, info.count, info.consistency
        ('sqlite', 2, 'strong')

    Attributes:
        ttl, read_delay: Seconds, those in force.
        max_deliveries, backoff, dead_letter, on_ack, kind: As in :class:`Queue`; ``dead_letter`` is the one in force.
        max_claimed, max_claimed_per_key: As in :class:`Queue`.
        store: ``sqlite`` or ``cassandra``.
        guarantee: Which guarantees hold for the queue on that store, a sentence.
        acknowledgement: What a stored message has survived: a stable word and a sentence.
        horizon: An id; everything below it can be read.
        count: Messages in all partitions; ``exact``: counted, otherwise estimated.
        partition_info: By partition.
    """

    name: str = msgspec.field(name="queue_name")
    application: str
    partitions: int
    type: str
    consistency: str
    principals: tuple[str, ...] = msgspec.field(name="principles", default=())
    ttl: int | None
    read_delay: float
    max_deliveries: int = 0
    backoff: Backoff | None = None
    dead_letter: str = ""
    on_ack: str = "keep"
    kind: str = "plain"
    max_claimed: int = 0
    max_claimed_per_key: int = 0
    created: float
    store: str
    guarantee: str
    acknowledgement: Acknowledgement
    horizon: Id
    count: int
    exact: bool
    partition_info: dict[int, PartitionInfo]


class Hello(msgspec.Struct, frozen=True):
    """The service at an address.

    Example:
        >>> hello = client.hello()
        >>> hello.store, len(hello.id)
        ('sqlite', 32)

    Attributes:
        version: Of the service.
        store: ``sqlite`` or ``cassandra``.
        id: Identifies the store, the same under every address; 32 hex digits.
    """

    version: str
    store: str
    id: Id


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The offset and the lag of a consumer group in one partition.

    Example:
        >>> last = client.read("orders", limit=1).messages[0].id
        >>> committed = client.commit("orders", "billing", {1: last})
        >>> client.offsets("orders", "billing").partitions[1].lag
        1

    Attributes:
        offset: The id of the last message handled; None: no offset is recorded.
        updated: Seconds since 1970 when it was recorded.
        lag: Messages after it; ``lag_exact``: counted, otherwise estimated.
        lag_seconds: Age of the oldest of them.
    """

    offset: Id | None
    updated: float | None = None
    lag: int = 0
    lag_exact: bool = True
    lag_seconds: float = 0.0


class Offsets(msgspec.Struct, frozen=True):
    """The offsets of a consumer group in a queue. ``lag`` is the sum over the partitions.

    Example:
        >>> last = client.read("orders").messages[-1].id
        >>> committed = client.commit("orders", "billing", {1: last})
        >>> offsets = client.offsets("orders", "billing")
        >>> offsets.group, offsets.lag
        ('billing', 0)
    """

    group: str
    partitions: dict[int, GroupOffset]
    lag: int = 0


class Reason(msgspec.Struct, frozen=True):
    """One thing that was found about a message.

    Example:
        >>> receipt = client.send("orders", "three plums")
        >>> reason = client.explain("orders", receipt).reasons[0]
        >>> reason.code, reason.partition, reason.text
        ('readable', 1, 'Range reads show it.')

    Attributes:
        code: A stable word; the page of the API lists them.
        text: The same as a sentence.
        partition: Where; None: in all partitions that were looked at, or in the queue.
        at: Seconds since 1970, the moment that it speaks of; None: it speaks of none.
    """

    code: str
    text: str
    partition: int | None = None
    at: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a message is not read or claimed, yet or any more.

    Example:
        >>> receipt = client.send("orders", "three plums", delay=600)
        >>> found = client.explain("orders", receipt.id)
        >>> found.stored, found.readable, [reason.code for reason in found.reasons]
        (True, False, ['delayed', 'expires'])

    Attributes:
        id: Of the message.
        timestamp: The id's time, seconds since 1970 with seven decimals.
        stored: It is there and has not expired.
        readable: Range reads that keep the read delay show it now.
        reasons: What was found.
    """

    id: Id = msgspec.field(name="message_id")
    timestamp: Instant
    stored: bool
    readable: bool
    reasons: tuple[Reason, ...]


class Move(msgspec.Struct, frozen=True):
    """How a move of messages from one queue to another stands.

    Example:
        >>> _ = client.create_queue("old-orders")
        >>> move = client.move("orders", "old-orders").wait()
        >>> move.state, move.moved, move.left
        ('done', 2, 0)

    Attributes:
        id: Names it.
        source, target: The queues.
        state: ``running``, ``cancelling``, ``done``, ``cancelled`` or ``failed``.
        moved: Messages that have been moved.
        total: About how many there were at the beginning; None: not known yet.
        left: Messages that stay because they are claimed.
        began: Seconds since 1970.
        updated: When a message was last moved; None: never.
        ended: When it ended; None: it has not.
        error: Why it failed; None: it has not.
    """

    id: str = msgspec.field(name="move")
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    state: str
    moved: int
    total: int | None
    left: int
    began: float
    updated: float | None
    ended: float | None
    error: str | None = None
