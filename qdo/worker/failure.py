"""Failures of handlers, and the decision about the failed message.

A failure is a value that threads and processes can pass on. :func:`decide` is a pure function.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from qdo.errors import HandlerError, TimeLimit, UnknownTask
from qdo.settings import WorkerSettings
from queuey.client import Backoff, Message
from queuey.client.deadletters import holds_dead
from queuey.model.task_calls import ShownCall

_MAX_TEXT_CHARS = 2_000
_MAX_TRACE_CHARS = 20_000
"""Max characters of a traceback. Error texts may hold whole documents, and each attempt logs them."""

Effect = Literal["fail", "stop", "exit"]
"""The effect of a failure.

``fail``: an attempt has failed. ``stop``: the handler asked the worker to stop. ``exit``: the worker must end."""


class StopWorker(Exception):
    """A handler raises this to end the worker cleanly. The message counts as not handled."""


class WorkerLost(Exception):
    """A worker lost its session while it handled the message, because it crashed or was blocked for too long."""


class ExitCode:
    """Exit codes of a worker's process. The command line uses 2 for wrong usage."""

    ENDED = 0
    """Code after a signal, ``stop()`` or ``StopWorker``, if all messages in flight were finished and recorded."""
    FAILED = 1
    """Code after an unhandled error, a second signal, or a permanent refusal by the service or the coordination."""
    MESSAGE_FAILED = 3
    """Code after a message failed for good and ``on_failure`` is ``stop``. The message is not marked as handled."""
    UNFINISHED = 4
    """Code after a stop if handlers or commits did not end in time. Messages will be handled again."""


class Failure(msgspec.Struct, frozen=True):
    """The error of a failed handler.

    Example:
        >>> from qdo import Failure
        >>> failure = Failure.of(ValueError("no stack"))
        >>> str(failure), failure.effect
        ('ValueError: no stack', 'fail')

    Attributes:
        kind: The error's class, with its module unless it is built in.
        text: The error's message, shortened to about 2,000 characters.
        trace: The traceback as text, shortened to about 20,000 characters, or empty if it is unknown.
        kinds: The names of the class and of all its bases, with and without their modules.
        effect: The effect on the worker: ``fail``, ``stop`` or ``exit``.
    """

    kind: str
    text: str = ""
    trace: str = ""
    kinds: tuple[str, ...] = ()
    effect: Effect = "fail"

    @classmethod
    def of(cls, error: BaseException, *, interrupts: bool = False) -> Failure:
        """Describes an error.

        Every error of a handler is a failed attempt, also if it is not an ``Exception``, such as ``SystemExit`` or the
        panic of a Rust extension. Otherwise such a message would block its partition forever, or a library could end
        the worker. A handler that cannot be used ends the worker, because it would fail on every message.

        Args:
            error: The error.
            interrupts: ``KeyboardInterrupt`` ends the worker, because it may come from Ctrl-C.
        """
        kind = type(error)
        if isinstance(error, StopWorker):
            effect: Effect = "stop"
        elif isinstance(error, HandlerError) and not isinstance(error, TimeLimit):
            effect = "exit"
        else:
            effect = "exit" if interrupts and isinstance(error, KeyboardInterrupt) else "fail"
        names = [name for base in kind.__mro__[:-1] for name in (base.__qualname__, _full_name(base))]
        text, trace = _cut(_format_text(error), _MAX_TEXT_CHARS), _cut(_format_trace(error), _MAX_TRACE_CHARS)
        return cls(_full_name(kind), text, trace, tuple(dict.fromkeys(names)), effect)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind

    @property
    def is_unknown_task(self) -> bool:
        """Whether this worker does not know the task. Another worker may know it."""
        return self.kind == _full_name(UnknownTask)


class RunResult(NamedTuple):
    """The result of a run.

    Attributes:
        handled: Number of handled messages, from the first on.
        failure: The failure of the next message, or None if the run was complete or was cut short.
        quick: Number of handled messages that were too quick to be timed separately.
        seconds: Total time of these quick messages.
        slow: The times of the other handled messages, in seconds.
        slow_at: The indexes of these slow messages in the run.
    """

    handled: int
    failure: Failure | None = None
    quick: int = 0
    seconds: float = 0.0
    slow: tuple[float, ...] = ()
    slow_at: tuple[int, ...] = ()

    def combine(self, ran: RunResult) -> RunResult:
        return RunResult(
            self.handled + ran.handled,
            ran.failure,
            self.quick + ran.quick,
            self.seconds + ran.seconds,
            self.slow + ran.slow,
            self.slow_at + tuple(self.handled + index for index in ran.slow_at),
        )

    def split_by_task(self, tasks: Sequence[str]) -> dict[str, RunResult]:
        """Splits the result by task. Quick messages get equal shares of their total time.

        Args:
            tasks: The task name of each handled message.
        """
        if len(set(tasks)) == 1:
            return {tasks[0]: self}
        slow: dict[str, list[float]] = {task: [] for task in tasks}
        for index, seconds in zip(self.slow_at, self.slow, strict=True):
            slow[tasks[index]].append(seconds)
        parts = {}
        for task, handled in Counter(tasks).items():
            quick = handled - len(slow[task]) if self.quick else 0
            seconds = self.seconds * quick / max(1, self.quick)
            parts[task] = RunResult(handled, None, quick, seconds, tuple(slow[task]))
        return parts


def _full_name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def _cut(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    return f"{text[: max_chars // 2]} [{len(text) - max_chars} characters left out] {text[-(max_chars // 2) :]}"


def _format_text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - an error whose text fails must not hide the error itself
        return ""


def _format_trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - as above, because the traceback ends with the text
        return "".join(traceback.format_tb(error.__traceback__))


class TaskRetry(NamedTuple):
    """The retry options of a task. None leaves the decision to the queue."""

    attempts: int | None = None
    backoff: Backoff | None = None

    def delay(self, deliveries: int, draw: float) -> float | None:
        return None if self.backoff is None else self.backoff.delay(deliveries, draw)


class RetryLater(NamedTuple):
    """Retry the message after a pause. Messages that must come after it wait."""

    seconds: float


class DeadLetterIt(NamedTuple):
    """Store a dead letter, then continue with the next message."""


class SkipMessage(NamedTuple):
    """Skip the message; the reason is for the log."""

    reason: str


class StopTheWorker(NamedTuple):
    """End the worker. The message counts as not handled.

    Attributes:
        why: ``asked`` if the handler raised StopWorker, ``message`` if the settings end the worker after a failed
            message, or ``error`` if the worker cannot continue.
    """

    why: Literal["asked", "message", "error"]


Decision = RetryLater | DeadLetterIt | SkipMessage | StopTheWorker


def decide(settings: WorkerSettings, queue: str, failure: Failure, attempt: int, draw: float) -> Decision:
    """Returns what to do with a message after ``attempt`` failed attempts; ``draw`` is a random number from 0 to 1."""
    if failure.effect != "fail":
        return StopTheWorker("asked" if failure.effect == "stop" else "error")
    retry = settings.retry
    pause = retry.after(attempt, failure.kinds, draw)
    if pause is not None:
        return RetryLater(pause)
    return _decide_last(settings, queue, draw * retry.longest(attempt))


def _decide_last(settings: WorkerSettings, queue: str, pause: float) -> Decision:
    match settings.on_failure:
        case "retry":
            return RetryLater(pause)
        case "stop":
            return StopTheWorker("message")
        case "skip":
            return SkipMessage("on_failure is skip")
    if holds_dead(queue, settings.dead_queue) and not settings.bury_dead:
        return SkipMessage("it is already in a dead-letter queue")
    return DeadLetterIt()


CallOf = Callable[[Message], ShownCall | None]
"""Returns the task that a message calls, with the arguments that may be logged."""
