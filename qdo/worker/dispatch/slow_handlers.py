"""How long handlers have been running, and how runs end that went wrong."""

from __future__ import annotations

import asyncio
import logging

from qdo.errors import TimeLimit
from qdo.partitions import Partition
from qdo.worker.dispatch.partition_work import MessageRun
from qdo.worker.executors.in_process import Executor
from qdo.worker.failure import Failure, RunResult

logger = logging.getLogger("qdo.worker")

_STOPPING_SECONDS = 5.0
"""Timeout for a cancelled handler to end, in seconds."""
_LONG = 60.0
"""Min seconds for which a handler has had a message when that is first logged."""


def age_of(run: MessageRun, partition: Partition, now: float) -> float:
    """Returns how long a run has been handling its present message, as far as known; logs it if that is long."""
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
    return Failure.of(TimeLimit(f"the handler did not come to an end in {seconds:g} s"))


def is_stopped(runner: Executor, run: MessageRun, age: float, limit: float) -> bool:
    """Stops a run whose handler takes longer than the limit; returns False if it goes on all the same.

    A run that was stopped before has some time to end.
    """
    again = run.abandoned == run.handled
    if again and age < limit + _STOPPING_SECONDS:
        return True
    run.abandoned = run.handled
    return runner.abandon(run) and not again


def outcome(run: MessageRun, future: asyncio.Future[RunResult], limit: float) -> RunResult:
    """Returns how a run ended. After an internal error nothing of it counts; a run stopped at its limit has failed."""
    if future.cancelled():
        return _stopped(run, RunResult(0), limit)
    error = future.exception()
    if error is None:
        return _stopped(run, future.result(), limit)
    logger.critical("messages were not handled because of an internal error", exc_info=error)
    failure = Failure.of(error)
    return RunResult(0, Failure(failure.kind, failure.text, failure.trace, failure.kinds, "exit"))


def _stopped(run: MessageRun, ran: RunResult, limit: float) -> RunResult:
    if run.abandoned == ran.handled and ran.failure is None:
        return ran._replace(failure=too_long(limit))
    return ran
