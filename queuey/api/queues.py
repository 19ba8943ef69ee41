"""Queues: options, lists, rights, and the present view of readers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct, field
from msgspec.structs import fields

from queuey.api.claims import Backlog, ClaimCounts
from queuey.api.progress import Offsets
from queuey.api.values import Count, Id, bounded
from queuey.model.messages import Acknowledgement, ChosenOptions, QueueOptions
from queuey.model.rights import Action, Verb
from queuey.model.titles import duration, format_estimate, id_time, instant, titled

MAX_REQUESTED_NAME = 255
"""Max characters of a name in a request for rights; the answer repeats it."""
Name = Annotated[str, Meta(max_length=MAX_REQUESTED_NAME)]


class QueueOptionFields(QueueOptions, frozen=True, kw_only=True):
    """Options of a queue. Numbers may be strings. Null or empty means not set, or reset."""

    principles: str | list[str] | None = None
    principals: str | list[str] | None = None


class NewQueue(QueueOptionFields, frozen=True, kw_only=True):
    """A queue to create."""

    queue_name: str | None = None


class QueueState(ChosenOptions, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """The present state of a queue."""

    name: str = field(name="queue_name")


class CreatedQueueState(QueueState, frozen=True, kw_only=True):
    """The state of a queue that was created or found."""

    principles: str | None


class UpdatedQueue(QueueState, frozen=True, kw_only=True):
    """The state of a queue after an update."""

    created: float
    principles: list[str]


ListedQueue: Any = defstruct(
    "ListedQueue",
    [
        ("queue_name", str),
        ("application", str | UnsetType, UNSET),
        ("created", float | UnsetType, UNSET),
        ("principles", str | UnsetType, UNSET),
        *((f.name, f.type | UnsetType, UNSET) for f in fields(ChosenOptions)),
        ("count", Count | UnsetType, UNSET),
    ],
    omit_defaults=True,
    kw_only=True,
    namespace={"__doc__": "A queue in a listing. All fields but the name are shown only with details."},
)


class ListQuery(Struct, frozen=True, kw_only=True):
    """The requested page of a listing."""

    limit: Annotated[int, bounded("max_list", "Names in the answer", ge=1)] | None = None
    offset: Annotated[str, Meta(description="Name to start at, inclusive")] = ""


class QueueListQuery(ListQuery, frozen=True, kw_only=True):
    """The requested page of the list of queues."""

    details: Annotated[bool, Meta(description="Show all fields")] = False
    include_count: Annotated[bool, Meta(description="Show message counts and all fields")] = False


class QueueList(Struct, frozen=True, tag_field="status", tag="ok"):
    """Queues by name; ``next`` is the offset of the next page.

    Attributes:
        patterns: Patterns of the credential. The list has only queues that match one of them.
    """

    queues: list[ListedQueue]
    next: str | None
    patterns: list[str]


class ApplicationList(Struct, frozen=True, tag_field="status", tag="ok"):
    """Applications by name; ``next`` is the offset of the next page."""

    applications: list[str]
    next: str | None


class RightsAsked(Struct, frozen=True):
    """Names of queues, which need not exist."""

    queues: Annotated[list[Name], bounded("max_queues_per_read")]


class QueueRights(Struct, frozen=True):
    """The caller's rights to a queue of this name."""

    queue_name: str
    actions: list[Action]


class Rights(Struct, frozen=True, tag_field="status", tag="ok"):
    """The rights, in the order of the request."""

    queues: list[QueueRights]


class OwnRights(Struct, frozen=True, omit_defaults=True):
    """Rights to queues with these names, and to queues whose names match a pattern (``*`` matches any text)."""

    allow: list[Verb]
    queues: list[str] | UnsetType = UNSET
    patterns: list[str] | UnsetType = UNSET


class Me(Struct, frozen=True, tag_field="status", tag="ok"):
    """The caller.

    Attributes:
        names: The names by which principals of queues may refer to the caller.
        expires: Seconds since 1970.
    """

    names: list[str]
    expires: float | None
    rights: list[OwnRights]


class PartitionInfo(Struct, frozen=True):
    """The state of one partition. ``oldest`` and ``newest`` are ids; None if the partition is empty.

    Example:
        >>> info = client.info("orders").partition_info[1]
        >>> info.count, info.exact
        (2, True)
    """

    count: Annotated[Count, titled("messages", format_estimate())]
    exact: bool
    oldest: Annotated[Id | None, titled(unit=id_time)]
    newest: Annotated[Id | None, titled(unit=id_time)]


class QueueInfo(ChosenOptions, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """The state of a queue.

    Example:
        >>> info = client.info("orders")
        >>> info.store, info.count, info.consistency
        ('sqlite', 2, 'strong')

    Attributes:
        ttl, read_delay: The seconds in force.
        dead_letter: The queue of dead letters in force.
        max_deliveries, backoff, on_ack, on_expiry, kind, max_claimed, max_claimed_per_key, claims, result_ttl,
        description: As in
            :class:`~queuey.model.messages.Queue`.
        store: ``sqlite`` or ``cassandra``.
        guarantee: The guarantees of the queue on this store, as a sentence.
        acknowledgement: The meaning of a successful write: a stable word and a sentence.
        horizon: An id: range reads show everything below it.
        count: Messages in all partitions.
        exact: If false, the count is estimated.
        partition_info: Counts and ends of each partition.
    """

    name: Annotated[str, titled("queue")] = field(name="queue_name")
    application: str
    principals: Annotated[tuple[str, ...], titled("principals")] = field(name="principles")
    ttl: Annotated[int, titled(unit=duration)]
    read_delay: Annotated[float, titled(unit=duration)]
    created: Annotated[float, titled(unit=instant)]
    store: str
    guarantee: str
    acknowledgement: Annotated[Acknowledgement, titled("acknowledged means", lambda a, _: f"{a.level}: {a.text}")]
    horizon: Annotated[Id, titled("readable until", id_time)]
    count: Annotated[Count, titled("messages", format_estimate())]
    exact: bool
    partition_info: dict[int, PartitionInfo]


class Hello(Struct, frozen=True, tag_field="status", tag="ok"):
    """The service at an address.

    Example:
        >>> hello = client.hello()
        >>> hello.store, len(hello.id)
        ('sqlite', 32)

    Attributes:
        version: Version of the service.
        store: ``sqlite`` or ``cassandra``.
        id: Identifies the store, the same under every address; 32 hex digits.
        links: Paths or path templates, by name.
    """

    version: str
    store: str
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
    links: dict[str, str] = {}
    name: Literal["queuey"] = "queuey"


class PartitionExplanation(PartitionInfo, frozen=True, kw_only=True):
    """The messages of a partition, and how much of them readers see now.

    Attributes:
        shown: The part that range reads show, as a clause.
        claimed: Messages that a worker has; null if the queue cannot be claimed from.
        waiting: Messages that were delivered before and wait for the next delivery; null likewise.
        retrying: Messages that were released with a delay that is not over; null likewise.
    """

    shown: Annotated[str, titled("reads show")]
    claimed: Count | None
    waiting: Annotated[Count | None, titled("to deliver again")]
    retrying: Count | None = None


class QueueExplanation(Struct, frozen=True, kw_only=True, tag_field="status", tag="ok"):
    """The settings that affect reads and claims of a queue, and what readers see now.

    Example:
        >>> explanation = client.explain_queue("orders")
        >>> explanation.sentences[0], explanation.partitions[1].shown
        ('Queue orders of queuey: 1 partition, user.', 'all')

    Attributes:
        sentences: The explanation, for people.
        queue: Fields and counts of the queue.
        claims: Claimed and waiting messages; null if the queue cannot be claimed from.
        backlog: Messages by state; null likewise.
        claims_refused: Why the queue cannot be claimed from; null if it can.
        groups: Offsets and lag of the first consumer groups, by name.
        partitions: The messages of each partition.
    """

    sentences: tuple[str, ...]
    queue: QueueInfo
    claims: ClaimCounts | None
    backlog: Backlog | None
    claims_refused: str | None
    groups: tuple[Offsets, ...]
    partitions: dict[int, PartitionExplanation]
