"""Domain objects: queues, messages, slices of a partition, pages, offsets, keys, and more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec

from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.kinds import Traits, kind_of
from queuey.model.queue_options import (
    BACKOFF,
    ClaimedOption,
    ClaimedPerKeyOption,
    ClaimsOption,
    ConsistencyOption,
    CountOption,
    DeadLetterOption,
    DeliveriesOption,
    KindOption,
    OnAckOption,
    OnExpiryOption,
    ReadDelayOption,
    ResultTtlOption,
    TypeOption,
    option,
)
from queuey.model.titles import instant, titled

Location = tuple[int, Position]
"""Partition and position of a message: identifies it within its queue. A position alone does not."""

DEFAULT_TTL = 259_200
"""Default TTL of messages in seconds: 3 days."""
MAX_TTL = 33_554_432
"""Max TTL of messages in seconds: 388 days."""
KEPT_SECONDS = 86_400
"""Number of seconds for which the row of a kept message stays after the message has expired."""
MAX_WAIT = 300
"""Max seconds of a long poll, whatever the setting ``max_wait`` is."""


class Principal(msgspec.Struct, frozen=True):
    """A caller other than the owning application (``app:reports``, ``bid:ann@example.org``), and its rights."""

    name: str
    read: bool = True
    delete: bool = True


MAX_BACKOFF_SECONDS = 43_200
"""Max seconds until a message is delivered again after a failure."""


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The delay before a failed message is delivered again.

    Example:
        >>> from queuey.client import Backoff
        >>> backoff = Backoff(first=5, most=60, jitter=0)
        >>> [backoff.delay(deliveries, draw=0) for deliveries in (1, 2, 3, 4, 5)]
        [5.0, 10.0, 20.0, 40.0, 60.0]

    Attributes:
        first: Delay after the first delivery, in seconds.
        factor: Factor by which each further delay is longer.
        most: Max delay in seconds.
        jitter: Share of a delay, 0 to 1, that is shortened at random.
    """

    first: Annotated[float, msgspec.Meta(ge=0, le=MAX_BACKOFF_SECONDS)] = 1.0
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    most: Annotated[float, msgspec.Meta(ge=0, le=MAX_BACKOFF_SECONDS)] = 60.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def __post_init__(self) -> None:
        if self.first > self.most:
            raise ValueError(f"first, {self.first:g} s, is longer than most, {self.most:g} s: give both")

    def delay(self, deliveries: int, draw: float) -> float:
        """Returns the seconds to wait after ``deliveries``; ``draw`` is a random number from 0 to 1."""
        try:
            grown = self.first * self.factor ** (deliveries - 1)
        except OverflowError:
            grown = self.most
        return float(min(self.most, grown)) * (1 - self.jitter * draw)


TtlOption = Annotated[
    int, option("ttl", "Seconds that messages live; the default is the service's.", ge=1, le=MAX_TTL, seconds=True)
]
MAX_DESCRIPTION = 200
DescriptionOption = Annotated[
    str, option("description", "The purpose of the queue, for people.", line=True, max_length=MAX_DESCRIPTION)
]


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a queue in a request. None stands for an option that is not set."""

    partitions: CountOption | None = None
    type: TypeOption | None = None
    consistency: ConsistencyOption | None = None
    ttl: TtlOption | None = None
    read_delay: ReadDelayOption | None = None
    max_deliveries: DeliveriesOption | None = None
    backoff: Annotated[Backoff, BACKOFF] | None = None
    dead_letter: DeadLetterOption | None = None
    on_ack: OnAckOption | None = None
    on_expiry: OnExpiryOption | None = None
    kind: KindOption | None = None
    max_claimed: ClaimedOption | None = None
    max_claimed_per_key: ClaimedPerKeyOption | None = None
    claims: ClaimsOption | None = None
    result_ttl: ResultTtlOption | None = None
    description: DescriptionOption | None = None


def option_metas() -> dict[str, msgspec.Meta]:
    hints = get_type_hints(QueueOptions, include_extras=True)
    return {name: get_args(get_args(hint)[0])[1] for name, hint in hints.items()}


RESETTABLE = (*(name for name, option in option_metas().items() if (option.extra or {})["resets"]), "principals")
"""Fields that an update may set back to their defaults."""


class QueueSpec(QueueOptions, frozen=True, kw_only=True):
    """The fields of a queue that its creator sets. None stands for a field that is not set."""

    principals: tuple[Principal, ...] | None = None
    facade: str | None = None


class ChosenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an existing queue. ``ttl``, ``read_delay`` and ``backoff`` are None for the service's default."""

    partitions: CountOption = 1
    type: TypeOption = "user"
    consistency: ConsistencyOption = "strong"
    ttl: TtlOption | None = None
    read_delay: ReadDelayOption | None = None
    max_deliveries: DeliveriesOption = 0
    backoff: Annotated[Backoff, BACKOFF] | None = None
    dead_letter: DeadLetterOption = ""
    on_ack: OnAckOption = "keep"
    on_expiry: OnExpiryOption = "drop"
    kind: KindOption = "plain"
    max_claimed: ClaimedOption = 0
    max_claimed_per_key: ClaimedPerKeyOption = 0
    claims: ClaimsOption = "open"
    result_ttl: ResultTtlOption = 0
    description: DescriptionOption = ""


class Queue(ChosenOptions, frozen=True, kw_only=True, dict=True):
    """The row of a queue in the catalogue.

    Attributes:
        uid: Identifies the queue from creation to deletion, even after purges. Offsets belong to it.
        qid: Identifies the queue's present messages; a purge changes it.
        principals: Callers other than the application that may use the queue.
        facade: JSON that a facade keeps with the queue; only the facade reads it.
        created: When the queue was created (seconds since 1970).
        version: Version of the catalogue at which the row was read; stores use it to detect outdated rows.
    """

    application: str
    name: str
    uid: int
    qid: int
    principals: tuple[Principal, ...] = ()
    facade: str = ""
    created: float = 0.0
    version: int = 0

    @cached_property
    def traits(self) -> Traits:
        return kind_of(self)

    def share_of(self, partition: int) -> int:
        share, rest = divmod(self.max_claimed, self.partitions)
        return share + (partition <= rest)


MAX_MESSAGE_FRAME_BYTES = 256
"""Max bytes of a message in an answer, not counting body and metadata: its id, time, partition and receipt."""
MAX_ESCAPED_BYTES = 6
"""Max JSON bytes per character of text, or per byte."""
_encode = msgspec.json.Encoder().encode


class Meta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Metadata of a message.

    Attributes:
        content_type: Content type given by the producer, or None.
        headers: Pairs of lower-case name and value, in their original order.
        json: The body is the text of a JSON value, which is returned as that value and not as a string.
        key: Key of the message, in queues that keep keys (:attr:`Traits.stores_keys`).
    """

    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    json: bool = False
    key: str | None = None


def stored_meta(meta: Meta) -> Meta | tuple[object, ...]:
    """Returns metadata as stores encode it: without the item for the key if the message has no key."""
    return msgspec.structs.astuple(meta)[:-1] if meta.key is None else meta


class NewMessage(msgspec.Struct, gc=False):
    """A message to be stored.

    Attributes:
        body: ``str`` for text (any UTF-8), ``bytes`` for anything else. Never empty.
        partition: Partition from 1 to the number of the queue's partitions.
        ttl: TTL in seconds, counted from storing, or from the due time of a delayed message.
        delay: Seconds until the message is due. Its id has the due time.
        meta: Metadata; None is the same as ``Meta()``.
        kept: The row stays for ``KEPT_SECONDS`` after the message has expired, so that claims find it.
    """

    body: str | bytes
    partition: int
    ttl: int
    meta: Meta | None = None
    delay: float = 0.0
    kept: bool = False


class PostKey(msgspec.Struct, frozen=True, gc=False):
    """The idempotency key of a post: the post is carried out once, however often it is repeated with its key.

    Attributes:
        text: The caller's key, unique within the queue; 1 to ``MAX_KEY_LENGTH`` ASCII characters.
        content: Hash of the post. It must be the same for all posts with the key.
        seconds: How long the key is remembered, in seconds.
    """

    text: str
    content: bytes
    seconds: int


MAX_KEY_LENGTH = 255


class PostResult(msgspec.Struct, frozen=True, gc=False):
    """Result of a post.

    Attributes:
        locations: Locations of the messages, in the order of the post.
        replayed: The messages were stored by an earlier post with the same key.
    """

    locations: list[Location]
    replayed: bool


MAX_NAME_LENGTH = 255
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that are printable for Python and yet show nothing."""


def is_readable(name: str) -> bool:
    """Returns whether a name that people read shows all that it is: no invisible characters, no space at an end."""
    return name.isprintable() and name == name.strip() and _BLANK_LETTERS.isdisjoint(name)


class Named(msgspec.Struct, frozen=True):
    """The value of a name.

    Attributes:
        location: Location of the name's message, which may be gone; None if the name was freed.
        content: Hash of the message.
        replaced: Location of the previous value, if its replacement may not be in the claim log yet.
        busy: Seconds for which another caller may be writing a value, or 0.
        state: Token that the store compares when the name is changed.
    """

    location: Location | None
    content: bytes
    replaced: Location | None
    busy: float
    state: object


class Record(msgspec.Struct, frozen=True):
    """A document of an application; see :class:`queuey.storage.contracts.records.Records`.

    Attributes:
        kind: The feature that uses the record.
        due: Time of its next step (ticks); ``ids.TICKS_MAX`` for never.
        version: Token that the store compares when the record is changed; 0 for a record to be created.
    """

    kind: str
    application: str
    name: str
    value: bytes
    due: int
    version: int = 0


class RecordDue(msgspec.Struct, frozen=True):
    """A record without its value."""

    application: str
    name: str
    due: int
    version: int


class Message(msgspec.Struct, array_like=True, gc=False):
    """A stored message. ``position`` defines its order in the partition; ``expires`` is in ticks."""

    ticks: int
    low: int
    partition: int
    expires: int
    body: str | bytes
    meta: Meta | None = None

    @property
    def position(self) -> Position:
        return self.ticks, self.low

    @property
    def id(self) -> str:
        return ids.to_hex((self.ticks, self.low))

    @property
    def timestamp(self) -> str:
        return ids.timestamp_text(self.ticks)


position_of: Callable[[Message], Position] = attrgetter("ticks", "low")
"""Returns ``Message.position``, for many messages at less cost."""


def body_bytes(body: str | bytes) -> int:
    return len(body) if isinstance(body, bytes) or body.isascii() else len(body.encode())


def rendered_bytes(body: str | bytes, meta: Meta | None) -> int:
    """Returns an upper bound of the bytes of a message in an answer. All byte limits use it."""
    size = MAX_MESSAGE_FRAME_BYTES if meta is None else MAX_MESSAGE_FRAME_BYTES + _count_meta_bytes(meta)
    if isinstance(body, bytes):
        return size + 4 * (len(body) + 2) // 3
    return size + (body_bytes(body) if meta is not None and meta.json else len(_encode(body)))


@lru_cache(maxsize=1024)
def _count_meta_bytes(meta: Meta) -> int:
    size = len(_encode({"content_type": meta.content_type or "", "headers": dict(meta.headers)}))
    return size if meta.key is None else size + len(_encode({"message_key": meta.key}))


def bytes_of(messages: Iterable[Message]) -> int:
    return sum([rendered_bytes(message.body, message.meta) for message in messages])


def bytes_at_most(messages: Iterable[Message]) -> int:
    """Returns an upper bound of :func:`bytes_of` that is cheaper to compute."""
    size = 0
    for message in messages:
        if message.meta is None:
            size += MAX_MESSAGE_FRAME_BYTES + MAX_ESCAPED_BYTES * len(message.body)
        else:
            size += rendered_bytes(message.body, message.meta)
    return size


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A range of one partition: positions in ``[lower, upper)``.

    Claims, moves and counts of unfinished messages read with ``ahead``: they know by the log what was delivered, not by
    a cursor, so a message that appears later below the horizon is not lost. Other reads use:

    ===========================================  ==========================================
    range reads                                  ``keeps_read_delay`` as the request says
    messages above the horizon, if requested     ``keeps_read_delay=False, early=True``
    messages that are not due                    ``keeps_read_delay=False, due=False``
    ids only, to move a cursor or to count       ``bodies=False``
    claims in a queue that keeps expired ones    ``ahead=True, kept=True``
    ===========================================  ==========================================

    Attributes:
        limit: Max messages.
        max_bytes: The page ends with the message that brings the sum of :func:`rendered_bytes` to this value or above.
        descending: Newest first.
        keeps_read_delay: Show messages when the queue's read delay is over. False reads up to the last certainly
            committed id; on a store with eventual consistency, readers that continue from the cursor of such a page may
            miss messages.
        early: Without the read delay: messages shown may vanish again, and others may be missing. So a store may use
            queue rows as old as with it, and leaves out values of names that may be undone.
        ahead: With the read delay: also show messages between the horizon and now. Then the store's own horizon is
            used, whatever the queue's read delay is, and ``Page.next`` may lie above it.
        due: False to show also delayed messages that are not due.
        bodies: False if only positions and expiries are needed. The store leaves out the bodies, and they do not count
            for ``max_bytes``.
        kept: Also show expired messages with rows that still exist.
    """

    partition: int
    lower: Position = ids.FIRST
    upper: Position = ids.LAST
    limit: int = 100
    max_bytes: int = 8 << 20
    descending: bool = False
    keeps_read_delay: bool = True
    early: bool = False
    ahead: bool = False
    due: bool = True
    bodies: bool = True
    kept: bool = False

    def make_postponed_page(self, horizon: int) -> Page:
        """Returns an empty page for a slice that is not read now; the next slice begins where it does."""
        return Page([], horizon, ids.preceding(self.upper) if self.descending else self.lower, more=True)


class Page(msgspec.Struct, gc=False):
    """Result of a slice.

    Attributes:
        messages: Messages in the slice's order.
        horizon: Upper bound of the read (ticks): all ids below ``(horizon, LOW_MIN)`` were considered, and no id at or
            above it is shown, except for slices with ``ahead``. It was sampled before the read.
        next: Start of the next slice in the same direction. Ascending: the lowest position not yet read, never below
            the slice's ``lower``. Descending: the highest position not yet read, or None at the end of the slice.
        more: The page ended at ``limit`` or ``max_bytes``; another slice may return messages at once.
    """

    messages: list[Message]
    horizon: int
    next: Position | None
    more: bool


class PartitionBounds(msgspec.Struct, frozen=True):
    """Counts and bounds of one partition, determined without reading all of it.

    Attributes:
        count: Number of live messages, including delayed ones; estimated unless ``exact``.
        oldest: Position of the oldest live message, or None without messages.
        newest: Position of the newest live message, including delayed ones.
    """

    partition: int
    count: int
    exact: bool
    oldest: Position | None
    newest: Position | None


class Measure(msgspec.Struct, frozen=True, gc=False):
    """Number and size of the messages of one partition.

    Attributes:
        count: Number of live messages, including delayed ones.
        size: Bytes of their bodies.
        exact: Whether both were counted; otherwise they are estimates.
        oldest, newest: Positions of the first and the last live message.
    """

    partition: int
    count: int
    size: int
    exact: bool
    oldest: Position
    newest: Position


class Offset(msgspec.Struct, frozen=True):
    """How far a consumer group has processed one partition: everything up to and including ``position``."""

    partition: int
    position: Position
    updated: float


class OffsetChange(msgspec.Struct, frozen=True):
    """A compare-and-set of one offset.

    Attributes:
        expected: The position that must be recorded; None if no position may be recorded. Only used with ``compare``.
        compare: False to set the offset without a comparison.
        forward: Keep a recorded offset at or above the new position.
    """

    partition: int
    position: Position
    expected: Position | None = None
    compare: bool = False
    forward: bool = False


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of a partition's claim log.

    Attributes:
        number: Number of the entry: 1, 2, 3, …
        body: Encoded changes, which stores do not interpret. Never empty.
    """

    number: int
    body: bytes


class LogPage(msgspec.Struct, frozen=True, gc=False):
    """A section of a claim log.

    Attributes:
        last: Number of the newest entry of the log; 0 if the log is empty.
        entries: Entries ascending without gaps, from the requested number on, or from the number after the snapshot's.
        snapshot: Replaces all entries up to and including its number; None if the page has all requested entries.
    """

    last: int
    entries: list[LogEntry]
    snapshot: LogEntry | None = None


class Lag(msgspec.Struct, frozen=True):
    """Number of messages above an offset (estimated unless ``exact``), and the age of the oldest in seconds."""

    count: int
    exact: bool
    seconds: float


OPERATORS = "@all"
"""Owner of operators' keys, which are valid for all applications. It is used like the name of an application."""
AUDITS = "@console"
"""The application that owns the audit logs of all others. It does not have keys."""


class Scope(msgspec.Struct, frozen=True):
    """Limits of a key; see :func:`queuey.model.rights.parse_scope`.

    Attributes:
        allow: Allowed verbs, see :data:`queuey.model.rights.Verb`.
        queues: Patterns of queue names, in which ``*`` stands for any text.
    """

    allow: tuple[str, ...]
    queues: tuple[str, ...] = ("*",)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """The record of an application's key. The key itself is never stored, only its SHA-256.

    Attributes:
        id: Public id: the first 8 hex digits of the hash, or more if another key has the same.
        created, expires: Seconds since 1970. ``expires`` is None if the key never expires.
        scope: Limits of the key; None if it may do everything that its application may do.
    """

    application: str
    id: Annotated[str, titled("key")]
    created: Annotated[float, titled(unit=instant)]
    expires: float | None = None
    note: str = ""
    scope: Scope | None = None


class Acknowledgement(msgspec.Struct, frozen=True):
    """What a successful write guarantees: a stable word, and a sentence for people."""

    level: str
    text: str

    @property
    def meaning(self) -> str:
        return f"acknowledged means {self.level}: {self.text}"


class Finding(msgspec.Struct, frozen=True):
    """Result of a check of ``queuey doctor``.

    Attributes:
        check: Short name of the check.
        state: ``warn`` for a risk; ``fail`` if the store cannot serve, or cannot keep its guarantees.
        text: The finding.
        advice: What to do about it; blank if the state is ``ok``.
    """

    check: str
    state: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""
