"""The interface between a worker and the source of its messages: the partitions of a group, or claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from random import random
from typing import Any, Literal, NamedTuple, Protocol

from qdo.partitions import Partition, join_first
from qdo.settings import WorkerSettings
from qdo.worker.failure import Decision, ExitCode, Failure, SkipMessage, StopTheWorker, decide
from qdo.worker.handlers import Hooks, TaskHandler
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.runs import Delivery, Executor
from queuey.client import Message

logger = logging.getLogger("qdo.worker")

REFUSED_PAUSE_SECONDS = 1.0
"""Interval before the next request after the service has refused to deliver messages, in seconds."""
_MAX_SHOWN = 5
"""Max partitions named in a log record."""


class Handling(NamedTuple):
    """The worker as its source sees it.

    The methods ``record_...`` count messages and call the hooks ``failed``, ``retrying`` and ``dead``.

    Attributes:
        handler: What it calls with messages.
        runner: Runs the handler.
        stop_requested: Set when the worker should stop.
        changed: Called when more messages may be taken, or the state has changed.
        end: Ends the worker because of a failure.
        stop: Ends the worker with an exit code.
        lag_shown: Whether to measure the lag.
    """

    handler: TaskHandler
    runner: Executor
    settings: WorkerSettings
    hooks: Hooks
    metrics: WorkerMetrics
    stop_requested: asyncio.Event
    changed: Callable[[], None]
    end: Callable[[StopTheWorker, Failure], None]
    stop: Callable[[int], None]
    lag_shown: bool

    def decide_failure(self, settings: WorkerSettings, place: Delivery, message: Message, failure: Failure) -> Decision:
        """Returns what to do with a message after a failed attempt.

        Counts the failure and calls the hook ``failed``, unless the worker ends for a reason other than its settings.
        Logs a skipped message, and a failure that ends the worker. The caller records retries, skips and dead letters.
        """
        decision = decide(settings, place.partition.queue.name, failure, place.attempt, random())  # noqa: S311 - spreads load
        if not isinstance(decision, StopTheWorker) or decision.why == "message":
            self.record_failed_attempt(place, message, failure)
        if isinstance(decision, StopTheWorker) and decision.why != "asked":
            self.report(logging.CRITICAL, place, message, failure, "ends the worker: %s")
        elif isinstance(decision, SkipMessage):
            text = "given up after %d attempts and skipped, because %s: %s"
            self.report(logging.ERROR, place, message, failure, text, place.attempt, decision.reason)
        return decision

    def report(
        self, level: int, place: Delivery, message: Message, failure: Failure, text: str, *arguments: object
    ) -> None:
        """Logs a failure with ``queue``, ``partition``, ``message_id``, ``attempt`` and ``error`` as fields.

        If the message calls a task, the text begins with the call, and ``task`` and ``arguments`` are fields, too. The
        failure is the last argument of the text. The first attempt, and each failure at level ERROR or above, are
        logged with the traceback, which is only text because the error may have been raised in another process.
        """
        if not logger.isEnabledFor(level):
            return
        fields = {
            "queue": place.partition.queue.name,
            "partition": place.partition.number,
            "message_id": message.id,
            "attempt": place.attempt,
            "error": failure.kind,
        }
        if (call := self.handler.call_of(message)) is not None:
            fields, text, arguments = fields | call._asdict(), f"%s: {text}", (call, *arguments)
        file, line, function, _ = logger.findCaller(stacklevel=2)
        record = logger.makeRecord(
            logger.name, level, file, line, text, (*arguments, failure), None, function, extra=fields
        )
        if place.attempt == 1 or level >= logging.ERROR:
            record.exc_text = failure.trace.rstrip() or None
        logger.handle(record)

    def count_message(self, name: str, queue: str, message: Message) -> None:
        task = self.handler.task_of(message)
        self.metrics.count(name, queue, "" if task is None else task.name)

    def record_failed_attempt(self, place: Delivery, message: Message, failure: Failure) -> None:
        self.count_message("failed", place.partition.queue.name, message)
        self.hooks.call("failed", message, place, failure)

    def record_retry(self, place: Delivery, message: Message, failure: Failure, seconds: float) -> None:
        self.count_message("retried", place.partition.queue.name, message)
        self.hooks.call("retrying", message, place, failure, seconds)

    def record_given_up(
        self, place: Delivery, message: Message, failure: Failure, outcome: Literal["dead", "skipped"]
    ) -> None:
        """Counts a message that is skipped or becomes a dead letter, and calls the hook ``dead`` in both cases."""
        self.count_message(outcome, place.partition.queue.name, message)
        self.hooks.call("dead", message, place, failure)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - as the function has them
        """Calls a function. An error ends the worker."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.end_after_error(error)

    def end_after_error(self, error: BaseException) -> None:
        """Ends the worker after an internal error in a callback, which the loop would only log."""
        logger.critical("the worker ends because of an internal error", exc_info=error)
        self.end(StopTheWorker("error"), Failure.of(error))


def end_if_refused(handling: Handling, seconds: float) -> None:
    """Records for how long the service has refused the credential; ends the worker after ``stalled_after`` seconds."""
    handling.metrics.refused = seconds
    if seconds >= handling.settings.stalled_after:
        text = "the worker ends: for %.0f s the service has refused its credential. Use a key for its queues"
        logger.critical(text, seconds)
        handling.stop(ExitCode.FAILED)


class Source(Protocol):
    """Gets the messages of a worker, runs them in handlers, and records progress."""

    async def start(self) -> None:
        """Prepares to take messages, without a timeout.

        Raises:
            MissingRights: The credential lacks rights that the settings need.
            QdoError, ClientError: The worker could not join its group, or the service refused a request.
        """

    async def take(self) -> bool:
        """Starts as many messages as there are free handlers, or waits for messages.

        Returns:
            False if no message may start before the state has changed, because no handler is free.
        """

    def wake(self) -> None:
        """Ends the wait of :meth:`take`."""

    def background_tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the background tasks. They run until they are cancelled."""

    async def drain(self, patience: float) -> bool:
        """Finishes and records the running messages within ``patience`` seconds, and releases all others.

        Returns:
            False if messages were not finished or not recorded.
        """

    async def wait_until_ended(self, deadline: float) -> None:
        """Waits for handlers that were given up, until a deadline by the loop's clock."""

    async def close(self) -> None:
        """Leaves the group or releases the claims. Unrecorded messages will be handled again."""

    async def close_all(self) -> None:
        """Closes the client and the coordinator."""


class OwnershipReports:
    """Logs and counts partitions that are assigned, revoked or lost; those of one turn of the loop together.

    Args:
        metrics: The worker's metrics.
        count: Returns the number of owned partitions.
    """

    def __init__(self, metrics: WorkerMetrics, count: Callable[[], int]) -> None:
        self._metrics = metrics
        self._count = count
        self._changes: dict[tuple[str, int], set[Partition]] = {}

    def add(self, change: str, partitions: Iterable[Partition], level: int) -> None:
        if not self._changes:
            asyncio.get_running_loop().call_soon(self._report)
        self._changes.setdefault((change, level), set()).update(partitions)

    def _report(self) -> None:
        changes, self._changes = self._changes, {}
        for (change, level), partitions in changes.items():
            shown = join_first(partitions, _MAX_SHOWN, lambda partition: f"{partition.queue.name}/{partition.number}")
            text, extra = "%d partition%s %s: %s", {"partitions": sorted(map(str, partitions))}
            logger.log(level, text, len(partitions), "s" * (len(partitions) != 1), change, shown, extra=extra)
            self._metrics.record_ownership_change(change, len(partitions))
            if change != "assigned":
                self._metrics.lag = {place: lag for place, lag in self._metrics.lag.items() if place not in partitions}
        self._metrics.owned = self._count()
