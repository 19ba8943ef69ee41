"""What can be chosen about a consumer."""

from __future__ import annotations

from typing import Literal

import msgspec

from qdo.errors import InvalidArgument

MIB = 1024 * 1024
LONGEST_WAIT = 20.0
"""Seconds that the service holds a read open at most."""
LARGEST_PAGE = 1000
"""Messages that the service gives of one partition at most."""

Start = Literal["earliest", "latest"]


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be chosen about a consumer.

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
    page: int = LARGEST_PAGE
    prefetch_messages: int = 5000
    prefetch_bytes: int = 16 * MIB
    wait: float = LONGEST_WAIT
    discover: float = 30.0
    settle: float = 0.05
    grace: float = 0.0
    revoke_timeout: float = 30.0
    commit_every: float | None = None
    mirror: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot work.

        Raises:
            InvalidArgument: Names the setting.
        """
        _demand(self.start in {"earliest", "latest"}, "start", "is 'earliest' or 'latest'")
        _demand(1 <= self.page <= LARGEST_PAGE, "page", f"is 1 to {LARGEST_PAGE}")
        _demand(self.prefetch_messages >= 1, "prefetch_messages", "is at least 1")
        _demand(self.prefetch_bytes >= 1, "prefetch_bytes", "is at least 1")
        _demand(0 < self.wait <= LONGEST_WAIT, "wait", f"is above 0 and at most {LONGEST_WAIT:g} seconds")
        _demand(self.discover > 0, "discover", "is above 0 seconds")
        _demand(self.settle >= 0, "settle", "is not negative")
        _demand(self.grace >= 0, "grace", "is not negative")
        _demand(self.revoke_timeout > 0, "revoke_timeout", "is above 0 seconds")
        _demand(self.commit_every is None or self.commit_every > 0, "commit_every", "is above 0 seconds, or None")


def _demand(met: bool, name: str, rule: str) -> None:  # noqa: FBT001 - what is demanded
    if not met:
        raise InvalidArgument(f"{name} {rule}")
