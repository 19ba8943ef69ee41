"""What can be chosen about a consumer."""

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
        start: Where partitions begin of which the group has recorded nothing: with the oldest message, or with what
            comes after they were assigned. In the second case that point is recorded before anything is handed out.
        page: Messages of one partition in one read, up to 1000.
        prefetch_messages: Messages that may be held over all partitions. A quarter is set aside, in equal parts, for
            partitions that hold none, so that slow ones do not starve the others; the answers that are under way
            come on top.
        prefetch_bytes: Bytes of bodies that may be held in the same sense; every partition may hold one message.
        wait: Seconds that the service may hold a read open, up to 20.
        discover: Seconds between looks for new queues and partitions.
        settle: Seconds for which the member who shares out gathers changes that follow one another; the first in a
            group at work does not wait.
        grace: Seconds for which a static member that is gone keeps its partitions.
        revoke_timeout: Seconds that ``on_revoke`` may take before a partition is given up all the same.
        commit_every: Seconds between commits of their own accord; None: only when asked. What was handed out counts
            as processed when poll is called again without skipping its partition.
        mirror: Also record commits with Queuey's offsets call, so that lag shows there.
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
