"""The bodies of version 1 as types: what the OpenAPI document says, and what the rarer answers are made of.

Range reads and posts are written by :mod:`queuey.web.v1.message_json`, which the tests hold to these types.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queuey.access import Action, Verb
from queuey.messages import MAX_CLAIMED, MAX_CLAIMED_PER_KEY, MAX_DELIVERIES, MAX_TTL, MAX_WAIT, Backoff
from queuey.service.explaining import Code

Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="32 lower-case hex digits of a version 1 UUID")]
Timestamp = Annotated[str, Meta(pattern=r"^-?[0-9]+\.[0-9]{7}$", description="seconds since 1970 with seven decimals")]
Count = Annotated[int, Meta(ge=0)]
Partition = Annotated[int, Meta(ge=1, le=200)]
Ttl = Annotated[int, Meta(ge=1, le=33554432, description="seconds")]
Delay = Annotated[float, Meta(ge=0, le=MAX_TTL, description="seconds")]
QueueType = Literal["user", "public"]
Consistency = Literal["weak", "strong", "very_strong"]
MaxDeliveries = Annotated[int, Meta(ge=0, le=MAX_DELIVERIES, description="0: endlessly")]
BackoffText = Annotated[str, Meta(description="such as first=5,most=600")]
OnAck = Literal["keep", "delete"]
Kind = Annotated[
    Literal["plain", "dedup", "ordered"],
    Meta(
        description=(
            "dedup: of equal bodies that wait one is delivered; ordered: messages of a key are claimed in order; "
            "never changes"
        )
    ),
]
MaxClaimed = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_CLAIMED,
        description="live claims at most, divided among the partitions, so at least as many as they are; 0: no limit",
    ),
]
MaxClaimedPerKey = Annotated[
    int,
    Meta(
        ge=0,
        le=MAX_CLAIMED_PER_KEY,
        description="live claims of one message key at most, in a plain queue, from its creation on; 0: no limit",
    ),
]
Ok = Literal["ok"]


class QueueFields(Struct, kw_only=True):
    """What may be chosen about a queue. Numbers may be written as strings; null or empty: not given (or reset)."""

    partitions: Partition | None = None
    type: QueueType | None = None
    consistency: Consistency | None = None
    principles: str | list[str] | None = None
    principals: str | list[str] | None = None
    ttl: Ttl | None = None
    read_delay: Annotated[float, Meta(ge=0, le=3600)] | None = None
    max_deliveries: MaxDeliveries | None = None
    backoff: Backoff | BackoffText | None = None
    dead_letter: Annotated[str, Meta(max_length=50)] | None = None
    on_ack: OnAck | None = None
    kind: Kind | None = None
    max_claimed: MaxClaimed | None = None
    max_claimed_per_key: MaxClaimedPerKey | None = None


class NewQueue(QueueFields, kw_only=True):
    """A queue to create."""

    queue_name: Annotated[str, Meta(max_length=50)] | None = None


class Done(Struct, kw_only=True):
    """Success with nothing else to say."""

    status: Ok = "ok"


class Hello(Done, kw_only=True):
    """What runs at an address."""

    name: Literal["queuey"] = "queuey"
    version: str
    store: str
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="tells this store from every other")]
    links: Annotated[dict[str, str], Meta(description="paths, or patterns of such, by what is there")]


class QueueState(Done, kw_only=True):
    """A queue as it stands."""

    queue_name: str
    partitions: Partition
    type: QueueType
    consistency: Consistency
    ttl: int | None
    read_delay: float | None
    max_deliveries: MaxDeliveries
    backoff: Backoff | None
    dead_letter: str
    on_ack: OnAck
    kind: Kind
    max_claimed: MaxClaimed
    max_claimed_per_key: MaxClaimedPerKey


class CreatedQueue(QueueState, kw_only=True):
    """A queue as it stands after creating or finding it."""

    principles: str | None


class UpdatedQueue(QueueState, kw_only=True):
    """A queue as it stands after an update."""

    created: float
    principles: list[str]


class ListedQueue(Struct, kw_only=True, omit_defaults=True):
    """A queue in a listing; everything but the name only with details."""

    queue_name: str
    application: str | UnsetType = UNSET
    created: float | UnsetType = UNSET
    partitions: Partition | UnsetType = UNSET
    type: QueueType | UnsetType = UNSET
    consistency: Consistency | UnsetType = UNSET
    principles: str | UnsetType = UNSET
    ttl: int | UnsetType = UNSET
    read_delay: float | UnsetType = UNSET
    max_deliveries: MaxDeliveries | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    dead_letter: str | UnsetType = UNSET
    on_ack: OnAck | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    max_claimed: MaxClaimed | UnsetType = UNSET
    max_claimed_per_key: MaxClaimedPerKey | UnsetType = UNSET
    count: Count | UnsetType = UNSET


LONGEST_ASKED = 255
"""Characters of a name in a question about rights; the answer repeats it."""


class RightsAsked(Struct):
    """Names of queues, which need not exist."""

    queues: Annotated[list[Annotated[str, Meta(max_length=LONGEST_ASKED)]], Meta(max_length=100)]


class QueueRights(Struct):
    """What the caller may do with a queue of this name."""

    queue_name: str
    actions: list[Action]


class Rights(Done, kw_only=True):
    """The rights, in the order asked."""

    queues: list[QueueRights]


class StreamAsked(Struct, omit_defaults=True):
    """What to follow; see the parameters of the same names."""

    queues: Annotated[list[str], Meta(max_length=1000)] | UnsetType = UNSET
    since: str | UnsetType = UNSET
    partitions: str | list[Annotated[int, Meta(ge=0)]] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    early: bool | UnsetType = UNSET
    read_marks: bool | UnsetType = UNSET
    last_event_id: str | UnsetType = UNSET


class OwnRights(Struct, omit_defaults=True):
    """What the caller may do with queues of these names, or whose names match a pattern (``*``: any text)."""

    allow: list[Verb]
    queues: list[str] | UnsetType = UNSET
    patterns: list[str] | UnsetType = UNSET


class Me(Done, kw_only=True):
    """Who the caller is. ``names``: what principals of queues may call it; ``expires``: seconds since 1970."""

    names: list[str]
    expires: float | None
    rights: list[OwnRights]


class QueueList(Done, kw_only=True):
    """Queues by name; ``next`` is the offset of the next page.

    ``patterns``: those of the credential; the list has only queues that match one of them.
    """

    queues: list[ListedQueue]
    next: str | None
    patterns: list[str]


class ApplicationList(Done, kw_only=True):
    """Applications by name; ``next`` is the offset of the next page."""

    applications: list[str]
    next: str | None


class Acknowledged(Struct):
    """What an acknowledged write means."""

    level: str
    text: str


class PartitionState(Struct, kw_only=True):
    """What is known of a partition."""

    count: Count
    exact: bool
    oldest: Id | None
    newest: Id | None


class QueueInfo(QueueState, kw_only=True):
    """Everything about a queue."""

    application: str
    principles: list[str]
    ttl: int
    read_delay: float
    created: float
    store: str
    guarantee: str
    acknowledgement: Acknowledged
    horizon: Id
    count: Count
    exact: bool
    partition_info: dict[str, PartitionState]


class BatchItem(Struct, kw_only=True):
    """A message of a batch. A string body is text; any other JSON value is kept as that value."""

    body: Any
    ttl: Ttl | None = None
    partition: Partition | None = None
    message_key: Annotated[str, Meta(max_length=256)] | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    delay: Delay | None = None
    encoding: Literal["base64"] | None = None


class MessagesToPost(Struct):
    """Messages to post, all or none."""

    messages: Annotated[list[BatchItem], Meta(max_length=1000)]


class PostedMessage(Struct):
    """Where a message went; ``key`` is its id."""

    key: Id
    timestamp: Timestamp
    partition: Partition


class Posted(Done, kw_only=True):
    """The messages posted, in the order given."""

    messages: list[PostedMessage]


class ReadMessage(Struct, kw_only=True, omit_defaults=True):
    """A message. ``body`` is text, base64 if ``encoding`` says so, or the JSON value that was posted."""

    message_id: Id
    timestamp: Timestamp
    partition: Partition
    body: Any
    content_type: str | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    message_key: Annotated[str, Meta(description="in an ordered queue")] | UnsetType = UNSET
    encoding: Literal["base64"] | UnsetType = UNSET
    early: Annotated[Literal[True], Meta(description="it comes again in its place, or vanishes")] | UnsetType = UNSET


class Fetched(Done, kw_only=True):
    """Messages by id."""

    messages: list[ReadMessage]


class _Range(Struct, kw_only=True, omit_defaults=True):
    messages: list[ReadMessage]
    horizon: Id
    next: dict[str, Id | None]
    cursor: str
    more: bool
    cursor_safe: bool | UnsetType = UNSET


class RangeRead(_Range, kw_only=True):
    """Messages of a range, and where to go on."""

    status: Ok = "ok"


class QueueRangeRead(_Range, kw_only=True, tag_field="status", tag="ok"):
    """A range of one of several queues."""

    queue_name: str


class QueueReadError(Struct, kw_only=True, tag_field="status", tag="error"):
    """Why one of several queues could not be read."""

    queue_name: str
    error_msg: dict[str, str]


class QueueRange(Struct, kw_only=True):
    """What to read of one of several queues."""

    queue_name: str
    partitions: str | list[int] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] | None = None
    order: Literal["ascending", "descending"] | None = None
    since: str | None = None
    after: str | None = None
    before: str | None = None
    until: str | None = None
    delay: bool | int | str | None = None
    early: bool | int | str | None = None
    merge: bool | int | str | None = None


class ManyRanges(Struct):
    """Queues to read in one call."""

    queues: Annotated[list[QueueRange], Meta(max_length=100)]
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT)] | None = None


class ManyRead(Done, kw_only=True):
    """The answers, in the order asked."""

    queues: list[QueueRangeRead | QueueReadError]


class NewReadMark(Struct, omit_defaults=True):
    """Up to where the caller has read: ``until`` an id, inclusive, or ids by partition; or the cursor of a read."""

    until: str | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    back: Annotated[bool, Meta(description="also if that is less than before")] | UnsetType = UNSET


ReadMarks = Annotated[dict[str, Id], Meta(description="by partition the id of the last message that was read")]


class ReadMark(Done, kw_only=True):
    """The caller's mark; ``pending``: seconds until it can be set as it was asked, because reads show no more now."""

    read: ReadMarks
    pending: Annotated[float, Meta(ge=0)]


class UnreadAsked(Struct, omit_defaults=True):
    """Queues whose unread messages are counted, each up to ``limit``."""

    queues: Annotated[list[str], Meta(max_length=1000)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET


class UnreadQueue(Struct, kw_only=True, tag_field="status", tag="ok"):
    """What the caller has not read of a queue. ``unread`` null: not counted this time; ask for this queue again."""

    queue_name: str
    read: ReadMarks
    unread: Count | None
    more: bool


class UnreadQueues(Done, kw_only=True):
    """The counts, in the order asked."""

    queues: list[UnreadQueue | QueueReadError]


class NewOffset(Struct):
    """An offset to record. ``expected``: what must be recorded now, null for nothing; absent: whatever."""

    offset: str
    expected: str | UnsetType | None = UNSET


class NewOffsets(Struct):
    """Offsets to record, by partition."""

    partitions: dict[str, NewOffset]


class RecordedOffset(Struct):
    """An offset as it is recorded now."""

    offset: Id


class RecordedOffsets(Done, kw_only=True):
    """The offsets that were recorded."""

    group: str
    partitions: dict[str, RecordedOffset]


class OffsetState(Struct):
    """How far a group is in one partition."""

    offset: Id | None
    updated: float | None
    lag: Count
    lag_exact: bool
    lag_seconds: float


class GroupState(Done, kw_only=True):
    """How far a group is in each partition, and in all."""

    group: str
    partitions: dict[str, OffsetState]
    lag: Count


class Cursors(Struct):
    """Ids up to which partitions were processed; null: from the beginning on nothing was."""

    partitions: dict[str, str | None]


class LagState(Struct):
    """What lies behind a cursor in one partition."""

    lag: Count
    lag_exact: bool
    lag_seconds: float


class LagRead(Done, kw_only=True):
    """The lag behind cursors, in each named partition and in all of them."""

    partitions: dict[str, LagState]
    lag: Count


class GroupList(Done, kw_only=True):
    """Consumer groups, sorted."""

    groups: list[str]


class Settlement(Struct, omit_defaults=True):
    """The result of a receipt; ``superseded``: its message was delivered again, moved, replaced or is a dead letter."""

    receipt: str
    status: Literal["ok", "superseded"]
    expires: float | UnsetType = UNSET


class Reason(Struct):
    """One thing that was found about a message."""

    code: Code
    text: Annotated[str, Meta(description="the same as a sentence")]
    partition: Annotated[int | None, Meta(description="null: all that were looked at, or the queue")]
    at: Annotated[float | None, Meta(description="seconds since 1970 of the moment that it speaks of")]


class Explanation(Done, kw_only=True):
    """Why a message is not read or claimed, yet or any more."""

    message_id: Id
    timestamp: Timestamp
    stored: Annotated[bool, Meta(description="it is there and has not expired")]
    readable: Annotated[bool, Meta(description="range reads show it now")]
    reasons: list[Reason]


class NewMove(Struct):
    """Two queues of the application."""

    source: str = field(name="from")
    target: str = field(name="to")


Seconds = Annotated[float, Meta(description="since 1970")]


class ListedMove(Struct, kw_only=True):
    """How a move stands."""

    move: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    source: str = field(name="from")
    target: str = field(name="to")
    state: Literal["running", "cancelling", "done", "cancelled", "failed"]
    moved: Annotated[int, Meta(ge=0, description="messages")]
    total: Annotated[int, Meta(ge=0, description="about, at the beginning; null: not known yet")] | None
    left: Annotated[int, Meta(ge=0, description="messages that stay because they are claimed")]
    began: Seconds
    updated: Annotated[float, Meta(description="when a message was last moved, seconds since 1970")] | None
    ended: Seconds | None
    error: Annotated[str, Meta(description="why it failed")] | None


class Move(ListedMove, kw_only=True):
    """How a move stands."""

    status: Ok = "ok"


class MoveList(Done, kw_only=True):
    """Moves, the newest first: those under way, and the last ones that have ended."""

    moves: list[ListedMove]


class ConflictingOffset(Struct):
    """An offset as it is recorded now, and whether this request set it."""

    offset: Id | None
    applied: bool


class ErrorBody(Struct, kw_only=True, omit_defaults=True):
    """What went wrong, by field or name."""

    status: Literal["error"] = "error"
    error_msg: dict[str, str]
    outcome: Literal["none", "unknown"] | UnsetType = UNSET
    outcomes: list[Literal["none", "unknown"]] | UnsetType = UNSET
    partitions: dict[str, ConflictingOffset] | UnsetType = UNSET
    results: list[Settlement] | UnsetType = UNSET


class Problem(Struct, kw_only=True, omit_defaults=True):
    """RFC 9457 problem details, for clients that accept application/problem+json."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: dict[str, str]
    outcome: Literal["none", "unknown"] | UnsetType = UNSET
    outcomes: list[Literal["none", "unknown"]] | UnsetType = UNSET
    partitions: dict[str, ConflictingOffset] | UnsetType = UNSET
    results: list[Settlement] | UnsetType = UNSET
