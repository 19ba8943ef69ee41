"""The settings of a consumer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from qdo.checked_settings import CheckedSettings

MIB = 1024 * 1024
LONGEST_WAIT = 20.0
"""Max seconds that the service holds a read open."""
LARGEST_PAGE = 1000
"""Max messages of one partition in an answer of the service."""

Start = Literal["earliest", "latest"]


class ConsumerSettings(CheckedSettings, frozen=True, kw_only=True):
    """The settings of a consumer. Durations are seconds.

    Example:
        >>> from qdo import ConsumerSettings
        >>> ConsumerSettings(start="latest", commit_every=5).commit_every
        5

    A quarter of ``prefetch_messages`` is reserved, in equal parts, for partitions without fetched messages, so that
    slow partitions do not starve other ones. Answers that are being received are not counted. Every partition may have
    one message beyond ``prefetch_bytes``. Where a group starts at the latest messages, this position is recorded before
    any message is returned. With ``commit_every``, messages that poll returned count as processed when poll is called
    again without skipping their partition.

    Attributes:
        start: Where a group without an offset begins: with the oldest message, or with new messages only.
        page: Messages of one partition in one read, up to 1000.
        prefetch_messages: Messages that a worker fetches in advance, over all partitions.
        prefetch_bytes: Bytes of their bodies.
        wait: Seconds for which the service holds a read open, up to 20.
        discover: Time between two searches for new queues and partitions.
        settle: Seconds for which the leader collects further changes before it makes an assignment; after a quiet time
            the first change does not wait.
        grace: How long members with a ``name`` keep their partitions while they are away; the same for all members.
        revoke_timeout: How long a rebalance waits for a partition that moves. Then the next owner handles its message.
        commit_every: Seconds between automatic commits; None: there are none.
        mirror: Record the offsets in the service too, so that ``queuey offsets show`` shows them.
    """

    start: Start = "earliest"
    page: Annotated[int, Meta(ge=1, le=LARGEST_PAGE)] = LARGEST_PAGE
    prefetch_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 5000
    prefetch_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = 16 * MIB
    wait: Annotated[float, Meta(gt=0, le=LONGEST_WAIT)] = LONGEST_WAIT
    discover: Annotated[float, Meta(ge=0.01, le=3600)] = 30.0
    settle: Annotated[float, Meta(ge=0)] = 0.05
    grace: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    revoke_timeout: Annotated[float, Meta(ge=0.01, le=86_400)] = 30.0
    commit_every: Annotated[float, Meta(gt=0)] | None = None
    mirror: bool = False
