"""The settings of a consumer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from qdo.checked_settings import CheckedSettings

MIB = 1024 * 1024
LONGEST_WAIT = 20.0
"""Seconds that the service holds a read open at most."""
LARGEST_PAGE = 1000
"""Messages that the service gives of one partition at most."""

Start = Literal["earliest", "latest"]


class ConsumerSettings(CheckedSettings, frozen=True, kw_only=True):
    """The settings of a consumer. Durations are seconds.

    Example:
        >>> from qdo import ConsumerSettings
        >>> ConsumerSettings(start="latest", commit_every=5).commit_every
        5

    Attributes:
        start: Where partitions without an offset begin: at the oldest message (``earliest``), or after the last one at
            the time of the assignment (``latest``). In the second case this position is recorded before any message is
            returned.
        page: Messages of one partition in one read, up to 1000.
        prefetch_messages: Messages that may be fetched in advance, over all partitions. A quarter is reserved, in equal
            parts, for partitions without fetched messages, so that slow partitions do not starve other ones. Answers
            that are being received are not counted.
        prefetch_bytes: Bytes of bodies that may be fetched in advance; every partition may have one message.
        wait: Seconds for which the service holds a read open, up to 20.
        discover: Seconds between searches for new queues and partitions.
        settle: Seconds for which the leader collects further changes before it makes an assignment; after a quiet time
            the first change does not wait.
        grace: Seconds for which a static member that is away keeps its partitions.
        revoke_timeout: Seconds that ``on_revoke`` may take before the partition is released in any case.
        commit_every: Seconds between automatic commits; None: there are none. Messages that poll returned count as
            processed when poll is called again without skipping their partition.
        mirror: Also record the offsets in the service, so that it shows the lag.
    """

    start: Start = "earliest"
    page: Annotated[int, Meta(ge=1, le=LARGEST_PAGE)] = LARGEST_PAGE
    prefetch_messages: Annotated[int, Meta(ge=1)] = 5000
    prefetch_bytes: Annotated[int, Meta(ge=1)] = 16 * MIB
    wait: Annotated[float, Meta(gt=0, le=LONGEST_WAIT)] = LONGEST_WAIT
    discover: Annotated[float, Meta(gt=0)] = 30.0
    settle: Annotated[float, Meta(ge=0)] = 0.05
    grace: Annotated[float, Meta(ge=0)] = 0.0
    revoke_timeout: Annotated[float, Meta(gt=0)] = 30.0
    commit_every: Annotated[float, Meta(gt=0)] | None = None
    mirror: bool = False
