"""What the client's calls return: frozen, typed, with the names of the API's JSON when encoded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from queuey.client.errors import ApiError
from queuey.client.positions import order_of, time_of
from queuey.messages import Acknowledgement

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
"""What is checked of an id where an answer is read; of a message's there is a quicker check."""

Instant = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]{1,12}\.[0-9]{7}\Z")]


class Receipt(msgspec.Struct, frozen=True):
    """A message was stored.

    Attributes:
        id: 32 lower-case hex digits.
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

    The garbage collector passes messages by, which makes reading them a third faster: whoever puts an object into a
    body that leads back to the message keeps both for ever.

    Attributes:
        id: 32 lower-case hex digits.
        timestamp: The id's time, seconds since 1970 with seven decimals, exactly as the server wrote it.
        partition: 1 to the queue's count.
        body: ``str`` for text, ``bytes`` for anything else, or the value of a body that was sent as JSON.
        content_type: As given by the producer; None if it gave none.
        headers: As given by the producer, names in lower case.
    """

    id: str = msgspec.field(name="message_id")
    timestamp: str
    partition: int
    body: Any
    content_type: str | None = None
    headers: Mapping[str, str] = {}

    @property
    def time(self) -> datetime:
        """The id's time in UTC, cut to microseconds."""
        return time_of(self.id)

    @property
    def ticks(self) -> int:
        """The id's time in 100 ns steps since 1582-10-15, exactly."""
        return order_of(self.id)[0]


class RawMessage(msgspec.Struct, frozen=True):
    """A message as its bytes, with what the server says about them. Fields as in :class:`Message`."""

    id: str
    timestamp: str
    partition: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = {}


class Page(msgspec.Struct, frozen=True):
    """What one read gave.

    Attributes:
        messages: In the order asked for.
        horizon: An id; nothing at or above it was read.
        next: Per partition, where to go on with ``since`` in the same order; None: a descending read is through.
        cursor: The same as one text, for keeping; empty when every partition is through.
        more: Another read now may give messages.
        cursor_safe: False after ``delay=0``: a read that goes on from this cursor may miss messages.
    """

    messages: tuple[Message, ...]
    horizon: str
    next: Mapping[int, str | None]
    cursor: str
    more: bool
    cursor_safe: bool = True


class QueueRead(msgspec.Struct, frozen=True):
    """What a read of several queues gave for one of them: a page, or the reason why there is none."""

    queue: str
    page: Page | None = None
    error: ApiError | None = None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as the server describes it.

    Attributes:
        principals: Who else may read and delete.
        ttl: Seconds; None: the deployment's default.
        read_delay: Seconds; None: what the consistency level means on that server.
        max_deliveries: How often claims deliver a message before it becomes a dead letter; 0: endlessly.
        dead_letter: The queue of dead letters; blank: the queue's name and ``.dead``.
        on_ack: ``keep`` or ``delete``: what becomes of acknowledged messages.
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
    dead_letter: str = ""
    on_ack: str = "keep"
    created: float | None = None
    application: str | None = None
    count: int | None = None


class CreatedQueue(Queue, frozen=True, kw_only=True):
    """The answer to a create. ``new`` is False if the queue was there already, as it was asked for."""

    new: bool


class QueuePage(msgspec.Struct, frozen=True):
    """One page of the list of queues; ``next`` is the ``start`` of the next one, None at the end."""

    queues: tuple[Queue, ...]
    next: str | None


class NamePage(msgspec.Struct, frozen=True):
    """One page of the list of queue names; ``next`` is the ``start`` of the next one, None at the end."""

    names: tuple[str, ...]
    next: str | None


class PartitionInfo(msgspec.Struct, frozen=True):
    """What is known of one partition. ``oldest`` and ``newest`` are ids, None when it is empty."""

    count: int
    exact: bool
    oldest: Id | None
    newest: Id | None


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the server says about a queue.

    Attributes:
        ttl, read_delay: Seconds, those in force.
        max_deliveries, dead_letter, on_ack: As in :class:`Queue`; ``dead_letter`` is the one in force.
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
    dead_letter: str = ""
    on_ack: str = "keep"
    created: float
    store: str
    guarantee: str
    acknowledgement: Acknowledgement
    horizon: Id
    count: int
    exact: bool
    partition_info: dict[int, PartitionInfo]


class Hello(msgspec.Struct, frozen=True):
    """What runs at an address.

    Attributes:
        version: Of the service.
        store: ``sqlite`` or ``cassandra``.
        id: Tells the store from every other, under whatever address it is reached; 32 hex digits.
    """

    version: str
    store: str
    id: Id


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a consumer group has processed one partition.

    Attributes:
        offset: The last id processed; None: nothing recorded.
        updated: Seconds since 1970 when it was recorded.
        lag: Messages behind it; ``lag_exact``: counted, otherwise estimated.
        lag_seconds: Age of the oldest of them.
    """

    offset: Id | None
    updated: float | None = None
    lag: int = 0
    lag_exact: bool = True
    lag_seconds: float = 0.0


class Offsets(msgspec.Struct, frozen=True):
    """How far a consumer group has processed a queue. ``lag`` is the sum over the partitions."""

    group: str
    partitions: dict[int, GroupOffset]
    lag: int = 0


class Claimed(msgspec.Struct, frozen=True):
    """A message that was handed out to this caller alone, until ``expires``.

    Attributes:
        message: The message.
        receipt: Names this claim of it; what acknowledges, renews or releases it.
        deliveries: How often the message has been handed out, this time included.
        expires: Seconds since 1970, by the server's clock; somebody else may get the message then.
    """

    message: Message
    receipt: str
    deliveries: int
    expires: float


class Refused(msgspec.Struct, frozen=True):
    """A receipt that a call did nothing with.

    Attributes:
        receipt: The receipt.
        status: Why: ``superseded``, the claim had expired and the message was handed out again.
    """

    receipt: str
    status: str


class PartitionClaims(msgspec.Struct, frozen=True):
    """Messages of one partition that were handed out and are not done: ``claimed`` now, or ``waiting`` to be again."""

    claimed: int
    waiting: int


class ClaimCounts(msgspec.Struct, frozen=True):
    """Messages that were handed out and are not done, in all partitions and by partition."""

    claimed: int
    waiting: int
    partitions: dict[int, PartitionClaims]


class QueueSize(msgspec.Struct, frozen=True):
    """How many messages of a queue are not acknowledged; ``exact``: counted, otherwise estimated."""

    size: int
    exact: bool
