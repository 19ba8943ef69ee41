"""Tasks: Python functions that are called elsewhere, later, with arguments that travel in messages.

A message of a task is the JSON object ``{"task": "thumb", "args": ["a.jpg"], "kwargs": {}}``. Workers claim these
messages (:mod:`qdo.worker.claim_source`) and call the function of that name.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from random import random
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import msgspec

from qdo.errors import InvalidArgument, TimeLimit, UnknownTask
from qdo.worker.failure import Failure, TaskRetry
from queuey.client import AsyncClient, Client, NameTaken, Outgoing
from queuey.client.calls.claim_calls import names_of

if TYPE_CHECKING:
    from queuey.client import Backoff, Message, Receipt

P = ParamSpec("P")
R = TypeVar("R")


class _Call(msgspec.Struct):
    """What a message says."""

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
    """

    queue: str
    body: msgspec.Raw


class Task(Generic[P, R]):
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
    """

    def __init__(
        self, jobs: Jobs, function: Callable[P, R], name: str, queue: str, retry: TaskRetry, timeout: float | None
    ) -> None:
        self._jobs = jobs
        self.function = function
        self.name = name
        self.queue = queue
        self.retry = retry
        self.timeout = timeout
        self.is_async = inspect.iscoroutinefunction(function)
        self._signature: inspect.Signature | None = None
        self.__doc__ = function.__doc__
        self.__name__ = name

    def __repr__(self) -> str:
        """Names it and its queue."""
        return f"<Task {self.name} of {self.queue}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function, here and now."""
        return self.function(*args, **kwargs)

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
            body = msgspec.json.encode(_Call(self.name, list(bound.args), bound.kwargs))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            for name, value in bound.arguments.items():
                _check(self, name, value)  # Says which of them it is.
            raise InvalidArgument(f"task {self.name}: {error}") from error
        try:
            self.bound(msgspec.json.decode(body, type=_Call))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"task {self.name}: {error}") from error
        return TaskCall(self.queue, msgspec.Raw(body))

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Sends a call to the queue; a worker of it calls the function.

        Raises:
            InvalidArgument: The arguments do not fit the function, or are no JSON.
            ClientError: It could not be sent.
        """
        body = self.call(*args, **kwargs).body  # Before a client is made: a wrong call is refused without a service.
        return self._jobs.client.send(self.queue, json=body)

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Is :meth:`send` for async code."""
        body = self.call(*args, **kwargs).body
        return await self._jobs.async_client.send(self.queue, json=body)

    def send_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Sends calls (see :meth:`call`) in as few requests as the service allows."""
        return self._jobs.send_many(calls)

    async def asend_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Is :meth:`send_many` for async code."""
        return await self._jobs.asend_many(calls)

    def send_with(
        self,
        *,
        delay: timedelta | float | None = None,
        at: datetime | None = None,
        unique: str | None = None,
        ttl: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> TaskSender[P]:
        """Returns what sends calls with options.

        Args:
            delay: Time until a worker gets it; a number is seconds.
            at: The moment from which on a worker gets it, with a time zone, in place of ``delay``.
            unique: While a call with this name waits or runs, no other one is sent. 1 to 255 characters without ``/``.
                Not with ``delay`` or ``at``.
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
        if unique is not None and seconds is not None:
            raise InvalidArgument("a unique call has no delay: its name is free when it is done")
        return TaskSender(self, self._jobs, seconds, unique, {"ttl": ttl, "headers": headers})

    @property
    def signature(self) -> inspect.Signature:
        """Of the function, with its types.

        Raises:
            InvalidArgument: A type cannot be found.
        """
        if self._signature is None:
            try:
                self._signature = inspect.signature(self.function, eval_str=True)
            except NameError as error:
                raise InvalidArgument(f"task {self.name}: a type of its arguments is not known: {error}") from error
        return self._signature

    def bound(self, call: _Call) -> inspect.BoundArguments:
        """Returns the arguments of a call that came in a message, with the types that the function names.

        Raises:
            TypeError, ValueError: They do not fit.
        """
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
                found.arguments[name] = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise ValueError(f"argument {name}: {error}") from error
        return found


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

    def __init__(
        self, task: Task[P, Any], jobs: Jobs, delay: float | None, unique: str | None, options: dict[str, Any]
    ) -> None:
        self._task = task
        self._jobs = jobs
        self._delay = delay
        self._unique = unique
        self._options = options

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Receipt | None:
        """Sends a call; returns None, and sends nothing, if another one has the ``unique`` name and waits or runs.

        If the very same call has it, nothing is sent either, and the receipt is that one's.
        """
        body, queue = self._task.call(*args, **kwargs).body, self._task.queue
        if self._unique is None:
            return self._jobs.client.send(queue, json=body, delay=self._delay, **self._options)
        try:
            return self._jobs.client.named(queue).create(self._unique, json=body, **self._options)
        except NameTaken:
            return None

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Receipt | None:
        """Is :meth:`send` for async code."""
        body, queue = self._task.call(*args, **kwargs).body, self._task.queue
        if self._unique is None:
            return await self._jobs.async_client.send(queue, json=body, delay=self._delay, **self._options)
        try:
            return await self._jobs.async_client.named(queue).create(self._unique, json=body, **self._options)
        except NameTaken:
            return None


class Jobs:
    """Tasks of a program, whose calls go to a queue. Workers: ``qdo work module:jobs``.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task(retries=3, timeout=60)
        ... async def weigh(pieces: int, *, unit: str = "kg") -> None:
        ...     print(pieces, unit)
        >>> receipt = weigh.send(7, unit="lb")
        >>> jobs.close()

    Args:
        queue: Where calls go, and workers claim them. Of several, in order of preference, the first is where tasks go
            that name none; at most 10.
        client: Sends; None: one that the profile of the user tells where to go.
        async_client: Sends for async code; None: the same for each event loop.

    Attributes:
        queues: The queues.
    """

    def __init__(
        self,
        queue: str | Iterable[str],
        *,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
    ) -> None:
        self.queues = names_of(queue)
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._client = client
        self._async_client = async_client
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: timedelta | float | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retries: int | None = None,
        backoff: Backoff | None = None,
        timeout: timedelta | float | None = None,
    ) -> Any:
        """Makes a task of a plain or async function.

        Args:
            function: Given when it is used as ``@jobs.task``.
            name: What travels in messages; None: the function's own name. It must stay the same while calls wait.
            queue: One of the queues; None: the first.
            retries: How often a call that failed is tried again; then it is a dead letter. None: as the queue's
                ``max_deliveries`` says, which counts in any case.
            backoff: When it is tried again; None: as the queue's ``backoff`` says.
            timeout: How long a call may take; a number is seconds. That of a plain function needs a worker with
                processes, because a thread cannot be stopped.

        Raises:
            InvalidArgument: Another task has the name, or there is no such queue; or a number cannot be.
        """
        target = self.queues[0] if queue is None else queue
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if target not in self.queues:
            raise InvalidArgument(f"queue is {queue!r}: it is not one of {', '.join(self.queues)}")
        if retries is not None and retries < 0:
            raise InvalidArgument(f"retries is {retries}: it is not negative")
        if seconds is not None and seconds <= 0:
            raise InvalidArgument(f"timeout is {timeout}: it is more than nothing")
        retry = TaskRetry(None if retries is None else retries + 1, backoff)

        def make(function: Callable[..., Any]) -> Task[..., Any]:
            called = name or function.__name__
            if called in self._tasks:
                raise InvalidArgument(f"there are two tasks {called!r}: name one of them: @jobs.task(name=...)")
            made = self._tasks[called] = Task(self, function, called, target, retry, seconds)
            return made

        return make if function is None else make(function)

    # Sending

    @property
    def client(self) -> Client:
        """What sends."""
        with self._lock:
            if self._client is None:
                self._client = Client()
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """What sends for the running event loop."""
        if self._async_client is not None:
            return self._async_client
        loop = asyncio.get_running_loop()
        return self._clients.get(loop) or self._clients.setdefault(loop, AsyncClient())

    def send_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Sends calls of any of these tasks in as few requests as the service allows, one queue after another."""
        receipts: list[Receipt] = []
        for queue, bodies in _by_queue(calls).items():
            receipts += self.client.send_many(queue, [Outgoing(json=body) for body in bodies])
        return receipts

    async def asend_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Is :meth:`send_many` for async code."""
        receipts: list[Receipt] = []
        for queue, bodies in _by_queue(calls).items():
            receipts += await self.async_client.send_many(queue, [Outgoing(json=body) for body in bodies])
        return receipts

    def close(self) -> None:
        """Closes the client that was made for sending, if there is one; see :meth:`aclose`."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    async def aclose(self) -> None:
        """Closes the client of the running event loop."""
        made = self._async_client or self._clients.pop(asyncio.get_running_loop(), None)
        if made is not None:
            await made.close()

    # Handling

    def as_handler(self) -> PlainTasks | AsyncTasks:
        """Returns what a worker calls with each message."""
        has_async = any(task.is_async for task in self._tasks.values())
        return AsyncTasks(self._tasks) if has_async else PlainTasks(self._tasks)

    def run_all(self) -> int:
        """Runs the calls that wait, one after another, in this process, until there is none; for tests of a program.

        Calls that are not due are left. When one fails, its message is released as by a worker.

        Returns:
            How many were run.

        Raises:
            Exception: That of a task.
        """
        count, handler = 0, self.as_handler()
        for job in self.client.job_queue(self.queues).claim(idle=0):
            try:
                handler.run(job.message)
            except Exception as error:
                delay, again = handler.decided(job.message, error, job.deliveries)
                job.release(delay, error, retry=again)
                raise
            count += 1
        return count

    async def arun_all(self) -> int:
        """Is :meth:`run_all` for async code."""
        count, handler = 0, self.as_handler()
        async for job in self.async_client.job_queue(self.queues).claim(idle=0):
            try:
                await handler.run_async(job.message)
            except Exception as error:
                delay, again = handler.decided(job.message, error, job.deliveries)
                await job.release(delay, error, retry=again)
                raise
            count += 1
        return count


class Called(NamedTuple):
    """A task and the arguments that a message has for it."""

    task: Task[Any, Any]
    arguments: inspect.BoundArguments

    def run(self) -> Any:  # noqa: ANN401 - what the task returns
        """Calls a plain task.

        Raises:
            TimeLimit: It took too long; only where a signal can interrupt it.
        """
        with _interrupted(self.task):
            return self.task.function(*self.arguments.args, **self.arguments.kwargs)

    async def awaited(self) -> None:
        """Calls an async task.

        Raises:
            TimeLimit: It took too long.
        """
        timer = asyncio.timeout(self.task.timeout)
        try:
            async with timer:
                await self.task.function(*self.arguments.args, **self.arguments.kwargs)
        except TimeoutError as error:
            if timer.expired():
                raise _too_long(self.task) from error
            raise


def called(tasks: Mapping[str, Task[Any, Any]], message: Message) -> Called:
    """Returns which task a message calls, and with what.

    Raises:
        UnknownTask: There is none of that name, or the message is no call of a task, or not one that fits.
    """
    try:
        call = msgspec.convert(message.body, _Call)
    except msgspec.ValidationError as error:
        raise UnknownTask(f"message {message.id} calls no task: {error}") from error
    task = tasks.get(call.task)
    if task is None:
        raise UnknownTask(f"there is no task {call.task!r} here, but {', '.join(sorted(tasks)) or 'none'}")
    try:
        return Called(task, task.bound(call))
    except (TypeError, ValueError) as error:
        raise UnknownTask(f"task {call.task} does not take these arguments: {error}") from error


class PlainTasks:
    """Calls plain tasks: the handler of a worker with threads or processes."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._tasks = tasks
        limited = [task.name for task in tasks.values() if task.timeout is not None and not task.is_async]
        self.needs_processes = ", ".join(limited)
        """Names of plain tasks with a timeout, for which a worker needs processes."""

    def __call__(self, message: Message, _context: object) -> None:
        """Calls the task of a message."""
        called(self._tasks, message).run()

    def run(self, message: Message) -> None:
        """Calls the task of a message, of either kind."""
        call = called(self._tasks, message)
        if call.task.is_async:
            asyncio.run(call.awaited())
        else:
            call.run()

    async def run_async(self, message: Message) -> None:
        """Awaits the task of a message, of either kind."""
        call = called(self._tasks, message)
        if call.task.is_async:
            await call.awaited()
        elif call.task.timeout is not None:
            call.run()  # In a process of its own, where a signal can interrupt it.
        else:
            await asyncio.to_thread(call.run)

    def retry_of(self, message: Message, failure: Failure) -> TaskRetry | None:
        """Returns when the call of a message is tried again; None: as the queue says."""
        return None if failure.kind == _UNKNOWN else called(self._tasks, message).task.retry

    def decided(self, message: Message, error: Exception, deliveries: int) -> tuple[float | None, bool]:
        """Returns the seconds until a call is tried again (None: as the queue says), and whether it is."""
        retry = self.retry_of(message, Failure.of(error)) or TaskRetry(None, None)
        again = retry.attempts is None or deliveries < retry.attempts
        return retry.delay(deliveries, random()) if again else None, again  # noqa: S311 - spreads load


class AsyncTasks(PlainTasks):
    """Calls tasks of both kinds: the handler of an async worker. Plain ones run in threads."""

    async def __call__(self, message: Message, _context: object) -> None:  # type: ignore[override] # workers ask
        """Calls the task of a message."""
        await self.run_async(message)


_UNKNOWN = f"{UnknownTask.__module__}.{UnknownTask.__qualname__}"


def _check(task: Task[Any, Any], name: str, value: object) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        text = f"argument {name} of task {task.name} is no JSON: {error}"
        raise InvalidArgument(f"{text}. Send what names it, such as a path or an id") from error


@contextmanager
def _interrupted(task: Task[Any, Any]) -> Iterator[None]:
    """Raises TimeLimit in a plain task that takes too long, in the main thread of a process."""
    if task.timeout is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def too_long(*_: object) -> None:
        raise _too_long(task)

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, task.timeout)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _too_long(task: Task[Any, Any]) -> TimeLimit:
    return TimeLimit(f"task {task.name} took longer than {task.timeout:g} s")


def _by_queue(calls: Iterable[TaskCall]) -> dict[str, list[msgspec.Raw]]:
    found: dict[str, list[msgspec.Raw]] = {}
    for call in calls:
        found.setdefault(call.queue, []).append(call.body)
    return found
