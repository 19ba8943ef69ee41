"""Messages: posts, range reads, streams, read marks and explanations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, field

from queuey.api.values import Count, Delay, Flag, Id, Partition, Partitions, Timestamp, Ttl, Wait, bounded, text_choice


class ScheduledMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a schedule. A string body is text; any other JSON value is stored as JSON."""

    body: Any
    ttl: Ttl | None = None
    partition: Partition | None = None
    message_key: Annotated[str, bounded("max_message_key")] | None = None
    content_type: Annotated[str, bounded("max_content_type")] | None = None
    headers: dict[str, str] | None = None
    encoding: Literal["base64"] | None = None


class BatchItem(ScheduledMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a batch. A string body is text; any other JSON value is stored as JSON."""

    delay: Delay | None = None


class MessagesToPost(Struct, frozen=True):
    """Messages to post, all or none."""

    messages: Annotated[list[BatchItem], bounded("max_batch")]


class PostedMessage(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The location of a stored message; ``key`` is its id.

    Attributes:
        merged: Only if an equal message had the name, so nothing was stored: the status of that one as a job.
    """

    id: Id = field(name="key")
    timestamp: Timestamp
    partition: Partition
    merged: Literal["waiting", "retrying", "claimed"] | None = None


class Posted(Struct, frozen=True, tag_field="status", tag="ok"):
    """The posted messages, in the order of the request."""

    messages: list[PostedMessage]


class FetchQuery(Struct, frozen=True, kw_only=True):
    """The requested form of a message."""

    raw: Annotated[bool, Meta(description="Return the bytes as they were posted; only with one id")] = False


class DeadLettersToSend(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Dead letters to send back.

    Attributes:
        ids: Their places, `<partition>:<id>`.
        trusted: Also send letters to queues that keep theirs elsewhere: they may be forged.
        dry_run: Change nothing.
    """

    ids: Annotated[list[str], bounded("max_ids")]
    ttl: Ttl | None = None
    trusted: bool = False
    dry_run: bool = False


class ReadMessage(Struct, frozen=True, gc=False, omit_defaults=True):
    """A message. ``body`` is text, base64 if ``encoding`` is set, or the JSON value that was posted.

    Attributes:
        message_key: The key; only in ordered queues, and in queues that limit claims by key.
        early: True if it was read above the horizon: it is returned again in order, or vanishes.
    """

    message_id: Annotated[
        str,
        Meta(
            min_length=32,
            max_length=32,
            description="32 lower-case hex digits of a version 1 UUID",
            extra_json_schema={"pattern": "^[0-9a-f]{32}$"},
        ),
    ]
    timestamp: Annotated[str, Meta(extra_json_schema={"pattern": r"^-?[0-9]+\.[0-9]{7}$"})]
    partition: Annotated[int, Meta(ge=1)]
    body: Any
    content_type: str | None = None
    headers: dict[str, str] = {}
    encoding: Annotated[str, text_choice("base64")] | None = None
    message_key: str | None = None
    early: bool = False


class Fetched(Struct, frozen=True, tag_field="status", tag="ok"):
    """Messages by id."""

    messages: tuple[ReadMessage, ...]


class Range(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Messages of a range, and the position of the next read.

    Attributes:
        next: Start of the next read by partition; null if nothing is left.
        cursor_safe: False after `delay=0`: a read that continues from this cursor may miss messages.
        partitions: Number of partitions of the queue; only if the read leaves some of them out.
        read: The partitions that were read; only with `partitions`.
    """

    messages: tuple[ReadMessage, ...]
    horizon: Id
    next: dict[int, Id | None]
    cursor: str
    more: bool
    cursor_safe: bool = True
    partitions: int | UnsetType = UNSET
    read: list[int] | UnsetType = UNSET


class RangeRead(Range, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """Messages of a range, and the position of the next read."""


class QueueRangeRead(Range, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """The range of one of several queues."""

    queue_name: str


class QueueReadError(Struct, frozen=True, kw_only=True, tag_field="status", tag="error"):
    """The error of one of several queues."""

    queue_name: str
    error_msg: dict[str, str]


def _position(about: str) -> Meta:
    return Meta(description=about, extra={"raw": True})


class RangeFields(Struct, frozen=True, kw_only=True):
    """Messages of one queue to read."""

    partitions: Partitions | None = None
    limit: Annotated[int, bounded("max_limit", "Max messages per partition; with `merge` in total", ge=1)] | None = None
    order: Annotated[str, text_choice("ascending", "descending", description="Direction")] | None = None
    since: Annotated[str, _position("Start, inclusive: an id, a timestamp or a cursor")] | None = None
    after: Annotated[str, _position("Only messages above this position")] | None = None
    before: Annotated[str, _position("Only messages below this position")] | None = None
    until: Annotated[str, _position("Only messages at or below this position")] | None = None
    delay: Annotated[
        Flag, Meta(description="0: ignore the read delay; a reader that continues from the cursor may miss messages")
    ] = True
    early: Annotated[
        Flag,
        Meta(
            description="1: also return messages above the horizon, marked `early`. A cursor or an id: only "
            "early messages above it"
        ),
    ] = False
    merge: Annotated[Flag, Meta(description="Return one list of all partitions in time order")] = False


class RangeQuery(RangeFields, frozen=True, kw_only=True):
    """Messages of one queue to read, and the seconds to wait for them."""

    wait: Wait = 0.0


class QueueRange(RangeFields, frozen=True, kw_only=True):
    """Messages to read from one of several queues."""

    queue_name: str


class ManyRanges(Struct, frozen=True):
    """Queues to read in one request."""

    queues: Annotated[list[QueueRange], bounded("max_queues_per_read")]
    wait: Wait = 0.0


class ManyRead(Struct, frozen=True, tag_field="status", tag="ok"):
    """The answers, in the order of the request."""

    queues: tuple[QueueRangeRead | QueueReadError, ...]


class StreamFields(Struct, frozen=True, kw_only=True):
    """The start and the contents of a stream."""

    since: (
        Annotated[str, Meta(description="A timestamp, an id, a cursor or `now`; by default the oldest message")] | None
    ) = None
    partitions: Partitions | None = None
    limit: Annotated[int, bounded("max_limit", "Max messages per partition and read", ge=1)] | None = None
    early: Annotated[
        bool, Meta(description="1: send each message as soon as it is stored, marked `early`, and again in order")
    ] = False
    read_marks: Annotated[bool, Meta(description="1: send the caller's read marks when they move")] = False
    last_event_id: Annotated[str, Meta(description="As the header `Last-Event-ID`")] | None = None


class StreamAsked(StreamFields, frozen=True, kw_only=True):
    """Queues to follow."""

    queues: Annotated[list[str], bounded("max_queues_per_stream")] | None = None


class StreamQuery(StreamFields, frozen=True, kw_only=True):
    """Queues to follow."""

    queues: Annotated[
        str,
        Meta(description="Comma list of queues; percent-encode a name once more if it has a comma or a percent sign"),
    ] = ""


class NewReadMark(Struct, frozen=True):
    """The new read mark: ``until`` an id, inclusive, or ids by partition; or the cursor of a read.

    Attributes:
        back: Also move the mark back.
    """

    until: str | None = None
    cursor: str | None = None
    back: bool = False


class ReadMark(Struct, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """The caller's read mark in a queue.

    Example:
        >>> first = client.read("orders", limit=1).messages[0]
        >>> client.mark_read("orders", first).read == {1: first.id}
        True

    Attributes:
        read: The id of the last message that counts as read, by partition.
        pending: Seconds until the mark can be set as requested, because reads do not show all messages below it yet; 0
            if it is set.
    """

    read: dict[int, Id]
    pending: Annotated[float, Meta(ge=0)]


MAX_COUNTED = 1000
"""Max unread messages that are counted in a queue; beyond, ``more`` is true."""


class UnreadAsked(Struct, frozen=True):
    """Queues in which to count unread messages, each up to ``limit``."""

    queues: Annotated[list[str], bounded("max_queues_per_stream")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_COUNTED)] | None = None


class UnreadQueue(Struct, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """The unread messages of a queue.

    Attributes:
        read: The id of the last message that counts as read, by partition.
        unread: The number of unread messages; null if not counted this time. Request this queue again.
        more: True if there are more than ``unread``.
    """

    queue_name: str
    read: dict[int, Id]
    unread: Count | None
    more: bool


class UnreadQueues(Struct, frozen=True, tag_field="status", tag="ok"):
    """The counts, in the order of the request."""

    queues: tuple[UnreadQueue | QueueReadError, ...]


Code = Literal[
    "readable",
    "delayed",
    "read_delay",
    "expires",
    "claimed",
    "attempt",
    "state",
    "waiting",
    "retrying",
    "unclaimed",
    "done",
    "dead_letter",
    "moved",
    "superseded",
    "duplicates",
    "order",
    "limits",
    "paused",
    "not_claimable",
    "no_partition",
    "absent",
    "older_than_queue",
    "ahead",
    "expired",
    "not_proven",
    "no_trace",
]
"""Codes of the reasons in an explanation."""


class Reason(Struct, frozen=True):
    """One reason in the explanation of a message.

    Example:
        >>> receipt = client.send("orders", "three plums")
        >>> reason = client.explain("orders", receipt).reasons[0]
        >>> reason.code, reason.partition, reason.text
        ('readable', 1, 'Range reads show it.')

    Attributes:
        code: A stable word; the API page lists all codes.
        text: The reason as a sentence.
        partition: The partition; None if the reason is about all checked partitions, or the queue.
        at: The time that the reason refers to, in seconds since 1970, or None.
    """

    code: Annotated[str, text_choice(*get_args(Code))]
    text: str
    partition: int | None = None
    at: float | None = None


class Explanation(Struct, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """Why a message cannot be read or claimed now.

    Example:
        >>> receipt = client.send("orders", "three plums", delay=600)
        >>> explanation = client.explain("orders", receipt.id)
        >>> explanation.stored, explanation.readable, [reason.code for reason in explanation.reasons]
        (True, False, ['delayed', 'expires'])

    Attributes:
        id: Id of the message.
        timestamp: The time of the id, in seconds since 1970 with seven decimals.
        stored: True if the message exists and has not expired.
        readable: True if range reads with the read delay show it now.
        reasons: The reasons, as sentences with codes.
    """

    id: Id = field(name="message_id")
    timestamp: Timestamp
    stored: bool
    readable: bool
    reasons: tuple[Reason, ...]
