"""The options of a worker in an experiment: one environment variable that its child processes inherit."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

VARIABLE = "QDO_FAULTS_JOB"

Runs = Literal["threads", "tasks", "processes"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a worker.

    Attributes:
        worker: Its name, unique to the process.
        member: The name that it keeps over restarts, or None.
        coordination: URL of the coordination service; empty for a group of the service.
        group: The group.
        session_timeout: Session timeout in seconds.
        service, application, key: The service with the queues.
        patterns: Patterns of the queues' names.
        journal: The file to write records to.
        runs: The executor of its handlers.
        rest: Seconds that a handler takes.
        slice: The target duration of a run, in seconds.
        revoke_timeout: Seconds that the consumer has for a revocation.
        grace: Seconds for which static members keep their partitions.
        attempts: Max attempts at a message, including those that ended with their worker; 0 for no limit.
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


def to_environment(job: Job) -> dict[str, str]:
    return {VARIABLE: msgspec.json.encode(job).decode()}


def from_environment() -> Job:
    return msgspec.json.decode(os.environ[VARIABLE], type=Job)
