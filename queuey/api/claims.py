"""Claims: a message is delivered to one caller until it is acknowledged or released, or its claim expires."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from queuey.api.jobs import MAX_RESULT, MAX_RESULTS
from queuey.api.messages import QueueReadError, ReadMessage
from queuey.api.values import Count, Id, Partition, Partitions, Wait, one_line_text
from queuey.model.deadletters import Attempt
from queuey.model.texts import format_count
from queuey.model.time_parsing import format_duration, format_instant
from queuey.model.titles import age, instant, titled

MAX_CLAIMS = 1000
MAX_QUEUES = 10
MAX_WORKER, MAX_ERROR, MAX_TEXT = 64, 200, 4096
"""Max characters of a worker's name, and of the error and the text of a reason."""
MAX_WITH_REASON = 100
"""Max receipts in a release with a reason, which is recorded for each of them."""
MAX_STATES, MAX_STATE = 100, 4096
"""Max jobs in a request that sets or shows states, each a separate write or read; and max bytes of a state."""
MAX_NESTED = 100
"""Max nesting depth of a state, because JSON parsers fail at some depth."""
MAX_CLAIM = 43_200
"""Max length of a claim, in seconds."""
DEFAULT_CLAIM = 30.0
DEFAULT_CLAIMS = 10
DEFAULT_COUNTED = 10_000
MAX_COUNTED = 100_000
"""Max messages that a request counts exactly."""

ClaimReceipt = Annotated[str, Meta(max_length=100, description="Identifies a claim; return it unchanged")]
Receipts = Annotated[list[ClaimReceipt], Meta(max_length=MAX_CLAIMS)]
Results = Annotated[
    dict[ClaimReceipt, Any],
    Meta(
        max_length=MAX_RESULTS,
        description="Results of acknowledged jobs by receipt: any JSON value, null for none. Results of more than "
        f"{MAX_RESULT} bytes are not kept",
    ),
]
TooLarge = Annotated[
    dict[ClaimReceipt, Count],
    Meta(max_length=MAX_RESULTS, description="Bytes of results that are not sent because they are too large"),
]
Pause = Annotated[float, Meta(ge=0, le=MAX_CLAIM, description="Seconds")]


class LimitQuery(Struct, frozen=True, kw_only=True):
    """The number of messages to show."""

    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIMS, description="Max messages")] = DEFAULT_CLAIMS


class JobsQuery(LimitQuery, frozen=True, kw_only=True):
    """The jobs to show."""

    states: Annotated[
        bool,
        Meta(
            description="Show the states that workers have set, the task of each job and its last failed attempt; "
            f"`limit` is then at most {MAX_STATES}"
        ),
    ] = False


class CountQuery(Struct, frozen=True, kw_only=True):
    """The number of messages to count."""

    limit: Annotated[int, Meta(ge=1, le=MAX_COUNTED, description="Max messages to count; the rest is estimated")] = (
        DEFAULT_COUNTED
    )


class SeveralClaimsQuery(LimitQuery, frozen=True, kw_only=True):
    """Options of a claim."""

    ttl: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_CLAIM,
            description="Seconds for which no other caller gets the messages; 0 shows messages without claiming them",
        ),
    ] = DEFAULT_CLAIM
    wait: Wait = 0.0
    worker: Annotated[str, one_line_text(MAX_WORKER, "Name of the caller, shown in reasons and by `explain`")] = ""
    states: Annotated[
        bool, Meta(description=f"Show the last state of up to {MAX_STATES} messages that were delivered before")
    ] = False


class ClaimQuery(SeveralClaimsQuery, frozen=True, kw_only=True):
    """Options of a claim from one queue."""

    partitions: Partitions | None = None


class ClaimRequest(ClaimQuery, frozen=True, kw_only=True):
    """Receipts to acknowledge before the claim, and options that are not in the query."""

    acknowledge: Receipts | None = None
    results: Results | None = None
    too_large: TooLarge | None = None


class ClaimOfSeveral(SeveralClaimsQuery, frozen=True, kw_only=True):
    """Queues in order of preference, receipts by queue to acknowledge before the claim, and options."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=MAX_QUEUES)]
    acknowledge: dict[str, Receipts] | None = None
    results: Results | None = None
    too_large: TooLarge | None = None


class SomeReceipts(Struct, frozen=True):
    """Claims to end."""

    receipts: Receipts


class ReceiptsWithResults(SomeReceipts, frozen=True):
    """Claims to end, and the results of their jobs."""

    results: Results | None = None
    too_large: TooLarge | None = None


class Renewal(SomeReceipts, frozen=True):
    """Claims to extend until ``ttl`` seconds from now; 0 releases them."""

    ttl: Pause = DEFAULT_CLAIM


class ReleaseReason(Struct, frozen=True):
    """The reason for a failure: class and text of the error. A request with a reason has up to 100 receipts."""

    error: Annotated[str, one_line_text(MAX_ERROR)] | None = None
    text: Annotated[str, Meta(max_length=MAX_TEXT)] | None = None


class Release(SomeReceipts, frozen=True):
    """Claims to end ``delay`` seconds from now; by default at once, or with a reason after the queue's ``backoff``.

    Attributes:
        retry: If false, the messages become dead letters; up to 100 receipts in a request.
        begun: If false, work on the messages has not begun, or was stopped, so the deliveries do not count as attempts;
            at most 10 times for a message.
    """

    delay: Pause | None = None
    reason: ReleaseReason | None = None
    retry: Annotated[bool, Meta(extra={"exact": True})] = True
    begun: Annotated[bool, Meta(extra={"exact": True})] = True


class States(Struct, frozen=True):
    """States of claimed messages by receipt: any JSON value of up to 4,096 bytes."""

    states: Annotated[dict[ClaimReceipt, Any], Meta(max_length=MAX_STATES)]


class Settlement(Struct, frozen=True, omit_defaults=True):
    """The result of a receipt. ``superseded``: the message was delivered again, moved, replaced or dead-lettered.

    Attributes:
        cancelled: The job was cancelled, and its worker should stop. Only after a renewal.
    """

    receipt: str
    status: Literal["ok", "superseded"]
    expires: float | None = None
    cancelled: bool = False


class Settled(Struct, frozen=True, tag_field="status", tag="ok"):
    """The results of the receipts, in the order of the request."""

    results: list[Settlement]


class ClaimedMessage(ReadMessage, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A message that only the caller has claimed.

    Attributes:
        deliveries: Number of this attempt: the deliveries so far, without deliveries that were given back before work
            on the message began.
        expires: End of the claim, in seconds since 1970, by the server's clock.
        handed_out: Number of all deliveries, including this one; absent if it is that of the attempt.
        suspected: An earlier claim expired: perhaps the message has ended its worker. So it is the only one in the
            answer; handle no other message beside it.
        state: The last state that the worker of an earlier delivery has set, if any. Only with ``states``.
    """

    receipt: ClaimReceipt
    deliveries: Count
    expires: float
    handed_out: Count = 0
    suspected: bool = False
    state: Any = UNSET


class ClaimedMessages(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="status", tag="ok"):
    """Claimed messages, the oldest first.

    Attributes:
        acknowledged: The results of the acknowledged receipts, in the order of the request.
        result_ttl: Seconds for which the queue keeps results of jobs; absent if it does not keep results.
    """

    messages: tuple[ClaimedMessage, ...]
    acknowledged: tuple[Settlement, ...] = ()
    result_ttl: Count = 0


class ClaimsOfOne(ClaimedMessages, frozen=True, kw_only=True, omit_defaults=True, tag_field="status", tag="ok"):
    """Messages of the first queue that has any, and its name; null if no queue has messages.

    Attributes:
        refused: Errors of queues that the caller cannot claim from: missing queues, and queues it has no right to.
    """

    queue_name: str | None
    refused: tuple[QueueReadError, ...] = ()


class PartitionClaims(Struct, frozen=True):
    """Messages of one partition that were delivered and not acknowledged. Each message counts once.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> claimed = jobs.receive(1)
        >>> jobs.counts().partitions[1].claimed
        1

    Attributes:
        claimed: Messages that a worker has.
        waiting: Released messages, and messages whose claims have expired; they are delivered next.
        retrying: Messages released with a delay that is not over.
    """

    claimed: Count
    waiting: Count
    retrying: Count = 0


class ClaimCounts(Struct, frozen=True, tag_field="status", tag="ok"):
    """Messages that were delivered and not acknowledged, in all partitions and by partition.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> claimed = jobs.receive(2)
        >>> counts = jobs.counts()
        >>> counts.claimed, counts.waiting
        (2, 0)
    """

    claimed: Count
    waiting: Count
    partitions: dict[int, PartitionClaims]
    retrying: Count = 0


class QueueSize(Struct, frozen=True, tag_field="status", tag="ok"):
    """The number of unacknowledged messages of a queue. If ``exact`` is false, it is estimated.

    Example:
        >>> size = client.job_queue("orders").size()
        >>> size.size, size.exact
        (2, True)
    """

    size: Count
    exact: bool


class Backlog(Struct, frozen=True, tag_field="status", tag="ok"):
    """The messages of a queue, counted by state: a job is waiting, delayed, claimed or retrying.

    Example:
        >>> backlog = client.job_queue("orders").backlog()
        >>> backlog.waiting, backlog.claimed, backlog.failed
        (2, 0, 0)

    Attributes:
        waiting: Messages that a claim could get now.
        exact: If false, ``waiting`` and ``delayed`` are estimated.
        delayed: Messages that are not due yet.
        claimed: Messages that a worker has.
        failed: Waiting messages that were delivered before.
        dead: Messages in ``<queue>.dead``, and dead letters that are still being stored.
        oldest: Time of the oldest unfinished message, in seconds since 1970; None if all are done.
        due: Time when the next delayed message is due, in seconds since 1970; None if no message is delayed.
        retrying: Messages that failed, or were released, with a delay that is not over; after it they wait again.
        publishing: Dead letters that are still being stored. If the process that did so has ended, the next one does it
            within 15 seconds after its start.
    """

    waiting: Count
    exact: bool
    delayed: Count
    claimed: Count
    failed: Count
    dead: Count
    oldest: Annotated[float | None, titled(unit=age)]
    due: Annotated[float | None, titled(unit=instant)]
    retrying: Count = 0
    publishing: Count = 0


def backlog_text(backlog: Backlog, now: float) -> str:
    """Returns a backlog as one line of text; ``now`` is in seconds since 1970."""
    age = (
        ""
        if backlog.oldest is None
        else f"; the oldest is {format_duration(round(max(0.0, now - backlog.oldest)))} old"
    )
    about = "" if backlog.exact else "about "
    due = "" if backlog.due is None else f" (the next is due at {format_instant(backlog.due)})"
    return (
        f"{about}{backlog.waiting} waiting ({backlog.failed} failed before), {backlog.delayed} delayed{due}, "
        f"{backlog.claimed} claimed, {backlog.retrying} retrying, {format_count(backlog.dead, 'dead letter')}{age}"
    )


JobStatus = Literal["claimed", "retrying", "waiting"]


class DeliveredJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that was delivered and not acknowledged.

    Attributes:
        deliveries: Number of attempts: deliveries that were given back before work began do not count.
        status: ``claimed``; ``retrying``: released with a delay that is not over; ``waiting``: its claim has ended.
        worker: Name of its present or last worker.
        expires: End of the claim, or of the delay of its release, in seconds since 1970; null if it has ended.
        handed_out: Number of all deliveries.
        state: The state that its worker has set, or null. Only with ``states``.
        state_at: When the state was set, in seconds since 1970, or null. Only with ``states``.
        task, arguments: Name of the task that it calls, if any, and a short form of the arguments. Only with
            ``states``.
        failure: The last failed attempt, if any, with at most 200 characters of its text. Only with ``states``.
    """

    message_id: Id
    partition: Partition
    deliveries: Count
    handed_out: Count
    status: JobStatus
    worker: str
    expires: float | None
    state: Any = UNSET
    state_at: float | UnsetType | None = UNSET
    task: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    failure: Attempt | UnsetType = UNSET


class DeliveredJobs(Struct, frozen=True, tag_field="status", tag="ok"):
    """Delivered messages, sorted by the end of their claims; ended claims come first."""

    jobs: list[DeliveredJob]


class CancelledJob(Struct, frozen=True, tag_field="status", tag="ok"):
    """The result of a cancellation.

    Attributes:
        job: ``removed``: it was waiting, and is no longer delivered; ``claimed``: its worker is asked to stop, and it
            is not delivered again; ``done``: it was already done or removed.
    """

    job: Literal["removed", "claimed", "done"]


class RetriedJob(Struct, frozen=True, tag_field="status", tag="ok"):
    """The result of a retry.

    Attributes:
        job: ``waiting``: the next claim can get it; ``claimed``: a worker has it, and nothing was changed; ``done``: it
            is done or removed.
    """

    job: Literal["waiting", "claimed", "done"]
