"""A task: a function that is called elsewhere, later, with arguments that travel in a message.

Calls may be unique: while one of a name waits or runs, no other one is sent.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from string import Formatter
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

import msgspec

from qdo.errors import HandlerError, InvalidArgument
from queuey.client import NameTaken, Outgoing
from queuey.client.calls.call import arrives
from queuey.client.claims.handlers import is_async

if TYPE_CHECKING:
    from qdo.jobs.jobs import Jobs
    from qdo.jobs.schedules import Timetable
    from qdo.worker.failure import TaskRetry
    from queuey.client import Receipt

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
"""The result of sending: a receipt, or with ``unique`` perhaps None."""


class Invocation(msgspec.Struct):
    """The body of a message."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class TaskCall(NamedTuple):
    """A call that is not sent yet.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task
        ... def ship(order: int) -> None: ...
        >>> ship.call(7).queue
        'orders'

    Attributes:
        queue: Where it goes.
        body: The message.
        unique: The name that one message at most has that waits or runs; None: it has none.
    """

    queue: str
    body: msgspec.Raw
    unique: str | None = None


class Task(Generic[P, R, S]):
    """A function that can be called here, or sent to a queue for a worker to call.

    Made by :meth:`Jobs.task`. Calling it calls the function.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task
        ... def add(one: int, two: int) -> int:
        ...     return one + two
        >>> add(1, 2), add.name
        (3, 'add')

    Attributes:
        name: The name that travels in messages.
        queue: Where its calls go.
        function: The function.
        retry: When a call is tried again.
        timeout: Seconds that a call may take; None: any.
        unique: What calls have in common of which one is sent while it waits or runs; None: nothing.
        timetable: When it is called without anybody sending a call; None: never.
        show_arguments: The worker's log and spans show the arguments of calls.
    """

    def __init__(
        self,
        jobs: Jobs,
        function: Callable[P, R],
        name: str,
        queue: str,
        retry: TaskRetry,
        timeout: float | None,
        unique: Unique | None,
        timetable: Timetable | None,
    ) -> None:
        self._jobs = jobs
        self.function = function
        self.name = name
        self.queue = queue
        self.retry = retry
        self.timeout = timeout
        self.unique = unique
        self.timetable = timetable
        self.show_arguments = True
        self.is_async = is_async(function)
        self._signature: inspect.Signature | None = None
        self.__doc__ = function.__doc__
        self.__name__ = name

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, here and now."""
        return self.function(*args, **kwargs)

    def as_handler(self) -> NoReturn:
        """Raises HandlerError: a worker runs all tasks of a program, and calls each with its own arguments."""
        module = self.function.__module__
        names = [name for name, value in vars(sys.modules[module]).items() if value is self._jobs]
        raise HandlerError(f"{module}:{self.name} is a task: run {module}:{names[0] if names else 'jobs'}")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Returns a call for :meth:`send_many`.

        Raises:
            InvalidArgument: The arguments do not fit the function, or are no JSON.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(f"task {self.name}: {error}") from error
        try:
            body = msgspec.json.encode(Invocation(self.name, list(bound.args), bound.kwargs))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            for name, value in bound.arguments.items():
                _check(self, name, value)  # Its error names the argument.
            raise InvalidArgument(f"task {self.name}: {error}") from error
        try:
            received = self.bound(msgspec.json.decode(body, type=Invocation)).arguments
            changed = [name for name, value in bound.arguments.items() if not arrives(value, received[name])]
        except (TypeError, ValueError, ArithmeticError) as error:  # a signalling NaN is compared with nothing
            raise InvalidArgument(f"task {self.name}: {error}") from error
        for name in changed:
            text = f"argument {name} of task {self.name} is {bound.arguments[name]!r:.100}"
            hint = "Declare the type of the parameter, or send what JSON can hold"
            raise InvalidArgument(f"{text}: it would arrive as {received[name]!r:.100}. {hint}")
        unique = None if self.unique is None else name_of(self.unique, self.name, bound)
        return TaskCall(self.queue, msgspec.Raw(body), unique)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Sends a call to the queue; a worker of it calls the function.

        If the task is ``unique`` and a call of the same name waits or runs, nothing is sent: it returns the receipt of
        that one if it is the very same call, else None.

        Raises:
            InvalidArgument: The arguments do not fit the function, or are no JSON.
            ClientError: It could not be sent.
        """
        call = self.call(*args, **kwargs)  # Before a client is made: a wrong call is refused without a service.
        return cast("S", send_call(self._jobs, call, {}))

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Async variant of :meth:`send`."""
        call = self.call(*args, **kwargs)
        return cast("S", await send_call_async(self._jobs, call, {}))

    def send_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Sends calls (see :meth:`call`) in as few requests as the service allows; unique ones one by one.

        Returns:
            The receipts. A unique call whose name another one has is left out.
        """
        return self._jobs.send_many(calls)

    async def asend_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Async variant of :meth:`send_many`."""
        return await self._jobs.asend_many(calls)

    def send_with(
        self,
        *,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        key: str | None = None,
        ttl: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TaskSender[P]:
        """Returns an object that sends calls with options.

        Args:
            delay: Time until a worker gets it; a number is seconds.
            at: The moment from which on a worker gets it, with a time zone, in place of ``delay``.
            unique: While a call with this name waits or runs, no other one is sent. 1 to 255 characters without ``/``.
                None: as the task says. Not with ``delay`` or ``at``.
            key: The message key, by which a queue with ``max_claimed_per_key`` limits how many calls run at once. Not
                of unique calls.
            ttl: Seconds that the message lives; None: the queue's.
            headers: Up to 16 small texts kept with the message.

        Raises:
            InvalidArgument: These options do not go together.

        Example:
            >>> from datetime import timedelta
            >>> from qdo import Jobs
            >>> jobs = Jobs("orders")
            >>> @jobs.task
            ... def ship(order: int) -> None:
            ...     print("order", order)
            >>> _ = ship.send_with(delay=timedelta(minutes=5)).send(7)
            >>> jobs.close()
        """
        if at is not None:
            if delay is not None or at.tzinfo is None:
                raise InvalidArgument("at is a moment with a time zone, in place of a delay")
            delay = max(0.0, (at - datetime.now(UTC)).total_seconds())
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        options: dict[str, Any] = {"ttl": ttl, "headers": headers}
        if seconds is not None:
            if unique is not None or self.unique is not None:
                raise InvalidArgument("a unique call has no delay: its name is free when it is done")
            options["delay"] = seconds
        if key is not None:
            if unique is not None or self.unique is not None:
                raise InvalidArgument("a unique call has no key: its name chooses its partition")
            options["key"] = key
        return TaskSender(self, self._jobs, unique, options)

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function, with its types; names that exist for type checkers only stand for any."""
        names: dict[str, type] = {}
        while self._signature is None:
            try:
                self._signature = inspect.signature(self.function, eval_str=True, locals=names)
            except NameError as error:
                if error.name in names:
                    raise InvalidArgument(f"task {self.name}: a type of its arguments is not known: {error}") from error
                names[str(error.name)] = _Placeholder("Any", (), {})
        return self._signature

    def bound(self, call: Invocation) -> inspect.BoundArguments:
        """Returns the arguments in a message, with the types of the function; raises TypeError or ValueError."""
        signature = self.signature
        found = signature.bind(*call.args, **call.kwargs)
        for name, value in found.arguments.items():
            parameter = signature.parameters[name]
            kind: Any = Any if parameter.annotation is parameter.empty else parameter.annotation
            if parameter.kind is parameter.VAR_POSITIONAL:
                kind = tuple[kind, ...]
            elif parameter.kind is parameter.VAR_KEYWORD:
                kind = dict[str, kind]
            try:
                found.arguments[name] = msgspec.convert(value, kind, str_keys=True)
            except msgspec.ValidationError as error:
                raise ValueError(f"argument {name}: {error}") from error
        return found


class _Placeholder(type):
    """The class of types that a program imports for type checkers only: any value fits them."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: object) -> type:
        return cls

    __or__ = __ror__ = __getitem__  # type: ignore[assignment] # a union with it is any, too

    def __instancecheck__(cls, _: object) -> bool:
        return True


class TaskSender(Generic[P]):
    """Sends calls of a task with options; made by :meth:`Task.send_with`.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task
        ... def ship(order: int) -> None: ...
        >>> sender = ship.send_with(unique="order 7")
        >>> sender.send(7) is None, sender.send(8) is None
        (False, True)
        >>> jobs.close()
    """

    def __init__(self, task: Task[P, Any, Any], jobs: Jobs, unique: str | None, options: dict[str, Any]) -> None:
        self._task = task
        self._jobs = jobs
        self._unique = unique
        self._options = options

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Receipt | None:
        """Sends a call; returns None, and sends nothing, if another one has the ``unique`` name and waits or runs.

        If the very same call has it, nothing is sent either, and the receipt is that one's.
        """
        call = self._call(*args, **kwargs)
        return send_call(self._jobs, call, self._options)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Receipt | None:
        """Async variant of :meth:`send`."""
        call = self._call(*args, **kwargs)
        return await send_call_async(self._jobs, call, self._options)

    def _call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        call = self._task.call(*args, **kwargs)
        return call if self._unique is None else call._replace(unique=self._unique)


def send_call(jobs: Jobs, call: TaskCall, options: dict[str, Any]) -> Receipt | None:
    """Sends a call; None: another one has its name."""
    client = jobs.client
    if call.unique is None:
        return jobs.sent(call.queue, lambda: client.send(call.queue, json=call.body, **options))
    named, name = client.named(call.queue), call.unique
    try:
        return jobs.sent(call.queue, lambda: named.create(name, json=call.body, **options))
    except NameTaken:
        return None


async def send_call_async(jobs: Jobs, call: TaskCall, options: dict[str, Any]) -> Receipt | None:
    """Async variant of :func:`send_call`."""
    client = jobs.async_client
    if call.unique is None:
        return await jobs.asent(call.queue, lambda: client.send(call.queue, json=call.body, **options))
    named, name = client.named(call.queue), call.unique
    try:
        return await jobs.asent(call.queue, lambda: named.create(name, json=call.body, **options))
    except NameTaken:
        return None


def many(calls: Iterable[TaskCall]) -> tuple[dict[str, list[Outgoing]], list[TaskCall]]:
    messages: dict[str, list[Outgoing]] = {}
    unique = []
    for call in calls:
        if call.unique is None:
            messages.setdefault(call.queue, []).append(Outgoing(json=call.body))
        else:
            unique.append(call)
    return messages, unique


def _check(task: Task[Any, Any, Any], name: str, value: object) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        text = f"argument {name} of task {task.name} is no JSON: {error}"
        raise InvalidArgument(f"{text}. Send what names it, such as a path or an id") from error


Unique = Literal[True] | str | Callable[..., str]
"""The common part of calls of which one is sent: all arguments (True), a text with some of them in braces, or the
result of a function."""

_CAN_BE_NAME = re.compile(r"[^/\ud800-\udfff]{1,255}", re.DOTALL)


def check_unique(unique: Unique, function: Callable[..., Any], task: str) -> None:
    """Raises InvalidArgument if no names can be made of it."""
    if unique is True or callable(unique):
        return
    if not isinstance(unique, str):
        raise InvalidArgument(f"unique of task {task} is {unique!r}: give True, a text, or a function of its arguments")
    try:
        fields = {re.split(r"[.\[]", field)[0] for _, field, _, _ in Formatter().parse(unique) if field is not None}
    except ValueError as error:
        raise InvalidArgument(f"unique of task {task} is {unique!r}: {error}") from error
    if unknown := fields - inspect.signature(function).parameters.keys():
        raise InvalidArgument(f"unique of task {task} is {unique!r}: it has no argument {min(unknown) or '{}'}")


def name_of(unique: Unique, task: str, bound: inspect.BoundArguments) -> str:
    """Returns the name of a call, which begins with that of its task; a hash of it if no message can be named so.

    Raises InvalidArgument: the function does not return text, or the text cannot be filled in.
    """
    if callable(unique):
        key = unique(*bound.args, **bound.kwargs)
        if not isinstance(key, str):
            raise InvalidArgument(f"unique of task {task} returned {key!r}: it returns a text")
    else:
        bound.apply_defaults()
        try:
            if unique is True:
                # Calls with defaults given or not, and with keys in any order, have the same name.
                text = msgspec.json.encode(bound.arguments, order="deterministic")
                key = blake2b(text, digest_size=16).hexdigest()
            else:
                key = unique.format_map(bound.arguments)
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise InvalidArgument(f"unique of task {task} is {unique!r}: {error}") from error
    name = f"{task}:{key}"
    # The name of a task may have a colon, too: then it is unclear where it ends.
    if ":" not in task and _CAN_BE_NAME.fullmatch(name):
        return name
    return blake2b(f"{len(task)}:{name}".encode(errors="surrogatepass"), digest_size=16).hexdigest()
