"""Jobs by id: their states and results."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from queuey.api.values import Count, Id, Partition, Wait

MAX_RESULT = 16_384
MAX_RESULTS = 100
"""Max results in a request; each is a separate write."""
MAX_JOBS = 100

JobInfoStatus = Literal[
    "waiting",
    "delayed",
    "claimed",
    "retrying",
    "done",
    "failed",
    "expired",
    "removed",
    "superseded",
    "never_seen",
    "unknown",
]
UNFINISHED = frozenset({"waiting", "delayed", "claimed", "retrying"})


class JobsById(Struct, frozen=True, kw_only=True):
    """Options of a request for jobs: seconds to wait until a job ends, and what to show."""

    wait: Wait = 0.0
    states: Annotated[bool, Meta(description="Show the states that workers have set")] = False


class JobInfo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state and the result of a job.

    Example:
        >>> client.send("orders", "two pears").status().status
        'waiting'

    Attributes:
        status: ``waiting``; ``delayed``: not due yet; ``claimed``: a worker has it; ``retrying``: released with a delay
            that is not over; ``done``: acknowledged; ``failed``: a dead letter; ``expired``; ``removed``: deleted, or
            moved to another queue; ``superseded``: replaced by a newer value of its name; ``never_seen``: the queue has
            no such job; or ``unknown``: it ended, and its end is no longer known.
        deliveries: Number of attempts at an unfinished job: deliveries that were given back before work began do not
            count.
        handed_out: Number of all its deliveries.
        worker: Name of its present or last worker.
        expires: End of the claim, or of the delay of the release, in seconds since 1970.
        ended: When it ended, in seconds since 1970, if known.
        result: The result of the acknowledged attempt; null if it had none. Absent if it is no longer known, or was too
            large.
        size: Bytes of a result that was too large to be kept.
        kept: Seconds for which the queue keeps results; only if the end or the result is no longer known.
        error, text: Class and text of the last error of a job that failed or will be retried.
        state: The last state that a worker has set, or null. Only with ``states``.
        state_at: When the state was set, in seconds since 1970, or null. Only with ``states``.
    """

    message_id: Id
    partition: Partition
    status: JobInfoStatus
    deliveries: Count | UnsetType = UNSET
    handed_out: Count | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    expires: float | UnsetType = UNSET
    ended: float | UnsetType = UNSET
    result: Any = UNSET
    size: Count | UnsetType = UNSET
    kept: Count | UnsetType = UNSET
    error: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    state: Any = UNSET
    state_at: float | UnsetType | None = UNSET


class JobInfos(Struct, frozen=True, tag_field="status", tag="ok"):
    """The jobs, in the order of the request."""

    jobs: list[JobInfo]
