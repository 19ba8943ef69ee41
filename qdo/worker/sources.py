"""Where a worker's messages come from: partitions that a group shares out, or claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from random import random
from typing import Any, Literal, NamedTuple, Protocol

from qdo.settings import WorkerSettings
from qdo.worker.failure import (
    CallOf,
    Decision,
    ExitCode,
    Failure,
    RunResult,
    SkipMessage,
    StopTheWorker,
    TaskRetry,
    calls_nothing,
    decide,
)
from qdo.worker.handlers import Hooks, TaskOf
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.runs import Delivery, Executor, MessageRun
from queuey.client import AsyncClient, Message

logger = logging.getLogger("qdo.worker")

REFUSED_PAUSE = 1.0
"""Interval before messages are asked for again after a refusal, in seconds."""


class Handling(NamedTuple):
    """The worker's side of a source.

    Attributes:
        runner: Runs handlers.
        stop_requested: Set when the worker is to stop.
        changed: Called when more messages may be taken again, or the state has changed.
        end: Called when the worker is to end, with the reason.
        stop: Called when the worker is to end because its source has nothing more.
        lag_shown: The lag is to be measured.
        keep_queues: Awaited before the first claim when the worker starts; None: nothing.
        prepare: Run beside the messages when the worker starts; None: nothing.
        retry_of: Returns when a failed message is tried again; None: as the settings or the queue say.
        task_of: Returns the task that a message calls, or None if it calls no known task.
        call_of: Returns the call of a message for the log, or None if it calls no task.
        names_of: Returns the names of the tasks of messages that were handled, or is None if the handler has no tasks.
    """

    runner: Executor
    settings: WorkerSettings
    hooks: Hooks
    metrics: WorkerMetrics
    stop_requested: asyncio.Event
    changed: Callable[[], None]
    end: Callable[[StopTheWorker, Failure], None]
    stop: Callable[[int], None]
    lag_shown: bool
    keep_queues: Callable[[AsyncClient], Coroutine[Any, Any, None]] | None = None
    prepare: Callable[[AsyncClient], Coroutine[Any, Any, None]] | None = None
    retry_of: Callable[[Message, Failure], TaskRetry | None] = lambda _message, _failure: None
    task_of: TaskOf = lambda _message: None
    call_of: CallOf = calls_nothing
    names_of: Callable[[Sequence[Message]], list[str]] | None = None

    def decided(self, settings: WorkerSettings, place: Delivery, message: Message, failure: Failure) -> Decision:
        """Returns what becomes of a message whose attempt has failed; counts the failure and calls the hooks."""
        decision = decide(settings, place.partition.queue.name, failure, place.attempt, random())  # noqa: S311 - spreads load
        if not isinstance(decision, StopTheWorker) or decision.why == "message":
            self.failed(place, message, failure)
        if isinstance(decision, StopTheWorker) and decision.why != "asked":
            self.report(logging.CRITICAL, place, message, failure, "ends the worker: %s")
        elif isinstance(decision, SkipMessage):
            text = "given up after %d attempts and passed over, as %s: %s"
            self.report(logging.ERROR, place, message, failure, text, place.attempt, decision.reason)
        return decision

    def report(
        self, level: int, place: Delivery, message: Message, failure: Failure, text: str, *arguments: object
    ) -> None:
        """Logs a failure with ``queue``, ``partition``, ``message_id``, ``attempt`` and ``error`` as fields.

        If the message calls a task, the text begins with the call, and ``task`` and ``arguments`` are fields, too. The
        failure is the last argument of the text. The first attempt and errors are logged with its traceback; the error
        may have been raised in another process, so there is only its text.
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
        if (call := self.call_of(message)) is not None:
            fields, text, arguments = fields | call._asdict(), f"%s: {text}", (call, *arguments)
        file, line, function, _ = logger.findCaller(stacklevel=2)
        record = logger.makeRecord(
            logger.name, level, file, line, text, (*arguments, failure), None, function, extra=fields
        )
        if place.attempt == 1 or level >= logging.ERROR:
            record.exc_text = failure.trace.rstrip() or None
        logger.handle(record)

    def ran_tasks(self, queue: str, run: MessageRun, ran: RunResult) -> None:
        """Counts the messages of a run that were handled, by task."""
        names = [] if self.names_of is None else self.names_of(run.messages[: ran.handled])
        for task, result in ({names[0]: ran} if len(set(names)) == 1 else ran.by_task(names)).items():
            self.metrics.ran(queue, result, task)

    def count_message(self, name: str, queue: str, message: Message) -> None:
        task = self.task_of(message)
        self.metrics.count(name, queue, "" if task is None else task.name)

    def failed(self, place: Delivery, message: Message, failure: Failure) -> None:
        self.count_message("failed", place.partition.queue.name, message)
        self.hooks.call("failed", message, place, failure)

    def retrying(self, place: Delivery, message: Message, failure: Failure, seconds: float) -> None:
        self.count_message("retried", place.partition.queue.name, message)
        self.hooks.call("retrying", message, place, failure, seconds)

    def given_up(self, place: Delivery, message: Message, failure: Failure, how: Literal["dead", "skipped"]) -> None:
        self.count_message(how, place.partition.queue.name, message)
        self.hooks.call("dead", message, place, failure)

    def broken(self, error: BaseException) -> None:
        """Ends the worker by an internal error, which a callback of the loop would only log."""
        logger.critical("the worker ends because of an internal error", exc_info=error)
        self.end(StopTheWorker("error"), Failure.of(error))


def note_refusal(handling: Handling, seconds: float) -> None:
    """Ends the worker if the service has refused its credential for too long."""
    handling.metrics.refused = seconds
    if seconds >= handling.settings.stalled_after:
        text = "the worker ends: for %.0f s the service has refused its credential. Give it one for its queues"
        logger.critical(text, seconds)
        handling.stop(ExitCode.FAILED)


def end_if_handlers_hang(handling: Handling) -> None:
    """Ends the worker if as many handlers hang as it may run: only the end of the process ends these."""
    if not handling.runner.slots and not handling.stop_requested.is_set():
        logger.critical("the worker ends: as many handlers hang as it runs at a time, and they cannot be stopped")
        handling.stop(ExitCode.FAILED)


class Source(Protocol):
    """The messages of a worker: gets them, has them handled, and records progress."""

    async def start(self) -> None:
        """Gets ready to take messages, however long that takes.

        Raises:
            MissingRights: The credential may not do all that the settings need.
            QdoError, ClientError
        """

    async def take(self) -> bool:
        """Begins as many messages as there are handlers for, or waits for some.

        Returns:
            False: there is no handler free, and no other message may begin before the state has changed.
        """

    def wake(self) -> None:
        """Ends the wait of :meth:`take`."""

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the tasks beside the worker's loop; none of them ends by itself."""

    async def drain(self, patience: float) -> bool:
        """Finishes the running messages, within ``patience`` seconds, and records them; releases everything else.

        Returns:
            False: some were not finished or not recorded.
        """

    async def until_ended(self, deadline: float) -> None:
        """Waits, until a deadline of the loop's clock, for handlers that were given up."""

    async def close(self) -> None:
        """Leaves; messages that are not recorded are handled again."""

    async def close_all(self) -> None:
        """Closes client and coordinator."""
