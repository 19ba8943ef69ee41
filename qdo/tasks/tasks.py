"""A task: a function that workers call with arguments sent in messages.

Calls may be unique: while a call waits or runs, no other call with the same name is sent.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

import msgspec

from qdo.errors import HandlerError, InvalidArgument
from qdo.tasks.definitions import TaskDefinition, make_unique_name
from queuey.client import NameTaken
from queuey.client.calls.call import is_received_as_sent

if TYPE_CHECKING:
    from qdo.tasks.jobs import Jobs
    from queuey.client import Receipt

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
"""The result of sending: a receipt, or None for a unique call that was not sent."""


class Invocation(msgspec.Struct):
    """The body of a message that calls a task."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class TaskCall(NamedTuple):
    """A call that has not been sent yet.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task
        ... def ship(order: int) -> None: ...
        >>> ship.call(7).queue
        'orders'

    Attributes:
        queue: The queue that the call is sent to.
        body: The body of its message.
        unique: The name of a unique call, or None. At most one waiting or running message has this name.
        returns: The type of the result.
    """

    queue: str
    body: msgspec.Raw
    unique: str | None = None
    returns: Any = Any


class Task(Generic[P, R, S]):
    """A function that can be called directly, or by a worker after a call was sent.

    Made by :meth:`Jobs.task`. Calling the task calls the function.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task
        ... def add(one: int, two: int) -> int:
        ...     return one + two
        >>> add(1, 2), add.name
        (3, 'add')

    Attributes:
        name: The name of the task in messages.
        queue: The queue that calls are sent to.
        function: The function.
    """

    def __init__(self, jobs: Jobs, function: Callable[P, R], definition: TaskDefinition) -> None:
        self._jobs = jobs
        self.function = function
        self.definition = definition
        self.name = self.__name__ = definition.name
        self.queue = definition.queue
        self._signature: inspect.Signature | None = None
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def as_handler(self) -> NoReturn:
        """Raises HandlerError, because a worker needs the :class:`~qdo.Jobs` of a program, not one task."""
        module = self.function.__module__
        names = [name for name, value in vars(sys.modules[module]).items() if value is self._jobs]
        raise HandlerError(f"{module}:{self.name} is a task: run {module}:{names[0] if names else 'jobs'}")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Returns a call for :meth:`send_many`.

        Raises:
            InvalidArgument: The arguments do not match the function's signature, are not JSON, or would arrive as
                other values; or the name of a unique call cannot be made.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgument(f"task {self.name}: {error}") from error
        try:
            body = msgspec.json.encode(Invocation(self.name, list(bound.args), bound.kwargs))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            for name, value in bound.arguments.items():
                _check_is_json(self, name, value)  # raises an error that names the argument
            raise InvalidArgument(f"task {self.name}: {error}") from error
        try:
            received = self.bound(msgspec.json.decode(body, type=Invocation)).arguments
            changed = [
                name for name, value in bound.arguments.items() if not is_received_as_sent(value, received[name])
            ]
        except (TypeError, ValueError, ArithmeticError) as error:  # a signaling NaN cannot be compared
            raise InvalidArgument(f"task {self.name}: {error}") from error
        for name in changed:
            text = f"argument {name} of task {self.name} is {bound.arguments[name]!r:.100}"
            hint = "Declare the type of the parameter, or send a JSON value"
            raise InvalidArgument(f"{text}: it would arrive as {received[name]!r:.100}. {hint}")
        unique = self.definition.unique
        unique_name = None if unique is None else make_unique_name(unique, self.name, bound)
        return TaskCall(self.queue, msgspec.Raw(body), unique_name, self.signature.return_annotation)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Sends a call to the queue, for a worker to call the function.

        If the task is ``unique`` and a call with the same name waits or runs, nothing is sent. Then it returns the
        receipt of that call if it is identical, else None.

        Raises:
            InvalidArgument: See :meth:`call`.
            ClientError: The call could not be sent.
        """
        call = self.call(*args, **kwargs)  # before a client is made, so that a wrong call fails without a service
        return cast("S", send_call(self._jobs, call, {}))

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Async variant of :meth:`send`."""
        call = self.call(*args, **kwargs)
        return cast("S", await send_call_async(self._jobs, call, {}))

    def send_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Sends calls (see :meth:`call`) in as few requests as the service allows, and unique calls one by one.

        Returns:
            The receipts. A unique call has no receipt here if another call has its name.
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
            delay: Time until a worker may get the call; a number is seconds.
            at: The time at which a worker may get the call, with a time zone, in place of ``delay``.
            unique: The name of the call. While a call with this name waits or runs, no other is sent. 1 to 255
                characters without ``/``; by default the task's ``unique``. Not with ``delay`` or ``at``.
            key: The message key, by which a queue with ``max_claimed_per_key`` limits how many calls run at the same
                time. Not for unique calls.
            ttl: Time to live of the message in seconds; by default the queue's.
            headers: Up to 16 short strings kept with the message.

        Raises:
            InvalidArgument: These options cannot be combined.

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
                raise InvalidArgument("at must have a time zone, and cannot be combined with delay")
            delay = max(0.0, (at - datetime.now(UTC)).total_seconds())
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        options: dict[str, Any] = {"ttl": ttl, "headers": headers}
        is_unique = unique is not None or self.definition.unique is not None
        if seconds is not None:
            if is_unique:
                raise InvalidArgument("a unique call cannot have a delay: leave out delay and at")
            options["delay"] = seconds
        if key is not None:
            if is_unique:
                raise InvalidArgument("a unique call cannot have a key: its name chooses its partition")
            options["key"] = key
        return TaskSender(self, self._jobs, unique, options)

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function, with its types. Types imported for type checkers only accept any value.

        Raises:
            InvalidArgument: A type is unknown nevertheless.
        """
        names: dict[str, type] = {}
        while self._signature is None:
            try:
                self._signature = inspect.signature(self.function, eval_str=True, locals=names)
            except NameError as error:
                if error.name in names:
                    raise InvalidArgument(f"task {self.name}: an argument has an unknown type: {error}") from error
                names[str(error.name)] = _Placeholder("Any", (), {})
        return self._signature

    def bound(self, call: Invocation) -> inspect.BoundArguments:
        signature = self.signature
        bound_arguments = signature.bind(*call.args, **call.kwargs)
        for name, value in bound_arguments.arguments.items():
            parameter = signature.parameters[name]
            kind: Any = Any if parameter.annotation is parameter.empty else parameter.annotation
            if parameter.kind is parameter.VAR_POSITIONAL:
                kind = tuple[kind, ...]
            elif parameter.kind is parameter.VAR_KEYWORD:
                kind = dict[str, kind]
            try:
                bound_arguments.arguments[name] = msgspec.convert(value, kind, str_keys=True)
            except msgspec.ValidationError as error:
                raise ValueError(f"argument {name}: {error}") from error
        return bound_arguments


class _Placeholder(type):
    """The class of stand-ins for types that a program imports for type checkers only. They accept any value."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: object) -> type:
        return cls

    __or__ = __ror__ = __getitem__  # type: ignore[assignment] # a union with it accepts any value, too

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
        """Sends a call and returns its receipt.

        If another call with its ``unique`` name waits or runs, nothing is sent. Then it returns the receipt of that
        call if it is identical, else None.
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
    client = jobs.client
    if call.unique is None:
        return bind_type(jobs.sent(call.queue, lambda: client.send(call.queue, json=call.body, **options)), call)
    named, name = client.named(call.queue), call.unique
    try:
        return bind_type(jobs.sent(call.queue, lambda: named.create(name, json=call.body, **options)), call)
    except NameTaken:
        return None


async def send_call_async(jobs: Jobs, call: TaskCall, options: dict[str, Any]) -> Receipt | None:
    client = jobs.async_client
    if call.unique is None:
        return bind_type(await jobs.asent(call.queue, lambda: client.send(call.queue, json=call.body, **options)), call)
    named, name = client.named(call.queue), call.unique
    try:
        return bind_type(await jobs.asent(call.queue, lambda: named.create(name, json=call.body, **options)), call)
    except NameTaken:
        return None


def bind_type(receipt: Receipt, call: TaskCall) -> Receipt:
    """Makes a receipt convert the result to the type that the task returns. Returns it."""
    receipt.__dict__["result_type"] = call.returns
    return receipt


def group_by_queue(calls: Iterable[TaskCall]) -> tuple[dict[str, list[TaskCall]], list[TaskCall]]:
    by_queue: dict[str, list[TaskCall]] = {}
    unique = []
    for call in calls:
        if call.unique is None:
            by_queue.setdefault(call.queue, []).append(call)
        else:
            unique.append(call)
    return by_queue, unique


def _check_is_json(task: Task[Any, Any, Any], name: str, value: object) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        text = f"argument {name} of task {task.name} is not JSON: {error}"
        raise InvalidArgument(f"{text}. Send a reference to it, such as a path or an id") from error
