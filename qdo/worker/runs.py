"""Runs of messages: what is run, who runs it, how many messages a run has, how long it takes, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, Self

from qdo.errors import TimeLimit
from qdo.partitions import Partition
from qdo.worker.failure import CallOf, Failure, RunResult
from queuey.client import InvalidArgument, Message
from queuey.client.calls.job_calls import JobResult, encoded_result


class _Place(NamedTuple):
    partition: Partition
    attempt: int


class Delivery(_Place):
    """The partition of a message that is being handled, and the number of the attempt: a pair, with what is known.

    Example:
        >>> from qdo import Delivery, Partition
        >>> partition = Partition.parse("0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70/queuey/orders/2")
        >>> Delivery(partition, attempt=1).attempt
        1

    Attributes:
        partition: The partition, with its queue.
        attempt: From 1 on. Another worker that gets the message begins at 1 again, except after attempts that ended
            with the loss of their worker.
        state: The last one that an earlier attempt has set (:func:`qdo.set_state`), for workers that claim; of a batch
            that of its first message. None if there is no such state.
        cancelled: True once an operator has cancelled the job, which a long task can check between two steps; for
            workers that claim. Whatever the task does, it is not tried again.
    """

    def __new__(cls, partition: Partition, attempt: int, state: Any = None) -> Self:  # noqa: ANN401 - any JSON value
        """Makes one."""
        place = super().__new__(cls, partition, attempt)
        place.state = state
        return place

    state: Any = None
    is_asked_to_stop: Callable[[], bool] | None = None
    """Set where the message is handled."""

    @property
    def cancelled(self) -> bool:
        return self.is_asked_to_stop is not None and self.is_asked_to_stop()


class MessageRun:
    """Messages to be handled one after another, and how far that has come.

    A message that failed before travels alone.

    Attributes:
        accepted: The first of the messages, as many as the executor handles in this run.
        keys: The keys of the messages; empty if messages have none.
        halt: The run ends after the present message; checked before each message.
        handled: Number of messages handled so far.
        seen: ``handled`` at the last check.
        since: When that number last changed, by the loop's clock.
        told: Seconds without progress after which the last warning was logged.
        tell: Called when the run is to end, for executors that cannot check ``halt``.
        begun: A handler works on it.
        cancelled: Its executor has cancelled it.
        abandoned: ``handled`` when a message did not end in time; None: that never happened.
        leaked: The handler did not stop when it was told to.
        settled: Its progress is recorded; later results do not count.
        state: The last state that the handler has set, in any thread: the number of its message, and JSON.
        state_seen: The last state that was passed on.
        to_stop: The numbers of messages whose handlers are asked to stop.
        tell_to_stop: Called with each of these, for executors that cannot check them.
        keeps_results: What the handler returns is the result of its message.
        results: Results by the numbers of their messages.
    """

    __slots__ = (
        "abandoned", "accepted", "attempt", "begun", "cancelled", "halt", "handled", "keeps_results", "keys", "leaked",
        "messages", "results", "seen", "settled", "since", "state", "state_seen", "tell", "tell_to_stop", "to_stop",
        "told",
    )  # fmt: skip

    def __init__(self, messages: Sequence[Message], attempt: int, keys: tuple[Hashable, ...] = ()) -> None:
        self.messages = self.accepted = messages
        self.attempt = attempt
        self.keys = keys
        self.halt = self.begun = self.leaked = self.settled = self.cancelled = False
        self.handled = self.seen = 0
        self.since = self.told = 0.0
        self.tell: Callable[[], None] | None = None
        self.abandoned: int | None = None
        self.state: tuple[int, bytes] | None = None
        self.state_seen: tuple[int, bytes] | None = None
        self.to_stop: frozenset[int] = frozenset()
        self.tell_to_stop: Callable[[int], None] | None = None
        self.keeps_results = False
        self.results: dict[int, JobResult] = {}

    def set_result(self, result: object) -> None:
        """Keeps the result of the present message; one without a JSON form is logged: the work is done all the same."""
        message = self.messages[self.handled]
        try:
            encoded = encoded_result(result)
        except InvalidArgument as error:
            logger.warning("message %s has no result: %s", message.id, error, extra={"message_id": message.id})
        else:
            self.keep_result(encoded)

    def keep_result(self, result: JobResult | None) -> None:
        if result is not None:
            self.results[self.handled] = result

    def is_asked_to_stop(self) -> bool:
        """Returns whether that is so of the present message."""
        return self.handled in self.to_stop

    def ask_to_stop(self, number: int) -> None:
        """Asks the handler of one of the messages to stop."""
        self.to_stop = self.to_stop | {number}
        if self.tell_to_stop is not None:
            self.tell_to_stop(number)

    def set_state(self, state: bytes) -> None:
        self.state = self.handled, state

    def new_state(self) -> tuple[int, bytes] | None:
        """Returns the state of the present message if it is new."""
        state = self.state
        if state is None or state is self.state_seen:
            return None
        self.state_seen = state
        # Threads of a handler may set one when the last message is handled.
        return state if state[0] == self.handled < len(self.messages) else None

    def stop(self) -> None:
        self.halt = True
        if self.tell is not None:
            self.tell()


class Executor(Protocol):
    """Runs messages somewhere, a bounded number of runs at a time."""

    slots: int
    """Max runs at the same moment, hanging ones included; 0 if too many hang, so that the worker must end."""

    async def open(self) -> None:
        """Prepares handlers and their context.

        Raises:
            HandlerError: The handler or its context cannot be used.
        """

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        """Begins a run. The future has its result, whatever happens; it never raises."""

    def abandon(self, run: MessageRun) -> bool:
        """Ends a run whose present message takes too long; may be called twice.

        Returns False if the run goes on; then another one may begin beside it.
        """

    def give_up(self) -> bool:
        """Stops tasks and processes; threads cannot be stopped. Returns True if everything ends soon."""

    async def close(self) -> None:
        """Leaves the context. Nothing is running any more, or was given up."""


_FIRST = 16
_WEIGHT = 0.2
"""Ratio of the latest run in the mean, if it was as long as the aim."""


class BatchSize:
    """Learns how long a message takes, and so how many fill a run of ``seconds``.

    Fast handlers get long runs, because then the cost per run matters most. Slow ones get few messages: another handler
    cannot get those of a run, and a partition that waits for its turn waits for all of them.
    """

    def __init__(self, seconds: float, most: int, first: int = _FIRST) -> None:
        self._seconds = seconds
        self._most = most
        self._first = first
        self._mean: float | None = None

    @property
    def messages(self) -> int:
        if self._mean is None:
            return min(self._first, self._most)
        if self._mean * self._most <= self._seconds:
            return self._most
        return max(1, int(self._seconds / self._mean))

    def ran(self, messages: int, seconds: float) -> None:
        if not messages:
            return
        each = seconds / messages
        if self._mean is None:
            self._mean = each
        else:
            weight = min(1.0, max(_WEIGHT * seconds / self._seconds, 0.02))
            self._mean += weight * (each - self._mean)


logger = logging.getLogger("qdo.worker")

_STOPPING_SECONDS = 5.0
"""Timeout for a cancelled handler to end, in seconds."""
_LONG = 60.0
"""Min seconds for which a handler has had a message when that is first logged."""


def age_of(run: MessageRun, partition: Partition, now: float, call_of: CallOf) -> float:
    """Returns how long a run has been handling its present message, as far as known; logs it if that is long."""
    if run.handled != run.seen or not run.begun:
        run.seen, run.since, run.told = run.handled, now, 0.0
    age = now - run.since
    if age >= max(_LONG, 2 * run.told) and run.seen < len(run.messages):
        run.told = age
        message = run.messages[run.seen]
        fields = {"queue": partition.queue.name, "partition": partition.number, "message_id": message.id}
        text = "a handler has been running with %smessage %s of %s for %.0f s"
        call = call_of(message)
        logger.warning(text, "" if call is None else f"{call}, ", message.id, partition, age, extra=fields)
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
