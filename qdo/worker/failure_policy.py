"""What becomes of a message that failed. Pure: the decision, not the deed."""

from __future__ import annotations

from typing import Literal, NamedTuple

from qdo.worker.failure import Failure
from qdo.worker.settings import WorkerSettings
from queuey.client.deadletters import holds_dead


class RetryLater(NamedTuple):
    """Try it again after so many seconds; whatever must come after it waits."""

    seconds: float


class DeadLetterIt(NamedTuple):
    """Make it a dead letter, then go on."""


class SkipMessage(NamedTuple):
    """Go on without it.

    Attributes:
        reason: Why, for the log.
    """

    reason: str


class StopTheWorker(NamedTuple):
    """End the worker; the message counts as not handled.

    Attributes:
        why: ``asked``: the handler asked for it. ``message``: the settings say so. ``error``: it can go on no more.
    """

    why: Literal["asked", "message", "error"]


Decision = RetryLater | DeadLetterIt | SkipMessage | StopTheWorker


def decide(settings: WorkerSettings, queue: str, failure: Failure, attempt: int, draw: float) -> Decision:
    """Returns what becomes of a message.

    Args:
        settings: How the worker is to do it.
        queue: Where the message comes from.
        failure: What it met with.
        attempt: How many attempts there have been.
        draw: A random number from 0 to 1.
    """
    if failure.effect != "fail":
        return StopTheWorker("asked" if failure.effect == "stop" else "error")
    retry = settings.retry
    pause = retry.after(attempt, failure.kinds, draw)
    if pause is not None:
        return RetryLater(pause)
    return _at_last(settings, queue, draw * retry.longest(attempt))


def _at_last(settings: WorkerSettings, queue: str, pause: float) -> Decision:
    """Returns what becomes of a message that is not to be tried again."""
    match settings.on_failure:
        case "retry":
            return RetryLater(pause)
        case "stop":
            return StopTheWorker("message")
        case "skip":
            return SkipMessage("the settings say so")
    if holds_dead(queue, settings.dead_queue) and not settings.bury_dead:
        return SkipMessage("it lies in a queue of dead letters already")
    return DeadLetterIt()
