"""Runs of messages: their state, executors, size, time limit and result."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from qdo.errors import TimeLimit
from qdo.partitions import Partition
from qdo.worker.failure import CallOf, ExitCode, Failure, RunResult
from queuey.client import InvalidArgument, Message
from queuey.client.calls.job_calls import JobResult, encode_result

if TYPE_CHECKING:
    from qdo.worker.sources import Handling

logger = logging.getLogger("qdo.worker")

_FIRST_WARNING_SECONDS = 60.0
"""Seconds without progress after which a run is first logged; then at each doubling."""
_STOPPING_SECONDS = 5.0
"""Timeout for a cancelled handler to end, in seconds."""
_SLOW_SECONDS = 0.02
"""Seconds of a message, as far as checks have seen it, after which its handler is slow."""


class _Place(NamedTuple):
    partition: Partition
    attempt: int


class Delivery(_Place):
    """The partition and attempt number of a message that is being handled.

    It is a tuple of these two, with further attributes.

    Example:
        >>> from qdo import Delivery, Partition
        >>> partition = Partition.parse("0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70/queuey/orders/2")
        >>> Delivery(partition, attempt=1).attempt
        1

    Attributes:
        partition: The partition, with its queue.
        attempt: The number of the attempt, from 1 on. Another worker starts at 1 again, except after attempts in which
            a worker was lost.
        state: For workers that claim, the last state set by an earlier attempt (:func:`qdo.set_state`), or None. In a
            batch it is the state of the first message.
        cancelled: For workers that claim, True once an operator has cancelled the job. A long task can check it between
            steps. A cancelled job is not retried, whatever the task does.
    """

    def __new__(cls, partition: Partition, attempt: int, state: Any = None) -> Self:  # noqa: ANN401 - any JSON value
        place = super().__new__(cls, partition, attempt)
        place.state = state
        return place

    state: Any = None
    is_asked_to_stop: Callable[[], bool] | None = None
    """Returns whether the job is cancelled. Set by the executor."""

    @property
    def cancelled(self) -> bool:
        return self.is_asked_to_stop is not None and self.is_asked_to_stop()


class MessageRun:
    """Messages that are handled one after another, and the progress of the run.

    A message that failed before has a run of its own.

    Attributes:
        accepted: The first messages of the run that the executor handles, perhaps not all.
        pending: An item for each of these messages that has not begun. The executor takes one after another; a message
            whose item :meth:`take_back` or :meth:`stop` has taken does not begin.
        keys: The keys of the messages, or empty if the messages are not keyed.
        handled: Number of messages handled so far.
        seen: ``handled`` at the last check.
        since: When ``handled`` last changed, by the loop's clock.
        last_logged_age: Seconds without progress when the last warning was logged.
        begun: Whether a handler has started on the run.
        cancelled: Whether its executor has cancelled the run.
        abandoned: ``handled`` when a message exceeded its time, or None if no message did.
        hangs: Whether the handler took too long and could not be stopped.
        settled: Whether the progress is recorded. Later results are discarded.
        state: The last state that the handler has set, in any thread: the index of its message, and JSON.
        state_seen: The last state that was passed on.
        to_stop: The indexes of messages whose handlers are asked to stop.
        notify_stop: Called with each index of ``to_stop``, for executors that cannot check it.
        keeps_results: Whether to keep the handler's return values as results.
        results: Results by the indexes of their messages.
    """

    __slots__ = (
        "abandoned",
        "accepted",
        "attempt",
        "begun",
        "cancelled",
        "handled",
        "hangs",
        "keeps_results",
        "keys",
        "last_logged_age",
        "messages",
        "notify_stop",
        "pending",
        "results",
        "seen",
        "settled",
        "since",
        "state",
        "state_seen",
        "to_stop",
    )  # fmt: skip

    def __init__(self, messages: Sequence[Message], attempt: int, keys: tuple[Hashable, ...] = ()) -> None:
        self.messages = self.accepted = messages
        self.pending: Iterator[Any] = iter(messages)
        self.attempt = attempt
        self.keys = keys
        self.begun = self.hangs = self.settled = self.cancelled = False
        self.handled = self.seen = 0
        self.since = self.last_logged_age = 0.0
        self.abandoned: int | None = None
        self.state: tuple[int, bytes] | None = None
        self.state_seen: tuple[int, bytes] | None = None
        self.to_stop: frozenset[int] = frozenset()
        self.notify_stop: Callable[[int], None] | None = None
        self.keeps_results = False
        self.results: dict[int, JobResult] = {}

    def accept(self, messages: Sequence[Message], pending: Iterable[Any] | None = None) -> None:
        """Limits the run to some messages, of which those begin for which ``pending`` has an item."""
        self.accepted = messages
        self.pending = iter(messages if pending is None else pending)

    def take_back(self) -> Sequence[Message]:
        """Removes the messages that have not begun, which are the last ones, and returns them."""
        count = len(self.accepted) - len(list(self.pending))
        taken, self.messages = self.messages[count:], self.messages[:count]
        self.accepted = self.messages
        return taken

    def measure_age(self, now: float) -> float:
        """Returns the seconds since the run made progress, as far as checks have seen it, or since its start."""
        if self.handled != self.seen:
            self.seen, self.since, self.last_logged_age = self.handled, now, 0.0
        return now - self.since

    def check_age(self, partition: Partition, now: float, call_of: CallOf) -> float:
        """Returns the seconds since the run made progress, as far as checks have seen it. Logs a long one."""
        if not self.begun:
            self.since = now
        age = self.measure_age(now)
        if age >= max(_FIRST_WARNING_SECONDS, 2 * self.last_logged_age) and self.seen < len(self.messages):
            self.last_logged_age = age
            message = self.messages[self.seen]
            fields = {"queue": partition.queue.name, "partition": partition.number, "message_id": message.id}
            text = "a handler has been running with %smessage %s of %s for %.0f s"
            call = call_of(message)
            logger.warning(text, "" if call is None else f"{call}, ", message.id, partition, age, extra=fields)
        return age

    def set_result(self, result: object) -> None:
        """Keeps the result of the present message. Only logs a result that is not JSON, because the work is done."""
        message = self.messages[self.handled]
        try:
            encoded = encode_result(result)
        except InvalidArgument as error:
            logger.warning("message %s has no result: %s", message.id, error, extra={"message_id": message.id})
        else:
            self.keep_result(encoded)

    def keep_result(self, result: JobResult | None) -> None:
        if result is not None:
            self.results[self.handled] = result

    def is_asked_to_stop(self) -> bool:
        return self.handled in self.to_stop

    def ask_to_stop(self, number: int) -> None:
        self.to_stop = self.to_stop | {number}
        if self.notify_stop is not None:
            self.notify_stop(number)

    def set_state(self, state: bytes) -> None:
        self.state = self.handled, state

    def take_new_state(self) -> tuple[int, bytes] | None:
        state = self.state
        if state is None or state is self.state_seen:
            return None
        self.state_seen = state
        # Threads of a handler may set a state after the last message was handled.
        return state if state[0] == self.handled < len(self.messages) else None

    def stop(self) -> None:
        """Ends the run after the present message. The others still belong to it, but do not begin."""
        deque(self.pending, 0)


class Executor(Protocol):
    """Executes a bounded number of runs at a time."""

    slots: int
    """Max runs at the same time, including hanging ones. 0 if too many hang, so that the worker must end."""

    async def open(self) -> None:
        """Prepares handlers and their context.

        Raises:
            HandlerError: The handler or its context cannot be used.
        """

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        """Starts a run. Errors of the handler are in the future's result; the future itself does not fail."""

    def abandon(self, run: MessageRun) -> bool:
        """Ends a run whose present message takes too long. May be called twice.

        Returns False if the run cannot be ended. Then another run may start at the same time.
        """

    def give_up(self) -> bool:
        """Stops tasks and processes. Returns False if the runs are threads, which cannot be stopped."""

    async def close(self) -> None:
        """Exits the context. Called when all runs have ended or were given up."""


_FIRST_RUN_MESSAGES = 16
_LATEST_RUN_WEIGHT = 0.2
"""Share of the latest run in the mean if it took ``seconds``; others in proportion, between 0.02 and 1."""


class BatchSize:
    """Estimates the time per message, and from it how many messages fill a run of ``seconds``.

    Fast handlers get many messages per run, which amortizes the cost of a run. Slow handlers get few, because messages
    of a run are not available to other handlers, and other partitions wait until the run ends. Until a run has been
    recorded, runs get ``first`` messages; later at least 1 and at most ``most``.
    """

    def __init__(self, seconds: float, most: int, first: int = _FIRST_RUN_MESSAGES) -> None:
        self._seconds = seconds
        self._most = most
        self._first = first
        self._mean: float | None = None

    @property
    def max_messages(self) -> int:
        if self._mean is None:
            return min(self._first, self._most)
        if self._mean * self._most <= self._seconds:
            return self._most
        return max(1, int(self._seconds / self._mean))

    def record_run(self, messages: int, seconds: float) -> None:
        if not messages:
            return
        mean = seconds / messages
        if self._mean is None:
            self._mean = mean
        else:
            weight = min(1.0, max(_LATEST_RUN_WEIGHT * seconds / self._seconds, 0.02))
            self._mean += weight * (mean - self._mean)


def fail_overdue(seconds: float) -> Failure:
    return Failure.of(TimeLimit(f"the handler did not return within {seconds:g} s"))


def _find_run_result(run: MessageRun, future: asyncio.Future[RunResult], limit: float) -> RunResult:
    """Returns the result of a run. After an internal error, which ends the worker, no message counts as handled.

    A run that was stopped at its limit has failed, unless its message was handled meanwhile.
    """
    if future.cancelled():
        return _mark_stopped(run, RunResult(0), limit)
    error = future.exception()
    if error is None:
        return _mark_stopped(run, future.result(), limit)
    logger.critical("messages were not handled because of an internal error", exc_info=error)
    failure = Failure.of(error)
    return RunResult(0, Failure(failure.kind, failure.text, failure.trace, failure.kinds, "exit"))


def _mark_stopped(run: MessageRun, ran: RunResult, limit: float) -> RunResult:
    if run.abandoned == ran.handled and ran.failure is None:
        return ran._replace(failure=fail_overdue(limit))
    return ran


class RunOwner(Protocol):
    """What a run belongs to, such as the work on a partition."""

    partition: Partition


Owner = TypeVar("Owner", bound=RunOwner)
NotedRun = Coroutine[Any, Any, RunResult]


class RunTracker(Generic[Owner]):
    """The runs of a worker that have not ended, and whose they are.

    ::

        running ──ended──────────────────────────────► settled
           └──too long──► stopped ──ended────────────► settled as failed
                             └──does not end, or cannot be stopped──► hangs ──ended──► settled, without effect

    A run that hangs keeps its slot until it ends.

    Args:
        handling: Runs handlers, counts messages and ends the worker.
        batch_size: Learns from each run how long messages take.
        settle: Called with each run that has ended, and its result.
        wait_again: Called with the messages that were taken back from a slow run.
        on_overdue: Called when a handler exceeds ``stalled_after``. The run hangs, or its executor was asked to stop
            it and may be asked again.

    Attributes:
        runs: The owner of each run.
    """

    def __init__(
        self,
        handling: Handling,
        batch_size: BatchSize,
        settle: Callable[[Owner, MessageRun, RunResult], None],
        wait_again: Callable[[Owner, MessageRun, Sequence[Message]], None],
        on_overdue: Callable[[Owner, MessageRun], None],
    ) -> None:
        self.runs: dict[MessageRun, Owner] = {}
        self._batch_size = batch_size
        self._handling = handling
        self._limit = handling.settings.stalled_after
        self._settle = settle
        self._wait_again = wait_again
        self._on_overdue = on_overdue
        self._watched: dict[MessageRun, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def free_slots(self) -> int:
        return self._handling.runner.slots - len(self.runs)

    def start(self, owner: Owner, run: MessageRun, delivery: Delivery, noted: NotedRun | None = None) -> None:
        """Starts a run, or ``noted``, which starts it after a note is recorded."""
        loop = asyncio.get_running_loop()
        run.since = loop.time()
        self.runs[run] = owner
        self._handling.metrics.in_flight = len(self.runs)
        future: asyncio.Future[RunResult]
        future = self._handling.runner.start(run, delivery) if noted is None else loop.create_task(noted)
        future.add_done_callback(partial(self._on_end, run))

    def _on_end(self, run: MessageRun, future: asyncio.Future[RunResult]) -> None:
        handling = self._handling
        try:
            owner = self.runs.pop(run)
            handling.metrics.in_flight = len(self.runs)
            ran = _find_run_result(run, future, self._limit)
            handled = run.messages[: ran.handled]
            tasks = [message.body["task"] for message in handled] if handling.handler.tasks else None
            handling.metrics.record_run(owner.partition.queue.name, ran, tasks)
            self._batch_size.record_run(ran.handled, ran.seconds + sum(ran.slow))
            self._settle(owner, run, ran)
        except Exception as error:  # noqa: BLE001 - ends the worker
            handling.end_after_error(error)

    def watch(self, run: MessageRun) -> None:
        """Takes back the messages that a run has not begun once its handler is slow, so that they can begin elsewhere.

        A handler is seen to be slow 50 ms after its message has begun, at the latest.
        """
        if len(run.messages) > 1 or not run.begun:
            self._watched[run] = None
            self._timer = self._timer or asyncio.get_running_loop().call_later(1.2 * _SLOW_SECONDS, self._split_slow)

    def _split_slow(self) -> None:
        loop = asyncio.get_running_loop()
        for run in [run for run in self._watched if run.measure_age(loop.time()) >= _SLOW_SECONDS]:
            del self._watched[run]
            messages, owner = run.take_back(), self.runs.get(run)
            if messages and owner is not None:
                self._handling.call(self._wait_again, owner, run, messages)
        self._timer = loop.call_later(1.2 * _SLOW_SECONDS, self._split_slow) if self._watched else None

    def check(self) -> None:
        """Stops handlers that take too long; ends the worker if as many hang as it may run at a time.

        Handlers that do not return are logged after a minute, and again whenever that time has doubled.
        """
        now, oldest, handling = asyncio.get_running_loop().time(), 0.0, self._handling
        for run, owner in list(self.runs.items()):
            age = run.check_age(owner.partition, now, handling.handler.call_of)
            oldest = max(oldest, age)
            if age >= self._limit and not run.hangs and run.handled < len(run.messages):
                run.hangs = not self._stop(run, age)
                self._on_overdue(owner, run)
        handling.metrics.oldest = oldest
        if not handling.runner.slots and not handling.stop_requested.is_set():
            logger.critical("the worker ends: as many handlers hang as it runs at a time, and they cannot be stopped")
            handling.stop(ExitCode.FAILED)

    def _stop(self, run: MessageRun, age: float) -> bool:
        """Stops a run whose handler takes too long. Returns False if it cannot be stopped or did not end in time.

        A run that was stopped before has ``_STOPPING_SECONDS`` to end.
        """
        again = run.abandoned == run.handled
        if again and age < self._limit + _STOPPING_SECONDS:
            return True
        run.abandoned = run.handled
        return self._handling.runner.abandon(run) and not again
