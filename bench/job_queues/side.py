"""The interface of a measured job queue; each adapter module in this package has a function ``side()``."""

from __future__ import annotations

from typing import Protocol

QUEUE = "bench"
"""The queue of all jobs."""
POSTGRES, REDIS = "BENCH_POSTGRES", "BENCH_REDIS"
"""Environment variables with the addresses of the servers."""
FILE, RIVER = "BENCH_FILE", "BENCH_RIVER"
"""Environment variables with the file of a serverless system, and the path of River's Go program."""


class Side(Protocol):
    """Sends jobs of one system and counts the unfinished ones."""

    bulk: bool
    """Whether the system has a bulk call."""

    def reset(self) -> None:
        """Removes all jobs."""

    def send(self, task: str, *arguments: float) -> None:
        """Sends one job; it is on disk when the call returns."""

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Sends ``count`` equal jobs with the system's bulk call if it has one, else one by one."""

    def pending(self) -> int:
        """Returns the number of jobs that wait, run, or are not acknowledged; Huey counts only those that wait."""
