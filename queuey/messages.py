"""The nouns: queues, messages, slices of a partition and the pages they give."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec

from queuey import ids
from queuey.ids import Position
from queuey.queue_options import (
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
from queuey.titles import instant, titled

Location = tuple[int, Position]
"""Partition and position of a message."""

DEFAULT_TTL = 259_200
"""Default seconds that a message lives: 3 days."""
MAX_TTL = 33_554_432
"""Max seconds that a message lives: 388 days."""
KEPT_SECONDS = 86_400
"""Number of seconds for which the row of a kept message stays after the message's end."""
MAX_WAIT = 300
"""Max seconds of a long poll, whatever the setting ``max_wait`` is."""


class Principal(msgspec.Struct, frozen=True):
    """A caller other than the owning application, and its rights: ``app:reports``, ``bid:ann@example.org``."""

    name: str
    read: bool = True
    delete: bool = True


MAX_PAUSE = 43_200
"""Max seconds until a failed message is delivered again."""


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The delay before a message is delivered again whose handling has failed.

    Example:
        >>> from queuey.client import Backoff
        >>> backoff = Backoff(first=5, most=60, jitter=0)
        >>> [backoff.delay(deliveries, draw=0) for deliveries in (1, 2, 3, 4, 5)]
        [5.0, 10.0, 20.0, 40.0, 60.0]

    Attributes:
        first: Seconds after the first delivery.
        factor: How much longer each further delay is.
        most: The longest delay, in seconds.
        jitter: The share of a delay, 0 to 1, of which a random part is left out.
    """

    first: Annotated[float, msgspec.Meta(ge=0, le=MAX_PAUSE)] = 1.0
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    most: Annotated[float, msgspec.Meta(ge=0, le=MAX_PAUSE)] = 60.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def __post_init__(self) -> None:
        """Refuses delays that shrink."""
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
    int, option("ttl", "Seconds that messages live, else the service's default.", ge=1, le=MAX_TTL, seconds=True)
]
MAX_DESCRIPTION = 200
"""Max characters of a queue's description."""
DescriptionOption = Annotated[
    str, option("description", "The purpose of the queue, for people.", line=True, max_length=MAX_DESCRIPTION)
]


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a queue that a request may name. None: not given."""

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


def options() -> dict[str, msgspec.Meta]:
    """Returns the description of each option of a queue, in the order of tables and forms."""
    hints = get_type_hints(QueueOptions, include_extras=True)
    return {name: get_args(get_args(hint)[0])[1] for name, hint in hints.items()}


RESETTABLE = (*(name for name, option in options().items() if (option.extra or {})["resets"]), "principals")
"""Fields that an update may set back to their defaults."""


class QueueSpec(QueueOptions, frozen=True, kw_only=True):
    """The fields of a queue that its maker chooses. None: not given."""

    principals: tuple[Principal, ...] | None = None
    facade: str | None = None


class ChosenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a queue as they stand. ``ttl``, ``read_delay`` and ``backoff`` None: the service's default."""

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


class Queue(ChosenOptions, frozen=True, kw_only=True):
    """A queue as the catalogue has it.

    Attributes:
        uid: Names the queue from creation to deletion, also over purges. Offsets hang on it.
        qid: Names the queue's present messages; a purge changes it.
        principals: Callers other than the application that may use it.
        facade: JSON that a facade keeps with the queue; nothing else reads it.
        created: Seconds since 1970.
        version: The state of the catalogue that this row was read at; stores use it to notice stale rows.
    """

    application: str
    name: str
    uid: int
    qid: int
    principals: tuple[Principal, ...] = ()
    facade: str = ""
    created: float = 0.0
    version: int = 0

    @property
    def keeps_keys(self) -> bool:
        """True if messages keep their keys, because claims depend on them."""
        return self.kind == "ordered" or self.max_claimed_per_key > 0

    def share_of(self, partition: int) -> int:
        share, rest = divmod(self.max_claimed, self.partitions)
        return share + (partition <= rest)


FRAME = 256
"""Max bytes of an answer around the body of a message: its id, time, partition and receipt."""
MOST_ESCAPED = 6
"""Max bytes that JSON takes for a character of text, or for a byte."""
_encode = msgspec.json.Encoder().encode


class Meta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Metadata of a message.

    Attributes:
        content_type: As given by the producer; None if it gave none.
        headers: Pairs of lower-case name and value, in the order given.
        json: The body is the text of a JSON value and is shown as that value, not as a string.
        key: The key, in a queue whose claims depend on it (:attr:`Queue.keeps_keys`).
    """

    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    json: bool = False
    key: str | None = None


def stored_meta(meta: Meta) -> Meta | tuple[object, ...]:
    """Returns the encoded form of metadata: the key only if there is one."""
    return msgspec.structs.astuple(meta)[:-1] if meta.key is None else meta


class NewMessage(msgspec.Struct, gc=False):
    """A message to be stored.

    Attributes:
        body: ``str`` for text (any UTF-8), ``bytes`` for anything else. Never empty.
        partition: 1 to the queue's count.
        ttl: Seconds from storing, or from the due time of a delayed message.
        delay: Seconds until the message is due. Its due time becomes its id time.
        meta: None is the same as ``Meta()``.
        kept: Its row stays for ``KEPT_SECONDS`` after its end, where claims find it.
    """

    body: str | bytes
    partition: int
    ttl: int
    meta: Meta | None = None
    delay: float = 0.0
    kept: bool = False


class PostKey(msgspec.Struct, frozen=True, gc=False):
    """The idempotency key of a post: the post is carried out once, however often it is repeated under its key.

    Attributes:
        text: The caller's key, unique within the queue; 1 to ``LONGEST_KEY`` characters of ASCII.
        content: A hash of the post: under one key it must be the same each time.
        seconds: How long the key is remembered.
    """

    text: str
    content: bytes
    seconds: int


LONGEST_KEY = 255
"""Max characters of an idempotency key."""


class PostResult(msgspec.Struct, frozen=True, gc=False):
    """Places of the messages of a post.

    Attributes:
        locations: In the order of the post.
        replayed: They were stored by an earlier post with this key.
    """

    locations: list[Location]
    replayed: bool


LONGEST_NAME = 255
"""Max characters of the name of a message."""


class Named(msgspec.Struct, frozen=True):
    """Value of a name.

    Attributes:
        location: Place of its message, present or former; None: it has none.
        content: A hash of the message.
        replaced: Place of the value before, if the claim log may not know yet that it is replaced.
        busy: Seconds for which another caller may be writing a value; 0: none is.
        state: Compared by the store when the name is changed.
    """

    location: Location | None
    content: bytes
    replaced: Location | None
    busy: float
    state: object


class Record(msgspec.Struct, frozen=True):
    """A document of an application; see :class:`queuey.storage.contracts.records.Records`.

    Attributes:
        kind: Its use.
        due: Time of its next step (ticks); ``ids.TICKS_MAX``: never.
        version: Compared by the store when it is changed; 0: it is to be created.
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
    """A stored message. ``position`` is its place in the order of its partition; ``expires`` is in ticks."""

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
        """The id: 32 lower-case hex digits."""
        return ids.to_hex((self.ticks, self.low))

    @property
    def timestamp(self) -> str:
        """Seconds since 1970 with seven decimals."""
        return ids.timestamp_text(self.ticks)


def body_bytes(body: str | bytes) -> int:
    return len(body) if isinstance(body, bytes) or body.isascii() else len(body.encode())


def rendered_bytes(body: str | bytes, meta: Meta | None) -> int:
    """Returns the max bytes of a message in an answer: all limits on bytes count these."""
    size = FRAME if meta is None else FRAME + _bytes_beside(meta)
    if isinstance(body, bytes):
        return size + 4 * (len(body) + 2) // 3
    return size + (body_bytes(body) if meta is not None and meta.json else len(_encode(body)))


@lru_cache(maxsize=1024)
def _bytes_beside(meta: Meta) -> int:
    size = len(_encode({"content_type": meta.content_type or "", "headers": dict(meta.headers)}))
    return size if meta.key is None else size + len(_encode({"message_key": meta.key}))


def bytes_of(messages: Iterable[Message]) -> int:
    """Returns the sum of messages' bytes in an answer."""
    return sum([rendered_bytes(message.body, message.meta) for message in messages])


def bytes_at_most(messages: Iterable[Message]) -> int:
    """Returns a bound of :func:`bytes_of` that is quickly found."""
    return sum(
        [
            FRAME + MOST_ESCAPED * len(message.body)
            if message.meta is None
            else rendered_bytes(message.body, message.meta)
            for message in messages
        ]
    )


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A range of one partition: positions in ``[lower, upper)``.

    Attributes:
        limit: Max messages.
        max_bytes: The page ends with the message that brings the sum of :func:`rendered_bytes` to this or above.
        descending: Newest first.
        delayed: Keep below the queue's read delay. False reads up to the last certainly committed id; on a store with
            eventual consistency a cursor taken from such a page may miss messages.
        early: With ``delayed=False``: messages shown may vanish again, and others may be missing. So a store may use
            rows of the queue as old as for a delayed read, and leaves out values of names that may be undone.
        ahead: With ``delayed``: show also messages between the horizon and now. The horizon is that of the store then,
            whatever the queue's own read delay is, and ``Page.next`` may lie above it.
        due: False: show also delayed messages that are not due.
        bodies: False: only positions and ends are of interest; a store leaves the bodies out, and they do not count for
            ``max_bytes``.
        kept: Show also messages that have ended and whose rows are there.
    """

    partition: int
    lower: Position = ids.FIRST
    upper: Position = ids.LAST
    limit: int = 100
    max_bytes: int = 8 << 20
    descending: bool = False
    delayed: bool = True
    early: bool = False
    ahead: bool = False
    due: bool = True
    bodies: bool = True
    kept: bool = False

    def put_off(self, horizon: int) -> Page:
        """Returns the page of a slice that is not read now: the next one begins where the slice does."""
        return Page([], horizon, ids.preceding(self.upper) if self.descending else self.lower, more=True)


class Page(msgspec.Struct, gc=False):
    """Result of a slice.

    Attributes:
        messages: In the slice's order.
        horizon: Every id below ``(horizon, LOW_MIN)`` was considered; nothing at or above it was shown (ticks), except
            for slices with ``ahead``. It was sampled before anything was read.
        next: Start of the next slice of the same direction: ascending the lowest position not yet read, never
            below the slice's ``lower``; descending the highest position not yet read, None when the slice is exhausted.
        more: The page ended at ``limit`` or ``max_bytes``; another slice may give messages at once.
    """

    messages: list[Message]
    horizon: int
    next: Position | None
    more: bool


class PartitionInfo(msgspec.Struct, frozen=True):
    """Counts and bounds of one partition, found without reading it.

    Attributes:
        count: Messages alive, delayed ones included; estimated unless ``exact``.
        oldest: Position of the oldest live message, None when empty.
        newest: Position of the newest one, delayed ones included.
    """

    partition: int
    count: int
    exact: bool
    oldest: Position | None
    newest: Position | None


class Measure(msgspec.Struct, frozen=True, gc=False):
    """Messages of one partition.

    Attributes:
        count: Messages alive, delayed ones included.
        size: Bytes of their bodies.
        exact: Both were counted; else they are estimates.
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
        expected: The position that must be recorded now; None: none may be recorded. Only used if ``compare``.
        compare: False sets the offset in any case.
        forward: What is recorded at this position or above it stays as it is.
    """

    partition: int
    position: Position
    expected: Position | None = None
    compare: bool = False
    forward: bool = False


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry of a partition's claim log.

    Attributes:
        number: 1 for the first entry of a log, and one more for each further one.
        body: What was claimed, acknowledged and so on; stores do not interpret it. Never empty.
    """

    number: int
    body: bytes


class LogPage(msgspec.Struct, frozen=True, gc=False):
    """A part of a claim log, from some entry on.

    Attributes:
        last: The number of the newest entry; 0: the log is empty.
        entries: Ascending without gaps: from the number asked for, or from the one after the snapshot's.
        snapshot: Stands for all entries up to and including its number, if those asked for are not all given one by
            one; else None.
    """

    last: int
    entries: list[LogEntry]
    snapshot: LogEntry | None = None


class Lag(msgspec.Struct, frozen=True):
    """Messages above an offset (``exact`` or estimated), and the oldest one's age in seconds."""

    count: int
    exact: bool
    seconds: float


OPERATORS = "@all"
"""Name that stands for an application where keys are kept: its keys are operators' keys, for all applications."""
AUDITS = "@console"
"""The application that owns the audit logs of all others. It has no keys."""


class Scope(msgspec.Struct, frozen=True):
    """Limits of a key; :func:`queuey.access.parse_scope` makes one of texts.

    Attributes:
        allow: Verbs, see :data:`queuey.access.Verb`.
        queues: Patterns of queues' names, in which ``*`` stands for any text.
    """

    allow: tuple[str, ...]
    queues: tuple[str, ...] = ("*",)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An application's key as it is kept: never the key, only its SHA-256.

    Attributes:
        id: Public, names the key for revoking: the first 8 hex digits of the hash, more if another key has these.
        created, expires: Seconds since 1970; ``expires`` None: never.
        scope: Its limits; None: none, it does all that its application may.
    """

    application: str
    id: Annotated[str, titled("key")]
    created: Annotated[float, titled(unit=instant)]
    expires: float | None = None
    note: str = ""
    scope: Scope | None = None


class Acknowledgement(msgspec.Struct, frozen=True):
    """Meaning of a successful write: a stable word and a sentence for people."""

    level: str
    text: str

    @property
    def meaning(self) -> str:
        return f"acknowledged means {self.level}: {self.text}"


class Finding(msgspec.Struct, frozen=True):
    """One check of ``queuey doctor``.

    Attributes:
        check: Its name, in a word.
        state: ``warn``: it works, with a risk; ``fail``: the store cannot serve, or not as it promises.
        text: The finding.
        advice: What to do about it; empty if it is ``ok``.
    """

    check: str
    state: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""
