"""Claims: a message is delivered to one caller, until it is acknowledged, released or its claim expires."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from queuey.api.jobs import MAX_RESULT, MAX_RESULTS
from queuey.api.messages import QueueReadError, ReadMessage
from queuey.api.values import Count, Id, Partition, Partitions, Wait, line
from queuey.deadletters import Attempt
from queuey.terminal.texts import plural
from queuey.time_parsing import iso, length
from queuey.titles import age, instant, titled

MAX_CLAIMS = 1000
"""Max messages that one request claims, shows or settles."""
MAX_QUEUES = 10
"""Max queues that one request claims from."""
MAX_WORKER, MAX_ERROR, MAX_TEXT = 64, 200, 4096
"""Max characters of a worker's name, and of a reason."""
MAX_WITH_REASON = 100
"""Max receipts that are released with a reason at a time: it is recorded for each."""
MAX_STATES, MAX_STATE = 100, 4096
"""Max jobs whose states are set or shown at a time: each is written and read by itself; and max bytes of a state."""
MAX_NESTED = 100
"""Max objects and lists of a state within each other: readers of JSON give up at some depth."""
MAX_CLAIM = 43_200
"""Max length of a claim, in seconds."""
DEFAULT_CLAIM = 30.0
DEFAULT_CLAIMS = 10
DEFAULT_COUNTED = 10_000
MAX_COUNTED = 100_000
"""Max messages that one request has counted one by one."""

ClaimReceipt = Annotated[str, Meta(max_length=100, description="Names a claim; return it unchanged")]
Receipts = Annotated[list[ClaimReceipt], Meta(max_length=MAX_CLAIMS)]
Results = Annotated[
    dict[ClaimReceipt, Any],
    Meta(
        max_length=MAX_RESULTS,
        description="Results of acknowledged jobs by receipt: any JSON value, null for none. A larger one than "
        f"{MAX_RESULT} bytes is not kept",
    ),
]
TooLarge = Annotated[
    dict[ClaimReceipt, Count],
    Meta(max_length=MAX_RESULTS, description="Bytes of results that are not sent because they are too large"),
]
Pause = Annotated[float, Meta(ge=0, le=MAX_CLAIM, description="Seconds")]


class LimitQuery(Struct, frozen=True, kw_only=True):
    """How many messages to show."""

    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIMS, description="Max messages")] = DEFAULT_CLAIMS


class JobsQuery(LimitQuery, frozen=True, kw_only=True):
    """The jobs to show."""

    states: Annotated[
        bool,
        Meta(
            description="Show the states that workers have set, the task that each calls and the last failed attempt; "
            f"`limit` is then at most {MAX_STATES}"
        ),
    ] = False


class CountQuery(Struct, frozen=True, kw_only=True):
    """How far to count."""

    limit: Annotated[int, Meta(ge=1, le=MAX_COUNTED, description="Max messages to count; the rest is estimated")] = (
        DEFAULT_COUNTED
    )


class SeveralClaimsQuery(LimitQuery, frozen=True, kw_only=True):
    """The claims that are asked for."""

    ttl: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_CLAIM,
            description="Seconds for which no other caller gets the messages; 0: show them, and claim nothing",
        ),
    ] = DEFAULT_CLAIM
    wait: Wait = 0.0
    worker: Annotated[str, line(MAX_WORKER, "Name of the caller, for reasons and `explain`")] = ""
    states: Annotated[
        bool, Meta(description=f"Show the last state of messages delivered before, up to {MAX_STATES} of them")
    ] = False


class ClaimQuery(SeveralClaimsQuery, frozen=True, kw_only=True):
    """The claims that are asked for."""

    partitions: Partitions | None = None


class ClaimRequest(ClaimQuery, frozen=True, kw_only=True):
    """Receipts to acknowledge before any message is claimed, and what is not in the query."""

    acknowledge: Receipts | None = None
    results: Results | None = None
    too_large: TooLarge | None = None


class ClaimOfSeveral(SeveralClaimsQuery, frozen=True, kw_only=True):
    """Queues in order of preference, receipts to acknowledge first, by queue, and what is not in the query."""

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
    """Claims to extend: they end ``ttl`` seconds from now; 0 releases them."""

    ttl: Pause = DEFAULT_CLAIM


class ReleaseReason(Struct, frozen=True):
    """The reason of a failure: a class of error, and its text; for up to 100 receipts at a time."""

    error: Annotated[str, line(MAX_ERROR)] | None = None
    text: Annotated[str, Meta(max_length=MAX_TEXT)] | None = None


class Release(SomeReceipts, frozen=True):
    """Claims to end ``delay`` seconds from now; not given: at once, or with a reason after the queue's ``backoff``.

    Attributes:
        retry: False: the messages become dead letters; up to 100 at a time.
    """

    delay: Pause | None = None
    reason: ReleaseReason | None = None
    retry: Annotated[bool, Meta(extra={"exact": True})] = True


class States(Struct, frozen=True):
    """States of claimed messages by receipt: any JSON value of up to 4,096 bytes."""

    states: Annotated[dict[ClaimReceipt, Any], Meta(max_length=MAX_STATES)]


class Settlement(Struct, frozen=True, omit_defaults=True):
    """The result of a receipt; ``superseded``: its message was delivered again, moved, replaced or is a dead letter.

    Attributes:
        cancelled: The job was cancelled: its worker is asked to stop. Only after a renewal.
    """

    receipt: str
    status: Literal["ok", "superseded"]
    expires: float | None = None
    cancelled: bool = False


class Settled(Struct, frozen=True, tag_field="status", tag="ok"):
    """The results of the receipts, in the order of the request."""

    results: list[Settlement]


class ClaimedMessage(ReadMessage, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A message that is claimed by the caller alone.

    Attributes:
        deliveries: Number of deliveries, including this one.
        expires: End of the claim, in seconds since 1970, by the server's clock.
        state: The last one that an earlier delivery's worker has set. Only with ``states``, and if there is one.
    """

    receipt: ClaimReceipt
    deliveries: Count
    expires: float
    state: Any = UNSET


class Claims(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="status", tag="ok"):
    """Claimed messages, the oldest first.

    Attributes:
        acknowledged: The results of the acknowledged receipts, in the order of the request.
        result_ttl: Seconds for which the queue keeps results of jobs; absent: it keeps none.
    """

    messages: tuple[ClaimedMessage, ...]
    acknowledged: tuple[Settlement, ...] = ()
    result_ttl: Count = 0


class ClaimsOfOne(Claims, frozen=True, kw_only=True, omit_defaults=True, tag_field="status", tag="ok"):
    """Messages of the first queue that has any, and its name; null: none has messages.

    Attributes:
        refused: The errors of queues that the caller cannot claim from: missing ones, and those it has no right to.
    """

    queue_name: str | None
    refused: tuple[QueueReadError, ...] = ()


class PartitionClaims(Struct, frozen=True):
    """Messages of one partition that were delivered and not acknowledged; each counts once.

    Example:
        >>> jobs = client.job_queue("orders")
        >>> claimed = jobs.receive(1)
        >>> jobs.counts().partitions[1].claimed
        1

    Attributes:
        claimed: A worker has them.
        waiting: Released, or their claims have expired; they are delivered next.
        retrying: Released with a delay that is not over. 0 from a service of 0.1.0, which counts them among the others.
    """

    claimed: Count
    waiting: Count
    retrying: Count = 0


class ClaimCounts(Struct, frozen=True, tag_field="status", tag="ok"):
    """Messages that were delivered and are not acknowledged, in all partitions and by partition.

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
    """The number of messages of a queue that are not acknowledged. ``exact``: counted, otherwise estimated.

    Example:
        >>> size = client.job_queue("orders").size()
        >>> size.size, size.exact
        (2, True)
    """

    size: Count
    exact: bool


class Backlog(Struct, frozen=True, tag_field="status", tag="ok"):
    """The messages of a queue, counted by what they wait for: a job is waiting, delayed, claimed or retrying.

    Example:
        >>> backlog = client.job_queue("orders").backlog()
        >>> backlog.waiting, backlog.claimed, backlog.failed
        (2, 0, 0)

    Attributes:
        waiting: Messages that a claim could get now.
        exact: ``waiting`` and ``delayed`` were counted; otherwise they are estimated.
        delayed: Messages that are not due yet.
        claimed: Messages that a worker has.
        failed: Waiting messages that were delivered before.
        dead: Messages in ``<queue>.dead``.
        oldest: Time of the oldest message that is not done, in seconds since 1970; None: there is none.
        due: Time when the next delayed message is due, in seconds since 1970; None: none is delayed.
        retrying: Messages that failed, or were released, with a delay that is not over; then they wait again. 0 from a
            service of 0.1.0, which counts them among the others.
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


def backlog_text(backlog: Backlog, now: float) -> str:
    """Returns a backlog as a clause; ``now`` is in seconds since 1970."""
    age = "" if backlog.oldest is None else f"; the oldest is {length(round(max(0.0, now - backlog.oldest)))} old"
    about = "" if backlog.exact else "about "
    due = "" if backlog.due is None else f" (the next is due at {iso(backlog.due)})"
    return (
        f"{about}{backlog.waiting} waiting ({backlog.failed} failed before), {backlog.delayed} delayed{due}, "
        f"{backlog.claimed} claimed, {backlog.retrying} retrying, {plural(backlog.dead, 'dead letter')}{age}"
    )


JobStatus = Literal["claimed", "retrying", "waiting"]


class Job(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that was delivered and is not acknowledged.

    Attributes:
        status: ``claimed``; ``retrying``: released with a delay that is not over; ``waiting``: its claim has ended.
        worker: Name of its worker, or of its last one.
        expires: End of the claim, or of the delay of its release, in seconds since 1970; null: it has ended.
        state: The state that its worker has set; null: none. Only with ``states``.
        state_at: When it was set, in seconds since 1970; null: never. Only with ``states``.
        task, arguments: Name of the task that it calls, and a short form of the arguments. Only with ``states``, and if
            it calls one.
        failure: The last failed attempt, with at most 200 characters of its text. Only with ``states``, and if there is
            one.
    """

    message_id: Id
    partition: Partition
    deliveries: Count
    status: JobStatus
    worker: str
    expires: float | None
    state: Any = UNSET
    state_at: float | UnsetType | None = UNSET
    task: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    failure: Attempt | UnsetType = UNSET


class Jobs(Struct, frozen=True, tag_field="status", tag="ok"):
    """Delivered messages; those whose claims have ended or end first come first."""

    jobs: list[Job]


class CancelledJob(Struct, frozen=True, tag_field="status", tag="ok"):
    """The result of a cancellation.

    Attributes:
        job: ``removed``: it waited, and is not delivered any more; ``claimed``: its worker is asked to stop, and it is
            not delivered again; ``done``: it was done before, or removed.
    """

    job: Literal["removed", "claimed", "done"]


class RetriedJob(Struct, frozen=True, tag_field="status", tag="ok"):
    """The result of a retry.

    Attributes:
        job: ``waiting``: the next claim can get it; ``claimed``: a worker has it, and nothing was changed; ``done``: it
            is done, or removed.
    """

    job: Literal["waiting", "claimed", "done"]
