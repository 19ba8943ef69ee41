"""What a worker of an experiment is told, by one environment variable that its child processes inherit."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

VARIABLE = "QDO_FAULTS_JOB"

Runs = Literal["threads", "tasks", "processes"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A worker.

    Attributes:
        worker: Its name, that of no other process.
        member: The name that it keeps over restarts; None: none.
        coordination: URL of the coordination service; empty: the group is one of the service.
        group: The group.
        session_timeout: In seconds.
        service, application, key: Where the queues are.
        patterns: Of the queues' names.
        journal: The file to write records to.
        runs: Where its handlers run.
        rest: Seconds that a handler takes.
        slice: Seconds that a handler should have messages in hand for.
        revoke_timeout: Of the consumer, in seconds.
        grace: Seconds for which static members keep their partitions.
        attempts: Max attempts at a message, those included that ended with their worker; 0: no limit.
        fenced: Its commits are fenced. A run must notice when they are not.
        stop_at: It stops itself before this commit; 0: never.
    """

    worker: str
    coordination: str
    group: str
    session_timeout: float
    service: str
    application: str
    key: str
    patterns: tuple[str, ...]
    journal: str
    member: str | None = None
    runs: Runs = "threads"
    rest: float = 0.002
    slice: float = 0.2
    revoke_timeout: float = 10.0
    grace: float = 0.0
    attempts: int = 5
    fenced: bool = True
    stop_at: int = 0


def to_environment(job: Job) -> dict[str, str]:
    """Returns what to add to the environment of a worker."""
    return {VARIABLE: msgspec.json.encode(job).decode()}


def from_environment() -> Job:
    """Returns what this process was told."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Job)
