"""The definition of a task: its function, and the options of :meth:`qdo.Jobs.task`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from hashlib import blake2b
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec

from qdo.errors import InvalidArgument
from qdo.tasks.schedules import TaskTimetable, check_scheduled, make_timetable
from qdo.worker.failure import TaskRetry
from qdo.worker.handlers import HandledTask
from queuey.client.claims.handlers import explain_unusable, is_coroutine_handler

if TYPE_CHECKING:
    from queuey.client import Backoff


Unique = Literal[True] | str | Callable[..., str]
"""How unique calls are named: by all arguments (True), by a string with arguments in braces, or by a function."""


class TaskOptions(TypedDict, total=False):
    """Options of :meth:`qdo.Jobs.task`. None means the default.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task(retries=3, cron="0 3 * * *", timezone="Europe/Berlin")
        ... def tidy_up() -> None: ...

    Attributes:
        name: The task's name in messages; by default the function's name. Do not change it while calls wait.
        queue: The queue for the task's calls; by default the first.
        retries: How often a failed call is retried before it becomes a dead letter; by default only the queue's
            ``max_deliveries`` limits it. That limit always applies.
        backoff: The delays of retries; by default the queue's ``backoff``.
        timeout: Max duration of a call; a number is seconds. For a plain function it needs a worker with processes,
            because a thread cannot be stopped.
        cron: When the service calls the task, without arguments: minute, hour, day of the month, month, day of the
            week.
        timezone: The time zone of ``cron``, such as ``Europe/Berlin``; by default ``UTC``.
        every: The interval at which the service calls the task, in place of ``cron``: at least 10 seconds; a number is
            seconds.
        missed: What happens to times at which no process of the service ran: ``skip`` (default) or ``catch_up``.
        show_arguments: False hides secret arguments: the worker's log and spans only name the task. Callers that may
            read the queue still see the arguments in its messages.
    """

    name: str | None
    queue: str | None
    retries: int | None
    backoff: Backoff | None
    timeout: timedelta | float | None
    cron: str | None
    timezone: str | None
    every: timedelta | float | None
    missed: str | None
    show_arguments: bool


class TaskDefinition(HandledTask, frozen=True):
    """How workers call a task, and how and when its calls are sent.

    Attributes:
        queue: The queue that calls are sent to.
        unique: How calls are named of which only one may wait or run; see :meth:`qdo.Jobs.task`. None if calls are not
            unique.
        timetable: When the service calls the task, or None.
    """

    queue: str
    unique: Unique | None
    timetable: TaskTimetable | None


def define_task(
    function: Callable[..., Any], queues: Sequence[str], unique: Unique | None, options: TaskOptions
) -> TaskDefinition:
    """Returns the definition of a task. ``queues`` are those of its jobs.

    Raises:
        InvalidArgument: The jobs do not have the queue, an option is not valid, the function has no name, or calling it
            would run nothing, because it is a generator or a class.
    """
    queue = queues[0] if (queue_option := options.get("queue")) is None else queue_option
    timeout, retries = options.get("timeout"), options.get("retries")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if queue not in queues:
        raise InvalidArgument(f"queue is {queue!r}, which is not one of {', '.join(queues)}")
    if retries is not None and retries < 0:
        raise InvalidArgument(f"retries is {retries}: use 0 or more")
    if seconds is not None and seconds <= 0:
        raise InvalidArgument(f"timeout is {timeout}: use more than 0")
    name = _find_task_name(function, options.get("name"))
    times = options.get("cron"), options.get("timezone"), options.get("every"), options.get("missed")
    timetable = make_timetable(name, *times)
    check_types(function, name)
    if unique is not None:
        if timetable is not None:
            raise InvalidArgument(f"scheduled calls of task {name} cannot be unique: leave out unique")
        check_unique(unique, function, name)
    if timetable is not None:
        check_scheduled(function, name, queue)
    retry = TaskRetry(None if retries is None else retries + 1, options.get("backoff"))
    shown = options.get("show_arguments", True)
    return TaskDefinition(name, is_coroutine_handler(function), seconds, retry, shown, queue, unique, timetable)


def _find_task_name(function: Callable[..., Any], name: str | None) -> str:
    """Returns the name of a task. Raises InvalidArgument if it has no name, or if a call would run nothing."""
    name_of_task = name or getattr(function, "__name__", None)
    if name_of_task is None:
        raise InvalidArgument(f"{function!r} has no name: use @jobs.task(name=...)")
    if (why := explain_unusable(function)) is not None:
        raise InvalidArgument(f"task {name_of_task} {why}")
    return str(name_of_task)


def check_types(function: Callable[..., Any], task: str) -> None:
    """Checks that JSON can carry the types of the parameters and of the result, as far as they are defined by now.

    Raises:
        InvalidArgument: A type has no JSON form.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, ValueError):  # A type is defined later or for type checkers only, or the function is in C.
        return
    types = {f"parameter {name}": parameter.annotation for name, parameter in signature.parameters.items()}
    for what, kind in (types | {"the result": signature.return_annotation}).items():
        try:
            msgspec.json.schema(Any if kind in (inspect.Signature.empty, object) else kind)
        except TypeError as error:
            text = f"the type of {what} of task {task} has no JSON form: {inspect.formatannotation(kind)}"
            raise InvalidArgument(f"{text}. Use another one (docs/tasks.md), such as str, or name no type") from error


_CAN_BE_NAME = re.compile(r"[^/\ud800-\udfff]{1,255}", re.DOTALL)


def check_unique(unique: Unique, function: Callable[..., Any], task: str) -> None:
    if unique is True or callable(unique):
        return
    if not isinstance(unique, str):
        raise InvalidArgument(f"unique of task {task} is {unique!r}: use True, a string or a function of its arguments")
    try:
        fields = {re.split(r"[.\[]", field)[0] for _, field, _, _ in Formatter().parse(unique) if field is not None}
    except ValueError as error:
        raise InvalidArgument(f"unique of task {task} is {unique!r}: {error}") from error
    if unknown := fields - inspect.signature(function).parameters.keys():
        raise InvalidArgument(f"unique of task {task} is {unique!r}: the task has no argument {min(unknown) or '{}'}")


def make_unique_name(unique: Unique, task: str, bound: inspect.BoundArguments) -> str:
    """Returns the name of a unique call: task and key, or a hash of these if the name would not be valid or clear.

    Raises:
        InvalidArgument: The function does not return a string, or the string cannot be formatted.
    """
    if callable(unique):
        key = unique(*bound.args, **bound.kwargs)
        if not isinstance(key, str):
            raise InvalidArgument(f"unique of task {task} returned {key!r}: return a string")
    else:
        bound.apply_defaults()
        try:
            if unique is True:
                # With defaults applied and keys sorted, equal calls have the same name.
                text = msgspec.json.encode(bound.arguments, order="deterministic")
                key = blake2b(text, digest_size=16).hexdigest()
            else:
                key = unique.format_map(bound.arguments)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise InvalidArgument(f"unique of task {task} is {unique!r}: {error}") from error
    name = f"{task}:{key}"
    # If the task's name has a colon, too, the name of the call would be ambiguous.
    if ":" not in task and _CAN_BE_NAME.fullmatch(name):
        return name
    return blake2b(f"{len(task)}:{name}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
