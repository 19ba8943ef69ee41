"""The bodies of version 1 that are about claims; see :mod:`queuey.web.v1.schemas`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from queuey.web.v1.schemas import Count, Done, Id, Partition, ReadMessage, Settlement

Receipt = Annotated[str, Meta(max_length=100, description="names a claim; as it was given, unread")]


class ClaimedMessage(ReadMessage, kw_only=True):
    """A message that is claimed by the caller alone, until ``expires``."""

    receipt: Receipt
    deliveries: Annotated[int, Meta(ge=0, description="number of deliveries, including this one")]
    expires: Annotated[float, Meta(description="seconds since 1970, by the server's clock")]


class Receipts(Struct):
    """Claims that are to end."""

    receipts: Annotated[list[Receipt], Meta(max_length=1000)]


class Renewal(Receipts):
    """Claims that are to last longer: until ``ttl`` seconds from now; 0 releases."""

    ttl: Annotated[float, Meta(ge=0, le=43200, description="seconds")] | None = None


class ReleaseReason(Struct):
    """Why messages could not be handled: a class of error, and what that said; for at most 100 receipts at a time."""

    error: Annotated[str, Meta(max_length=200)] | None = None
    text: Annotated[str, Meta(max_length=4096)] | None = None


class Release(Receipts):
    """Claims that are to end ``delay`` seconds from now; not given: at once, or with a reason as ``backoff`` says."""

    delay: Annotated[float, Meta(ge=0, le=43200, description="seconds")] | None = None
    reason: ReleaseReason | None = None
    retry: Annotated[bool, Meta(description="false: the messages become dead letters; at most 100 at a time")] = True


class States(Struct):
    """How far a worker has come with messages that it has claimed: any JSON of up to 4,096 bytes, by receipt."""

    states: Annotated[dict[Receipt, Any], Meta(max_length=100)]


class ClaimRequest(Struct):
    """What a claim acknowledges, before it claims anything and at once."""

    acknowledge: Annotated[list[Receipt], Meta(max_length=1000)] | None = None


class Claims(Done, kw_only=True, omit_defaults=True):
    """Messages that were claimed, oldest first; none, when there are none.

    ``acknowledged``: what became of the receipts, in the order given, if there were any.
    """

    messages: list[ClaimedMessage]
    acknowledged: list[Settlement] | UnsetType = UNSET


class ClaimOfSeveral(Struct):
    """Queues to claim from, in order of preference, and receipts to acknowledge before that, by queue."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=10)]
    acknowledge: dict[str, Annotated[list[Receipt], Meta(max_length=1000)]] | None = None


class ClaimsOfOne(Claims, kw_only=True):
    """Messages of the first queue that has any; null: none has."""

    queue_name: str | None


class Settled(Done, kw_only=True):
    """What became of the receipts, in the order given."""

    results: list[Settlement]


class PartitionClaims(Struct):
    """Messages of a partition that were delivered and are not acknowledged."""

    claimed: Annotated[int, Meta(ge=0, description="now")]
    waiting: Annotated[int, Meta(ge=0, description="released or expired; they are delivered next")]


class ClaimCounts(Done, kw_only=True):
    """Messages that were delivered and are not acknowledged, in all partitions and in each."""

    claimed: Count
    waiting: Count
    partitions: dict[str, PartitionClaims]


class QueueSize(Done, kw_only=True):
    """How many messages are not acknowledged."""

    size: Count
    exact: Annotated[bool, Meta(description="counted; otherwise estimated")]


class Backlog(Done, kw_only=True):
    """How much of a queue is to be done."""

    waiting: Annotated[int, Meta(ge=0, description="for a claim; delayed messages do not count")]
    exact: Annotated[bool, Meta(description="`waiting` and `delayed` were counted; otherwise they are estimated")]
    delayed: Annotated[int, Meta(ge=0, description="not due yet")]
    claimed: Annotated[int, Meta(ge=0, description="now, or released with a delay that is not over")]
    failed: Annotated[int, Meta(ge=0, description="of those that wait: delivered before")]
    dead: Annotated[int, Meta(ge=0, description="in `<queue>.dead`")]
    oldest: Annotated[float | None, Meta(description="seconds since 1970 of the oldest that is not done")]
    due: Annotated[float | None, Meta(description="seconds since 1970 at which the next that is delayed is due")]


class Job(Struct, kw_only=True, omit_defaults=True):
    """A message that was delivered and is not acknowledged.

    ``state`` and ``state_at``: with ``states`` only.
    """

    message_id: Id
    partition: Partition
    deliveries: Count
    worker: Annotated[str, Meta(description="what the one calls itself that has it, or had it last")]
    expires: Annotated[float | None, Meta(description="seconds since 1970; null: its claim has ended")]
    state: Annotated[Any, Meta(description="what its worker has said of it; null: nothing")] = UNSET
    state_at: Annotated[
        float | UnsetType | None, Meta(description="when it was said, in seconds since 1970; null: it was not")
    ] = UNSET


class Jobs(Done, kw_only=True):
    """They, and those first whose claims have ended or end first."""

    jobs: list[Job]
