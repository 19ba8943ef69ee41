"""Failures of handlers, and the decision about the message.

A failure is a value that threads and processes can hand on. What becomes of the message is decided by a pure function.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from qdo.errors import HandlerError, TimeLimit
from qdo.settings import WorkerSettings
from queuey.client import Backoff, Message
from queuey.client.deadletters import holds_dead
from queuey.terminal.task_calls import ShownCall

_MAX_TEXT_CHARS = 2_000
_MAX_TRACE_CHARS = 20_000
"""Max characters of a traceback. Texts of errors may hold a whole document; each attempt logs them."""

Effect = Literal["fail", "stop", "exit"]
"""``fail``: one attempt has failed. ``stop``: the handler asked the worker to stop. ``exit``: the worker must end."""


class StopWorker(Exception):
    """Raised by a handler: the worker ends cleanly, and this message counts as not handled."""


class WorkerLost(Exception):
    """A worker was handling the message when its session was lost: it crashed, or was held up for too long."""


class ExitCode:
    """How a worker's process ends, for its supervisor. 2 is left to the command line: wrong usage."""

    ENDED = 0
    """Code after a signal, ``stop()`` or ``StopWorker``; all messages in flight were finished and recorded."""
    FAILED = 1
    """Code after an unhandled error, a second signal, or a refusal for good by the service or the coordination."""
    MESSAGE_FAILED = 3
    """Code when a message failed at last and the settings say to stop then; it is not marked as handled."""
    UNFINISHED = 4
    """Code after a stop when handlers or commits did not end in time; messages will be handled again."""


class Failure(msgspec.Struct, frozen=True):
    """Why a handler failed.

    Example:
        >>> from qdo import Failure
        >>> failure = Failure.of(ValueError("no stack"))
        >>> str(failure), failure.effect
        ('ValueError: no stack', 'fail')

    Attributes:
        kind: The error's class, with its module unless it is built in.
        text: The error's message, at most 2,000 characters of it.
        trace: The traceback as text, at most 20,000 characters of it; empty if there is none.
        kinds: The names of the class and of all its bases, with and without their modules.
        effect: What the worker does: ``fail``, ``stop`` or ``exit``.
    """

    kind: str
    text: str = ""
    trace: str = ""
    kinds: tuple[str, ...] = ()
    effect: Effect = "fail"

    @classmethod
    def of(cls, error: BaseException, *, interrupts: bool = False) -> Failure:
        """Describes an error.

        Whatever a handler raises is a failed attempt, also errors that are not an ``Exception``, such as ``sys.exit``
        or the panic of an extension in Rust: such a message must not block its partition for ever, and a library must
        not end the worker. A handler that cannot be used ends the worker, because it would fail on every message.

        Args:
            error: The error.
            interrupts: ``KeyboardInterrupt`` may have been raised by Ctrl-C, so it ends the worker.
        """
        kind = type(error)
        if isinstance(error, StopWorker):
            effect: Effect = "stop"
        elif isinstance(error, HandlerError) and not isinstance(error, TimeLimit):
            effect = "exit"
        else:
            effect = "exit" if interrupts and isinstance(error, KeyboardInterrupt) else "fail"
        names = [name for each in kind.__mro__[:-1] for name in (each.__qualname__, _full_name(each))]
        text, trace = _cut(_text(error), _MAX_TEXT_CHARS), _cut(_trace(error), _MAX_TRACE_CHARS)
        return cls(_full_name(kind), text, trace, tuple(dict.fromkeys(names)), effect)

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


class RunResult(NamedTuple):
    """The result of a run.

    Attributes:
        handled: Number of messages handled, from the front.
        failure: Of the message after those; None: the run was complete or was cut short.
        quick: Number of handled messages that took less than the shortest time that is distinguished.
        seconds: Sum of their times.
        slow: The time of each of the rest, in seconds.
        slow_at: The index of each of these among the messages.
    """

    handled: int
    failure: Failure | None = None
    quick: int = 0
    seconds: float = 0.0
    slow: tuple[float, ...] = ()
    slow_at: tuple[int, ...] = ()

    def followed_by(self, ran: RunResult) -> RunResult:
        """Returns the result of both runs as one."""
        return RunResult(
            self.handled + ran.handled,
            ran.failure,
            self.quick + ran.quick,
            self.seconds + ran.seconds,
            self.slow + ran.slow,
            self.slow_at + tuple(self.handled + index for index in ran.slow_at),
        )

    def by_task(self, tasks: Sequence[str]) -> dict[str, RunResult]:
        """Returns the part of each task; quick messages share their time evenly, because it is measured as one sum.

        Args:
            tasks: Names of the tasks of the handled messages, in their order.
        """
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


def _cut(text: str, most: int) -> str:
    """Leaves out the middle of a text that is too long: a traceback ends with the text of its error."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most} characters left out] {text[-(most // 2) :]}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - an error that cannot say what it is must not become another one
        return ""


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - as above: the traceback ends with the text
        return "".join(traceback.format_tb(error.__traceback__))


class TaskRetry(NamedTuple):
    """When the call of a task is tried again; None: as the queue says."""

    attempts: int | None = None
    backoff: Backoff | None = None

    def delay(self, deliveries: int, draw: float) -> float | None:
        return None if self.backoff is None else self.backoff.delay(deliveries, draw)


class RetryLater(NamedTuple):
    """Try it again after a pause; messages that must come after it wait."""

    seconds: float


class DeadLetterIt(NamedTuple):
    """Make it a dead letter, then go on."""


class SkipMessage(NamedTuple):
    """Go on without it; the reason is for the log."""

    reason: str


class StopTheWorker(NamedTuple):
    """End the worker; the message counts as not handled.

    Attributes:
        why: ``asked``: by the handler. ``message``: by the settings. ``error``: it cannot go on.
    """

    why: Literal["asked", "message", "error"]


Decision = RetryLater | DeadLetterIt | SkipMessage | StopTheWorker


def decide(settings: WorkerSettings, queue: str, failure: Failure, attempt: int, draw: float) -> Decision:
    """Returns what becomes of a message after ``attempt`` attempts; ``draw`` is a random number from 0 to 1."""
    if failure.effect != "fail":
        return StopTheWorker("asked" if failure.effect == "stop" else "error")
    retry = settings.retry
    pause = retry.after(attempt, failure.kinds, draw)
    if pause is not None:
        return RetryLater(pause)
    return _at_last(settings, queue, draw * retry.longest(attempt))


def _at_last(settings: WorkerSettings, queue: str, pause: float) -> Decision:
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


CallOf = Callable[[Message], ShownCall | None]
"""Returns the task that a message calls, with what may be shown of its arguments."""


def calls_nothing(_message: Message) -> None:
    """The calls of a handler without tasks."""
