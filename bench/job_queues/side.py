"""What a job queue offers to be measured; each module beside this one that speaks to one has a ``side()``."""

from __future__ import annotations

from typing import Protocol

QUEUE = "bench"
"""Of all jobs."""
POSTGRES, REDIS = "BENCH_POSTGRES", "BENCH_REDIS"
"""Variables with the addresses of the servers."""
FILE, RIVER = "BENCH_FILE", "BENCH_RIVER"
"""Variables with the file of those that need no server, and the program that speaks to River."""


class Side(Protocol):
    """Sends jobs of one system, and counts those that are not done."""

    bulk: bool
    """Whether the system has a call for many jobs."""

    def reset(self) -> None:
        """Removes all jobs."""

    def send(self, task: str, *arguments: float) -> None:
        """Sends one job; it is on the disk when this returns."""

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Sends jobs that are alike, by the system's own call for many."""

    def pending(self) -> int:
        """Returns how many jobs wait or run, or are not acknowledged yet."""
