"""How long handlers have been running, and how runs end that went wrong."""

from __future__ import annotations

import asyncio
import logging

from qdo.errors import TimeLimit
from qdo.partitions import Partition
from qdo.worker.dispatch.partition_work import MessageRun
from qdo.worker.failure import Failure, RunResult

logger = logging.getLogger("qdo.worker")

STOPPING_SECONDS = 5.0
"""For a handler that was cancelled to end."""
_LONG = 60.0
"""Seconds for which a handler has had a message when the log says so first."""


def age_of(run: MessageRun, partition: Partition, now: float) -> float:
    """Returns how long a run has been handling its present message, as far as is known; logs it if that is long."""
    if run.handled != run.seen or not run.begun:
        run.seen, run.since, run.told = run.handled, now, 0.0
    age = now - run.since
    if age >= max(_LONG, 2 * run.told) and run.seen < len(run.messages):
        run.told = age
        message = run.messages[run.seen]
        fields = {"queue": partition.queue.name, "partition": partition.number, "message_id": message.id}
        text = "a handler has been running with message %s of %s for %.0f s"
        logger.warning(text, message.id, partition, age, extra=fields)
    return age


def too_long(seconds: float) -> Failure:
    """Returns the failure of a handler that did not end."""
    return Failure.of(TimeLimit(f"the handler did not come to an end in {seconds:g} s"))


def outcome(future: asyncio.Future[RunResult]) -> RunResult:
    """Returns how a run ended, also if that went wrong: then nothing of it counts."""
    if future.cancelled():
        return RunResult(0)
    error = future.exception()
    if error is None:
        return future.result()
    logger.critical("messages were not handled because of an internal error", exc_info=error)
    failure = Failure.of(error)
    return RunResult(0, Failure(failure.kind, failure.text, failure.trace, failure.kinds, "exit"))
