"""The tasks of a program: how calls are sent, and how a worker calls what messages name."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from random import random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack, overload

import msgspec

from qdo.errors import InvalidArgument, UnknownTask
from qdo.jobs.queues import (
    JobQueueOptions,
    create_queue,
    create_queue_async,
    job_queues,
    keep_queues,
    sending,
    sending_async,
)
from qdo.jobs.schedules import (
    TaskSchedule,
    check_scheduled,
    keep_schedules,
    put_schedules,
    put_schedules_async,
    timetable_of,
)
from qdo.jobs.tasks import Invocation, Task, TaskCall, Unique, check_unique, many, send_call, send_call_async
from qdo.worker.executors.in_process import limited
from qdo.worker.failure import Failure, TaskRetry
from queuey.client import AsyncClient, Client
from queuey.client.claims.handlers import check_ran, keep_result, runs_nothing
from queuey.terminal.task_calls import HIDDEN, ShownCall, shown_call

if TYPE_CHECKING:
    from queuey.client import Backoff, Message, Receipt, Schedule
    from queuey.client.results import Queue

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskOptions(TypedDict, total=False):
    """Options of :meth:`Jobs.task`; None: not given.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task(retries=3, cron="0 3 * * *", timezone="Europe/Berlin")
        ... def tidy_up() -> None: ...

    Attributes:
        name: What travels in messages; None: the function's own name. It must stay the same while calls wait.
        queue: Its queue; not given: the first.
        retries: How often a call that failed is tried again; then it is a dead letter. None: as the queue's
            ``max_deliveries`` says, which counts in any case.
        backoff: When it is tried again; None: as the queue's ``backoff`` says.
        timeout: How long a call may take; a number is seconds. That of a plain function needs a worker with
            processes, because a thread cannot be stopped.
        cron: When the service calls it, without arguments: minute, hour, day of the month, month, day of the week.
        timezone: Of ``cron``, such as ``Europe/Berlin``; None: ``UTC``.
        every: The service calls it so often, in place of ``cron``: at least 10 seconds; a number is seconds.
        missed: For times at which no process of the service ran: ``skip`` (None) or ``catch_up``.
        show_arguments: False: the worker's log and spans name the task alone, because its arguments are secret. Callers
            that may read the queue still see them, as in the messages.
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
            that name none; at most 10. A mapping gives each of them options of its own.
        client: Sends; None: one that the profile of the user tells where to go.
        async_client: Sends for async code; None: the same for each event loop.
        options: Options of all these queues; see :class:`JobQueueOptions`.

    Attributes:
        queues: The queues.

    Raises:
        InvalidArgument: There can be no such queue, or not with these options.
    """

    def __init__(
        self,
        queue: str | Iterable[str] | Mapping[str, JobQueueOptions],
        *,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        **options: Unpack[JobQueueOptions],
    ) -> None:
        self._queues = job_queues(queue, options)
        self.queues = tuple(self._queues)
        self._tasks: dict[str, Task[Any, Any, Any]] = {}
        self._client = client
        self._async_client = async_client
        self._is_sync_only = False
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncClient, AsyncGenerator[None]]] = {}
        """Clients by event loop, each with the generator that closes it at the end of its loop."""
        self._lock = threading.Lock()

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, Receipt]: ...

    @overload
    def task(
        self, /, *, unique: None = None, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R, Receipt]]: ...

    @overload
    def task(
        self, /, *, unique: Unique, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R, Receipt | None]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        unique: Unique | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Makes a task of a plain or async function.

        Args:
            function: Given when it is used as ``@jobs.task``.
            unique: Of calls that have this in common one is sent while it waits or runs. True: all arguments; a text
                with arguments in braces, such as ``"order {order}"``; or a function that takes the arguments and
                returns a text. None: each call is sent.
            options: See :class:`TaskOptions`.

        Raises:
            InvalidArgument: Another task has the name, or there is no such queue; or an option cannot be; or a call of
                the function would run nothing, because it is a generator or a class.
        """
        target = self.queues[0] if (queue := options.get("queue")) is None else queue
        timeout, retries = options.get("timeout"), options.get("retries")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if target not in self.queues:
            raise InvalidArgument(f"queue is {queue!r}: it is not one of {', '.join(self.queues)}")
        if retries is not None and retries < 0:
            raise InvalidArgument(f"retries is {retries}: it is not negative")
        if seconds is not None and seconds <= 0:
            raise InvalidArgument(f"timeout is {timeout}: it is more than nothing")
        retry = TaskRetry(None if retries is None else retries + 1, options.get("backoff"))

        def make(function: Callable[..., Any]) -> Task[..., Any, Any]:
            called = _name_of(function, options.get("name"))
            if called in self._tasks:
                raise InvalidArgument(f"there are two tasks {called!r}: name one of them: @jobs.task(name=...)")
            times = options.get("cron"), options.get("timezone"), options.get("every"), options.get("missed")
            timetable = timetable_of(called, *times)
            if unique is not None:
                check_unique(unique, function, called)
                if timetable is not None:
                    raise InvalidArgument(f"task {called} has a timetable, whose calls have no names: leave out unique")
            if timetable is not None:
                check_scheduled(function, called, target)
            made = self._tasks[called] = Task(self, function, called, target, retry, seconds, unique, timetable)
            made.show_arguments = options.get("show_arguments", True)
            return made

        return make if function is None else make(function)

    # Sending

    @property
    def client(self) -> Client:
        """The client that sends."""
        with self._lock:
            if self._client is None:
                self._client = Client()
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The client that sends for the running event loop; ``asyncio.run`` closes it at its end."""
        if self._async_client is not None:
            return self._async_client
        if self._is_sync_only:
            raise InvalidArgument("jobs.using() has no async client: give it one of the same store, after the client")
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._clients:
                self._clients = {each: kept for each, kept in self._clients.items() if not each.is_closed()}
                client = AsyncClient()
                self._clients[loop] = client, self._close_with_loop(loop, client)
                with suppress(StopIteration):  # Begun, it is among the generators that its loop closes at the end.
                    self._clients[loop][1].__anext__().send(None)
            return self._clients[loop][0]

    async def _close_with_loop(self, loop: asyncio.AbstractEventLoop, client: AsyncClient) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            await client.close()

    def send_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Sends calls of any of these tasks in as few requests as the service allows, one queue after another.

        Unique ones are sent behind the others, one by one; one whose name another call has is left out.
        """
        messages, unique = many(calls)
        receipts: list[Receipt] = []
        for queue, some in messages.items():
            receipts += self.sent(queue, partial(self.client.send_many, queue, some))
        sent = [send_call(self, call, {}) for call in unique]
        return [*receipts, *filter(None, sent)]

    async def asend_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Async variant of :meth:`send_many`."""
        messages, unique = many(calls)
        receipts: list[Receipt] = []
        for queue, some in messages.items():
            receipts += await self.asent(queue, partial(self.async_client.send_many, queue, some))
        sent = [await send_call_async(self, call, {}) for call in unique]
        return [*receipts, *filter(None, sent)]

    def sent(self, queue: str, send: Callable[[], T]) -> T:
        """Returns the result of ``send``; if the queue does not exist, it is created first."""
        return sending(self.client, self._queues.get(queue), send)

    async def asent(self, queue: str, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Async variant of :meth:`sent`."""
        return await sending_async(self.async_client, self._queues.get(queue), send)

    def create_queues(self) -> list[Queue]:
        """Creates the queues that do not exist; of the others it changes the options that the code names.

        A worker does this when it starts, except that it overrides no value that somebody has set.

        Raises:
            NotAllowed: It takes ``admin`` for the queues.
            InvalidRequest: A queue cannot be changed like this: its partitions only grow, and its kind stays.
        """
        return [create_queue(self.client, queue) for queue in self._queues.values()]

    async def acreate_queues(self) -> list[Queue]:
        """Async variant of :meth:`create_queues`."""
        return [await create_queue_async(self.async_client, queue) for queue in self._queues.values()]

    def put_schedules(self) -> list[Schedule]:
        """Makes the service call the tasks that have ``cron`` or ``every``; returns their schedules.

        A worker does this when it starts, if its credential may. Schedules that are as the code says stay unchanged.

        Raises:
            NotAllowed: It takes ``admin`` and ``send`` for the queues.
            InvalidRequest: A cron expression or time zone is invalid.
        """
        return put_schedules(self.client, self._schedules())

    async def aput_schedules(self) -> list[Schedule]:
        """Async variant of :meth:`put_schedules`."""
        return await put_schedules_async(self.async_client, self._schedules())

    def _schedules(self) -> list[TaskSchedule]:
        return [
            TaskSchedule(task.name, task.queue, task.timetable, task.call().body)
            for task in self._tasks.values()
            if task.timetable is not None
        ]

    def close(self) -> None:
        """Closes the client that was made for sending, if there is one; see :meth:`aclose`."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    async def aclose(self) -> None:
        """Closes the client of the running event loop."""
        if self._async_client is not None:
            await self._async_client.close()
        elif (kept := self._clients.get(asyncio.get_running_loop())) is not None:
            await kept[1].aclose()

    # Handling

    def as_handler(self) -> PlainTasks | AsyncTasks:
        """Returns the handler for a worker."""
        has_async = any(task.is_async for task in self._tasks.values())
        return (AsyncTasks if has_async else PlainTasks)(self._tasks, self._keep_queues, self._keep_schedules)

    async def _keep_queues(self, client: AsyncClient) -> None:
        await keep_queues(client, self._queues.values())

    async def _keep_schedules(self, client: AsyncClient) -> None:
        await keep_schedules(client, self.queues, self._schedules())

    @contextmanager
    def using(self, client: Client, async_client: AsyncClient | None = None) -> Iterator[None]:
        """Sends and runs calls with other clients inside, and with no others; for tests of a program."""
        own = self._client, self._async_client, self._is_sync_only
        self._client, self._async_client, self._is_sync_only = client, async_client, async_client is None
        try:
            yield
        finally:
            self._client, self._async_client, self._is_sync_only = own

    def run_all(self, *, until: Literal["settled"] | None = None) -> int:
        """Runs the calls that wait, one after another, in this process, until there is none; for tests of a program.

        Calls that are not due are left. When one fails, its message is released as by a worker. Their receipts have
        results, if the queue has a ``result_ttl``.

        Args:
            until: ``settled``: calls that fail are tried again at once, without their backoff, until each is done or a
                dead letter.

        Returns:
            How many were run.

        Raises:
            Exception: That of a task; if ``settled``, only of one that has failed 100 times and is to be tried again.
        """
        check_until(until)
        count, handler = 0, self.as_handler()
        for job in self.client.job_queue(self.queues).claim(idle=0):
            try:
                result = handler.run(job.message)
            except Exception as error:
                delay, again = handler.decided(job.message, error, job.deliveries)
                job.release(0 if until else delay, error, retry=again)
                if until is None or (again and is_endless(error, job.deliveries)):
                    raise
            else:
                keep_result(job, result)
            count += 1
        return count

    async def arun_all(self, *, until: Literal["settled"] | None = None) -> int:
        """Async variant of :meth:`run_all`."""
        check_until(until)
        count, handler = 0, self.as_handler()
        async for job in self.async_client.job_queue(self.queues).claim(idle=0):
            try:
                result = await handler.run_async(job.message)
            except Exception as error:
                delay, again = handler.decided(job.message, error, job.deliveries)
                await job.release(0 if until else delay, error, retry=again)
                if until is None or (again and is_endless(error, job.deliveries)):
                    raise
            else:
                keep_result(job, result)
            count += 1
        return count


MAX_ATTEMPTS = 100
"""Max attempts at a call until ``run_all`` gives it up."""


def check_until(until: str | None) -> None:
    """Raises InvalidArgument if ``run_all`` cannot run until then."""
    if until not in {None, "settled"}:
        raise InvalidArgument(f"until is {until!r}: it is 'settled', or left out")


def is_endless(error: Exception, deliveries: int) -> bool:
    """Returns whether a call has failed so often that it seems to be tried for ever; says so in its error."""
    if deliveries < MAX_ATTEMPTS:
        return False
    hint = "Limit it: @jobs.task(retries=...), or max_deliveries of its queue"
    error.add_note(f"It has failed {deliveries} times. {hint}")
    return True


def _name_of(function: Callable[..., Any], name: str | None) -> str:
    """Returns the name of a task; raises InvalidArgument if it has no name, or if a call would run nothing."""
    called = name or getattr(function, "__name__", None)
    if called is None:
        raise InvalidArgument(f"{function!r} has no name: give it one: @jobs.task(name=...)")
    if (why := runs_nothing(function)) is not None:
        raise InvalidArgument(f"task {called} {why}")
    return str(called)


class Called(NamedTuple):
    """A task and the arguments that a message has for it."""

    task: Task[Any, Any, Any]
    arguments: inspect.BoundArguments

    def run(self) -> object:
        """Calls a plain task; returns its result.

        Raises:
            NothingRan: It returned something to be awaited, or a generator.
        """
        result: object = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        check_ran(result, f"task {self.task.name}")
        return result

    def outcome(self) -> tuple[object, BaseException | None]:
        """Calls a plain task; returns its result and its error: a future cannot carry each one (StopIteration)."""
        try:
            return self.run(), None
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the failure of the call
            return None, error

    async def awaited(self) -> object:
        """Calls an async task; returns its result.

        Raises:
            TimeLimit: It took too long.
        """
        call = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        result: object = await (call if self.task.timeout is None else limited(call, self.task.timeout, self.task))
        if result is not None:
            check_ran(result, f"task {self.task.name}")
        return result


def called(tasks: Mapping[str, Task[Any, Any, Any]], message: Message) -> Called:
    """Returns which task a message calls, and with what."""
    try:
        call = msgspec.convert(message.body, Invocation)
    except msgspec.ValidationError as error:
        raise UnknownTask(f"message {message.id} calls no task: {error}") from error
    task = tasks.get(call.task)
    if task is None:
        raise UnknownTask(f"there is no task {call.task!r} here, but {', '.join(sorted(tasks)) or 'none'}")
    try:
        return Called(task, task.bound(call))
    except (TypeError, ValueError) as error:
        raise UnknownTask(f"task {call.task} does not take these arguments: {error}") from error


AtStart = Callable[[AsyncClient], Coroutine[Any, Any, None]]


class PlainTasks:
    """Calls plain tasks: the handler of a worker with threads or processes."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any, Any]], keep_queues: AtStart, keep_schedules: AtStart) -> None:
        self._tasks = tasks
        self.keep_queues = keep_queues
        """Awaited before the first claim when a worker starts."""
        self.prepare = keep_schedules
        """Run beside the messages when a worker starts."""
        limited = [task.name for task in tasks.values() if task.timeout is not None and not task.is_async]
        self.needs_processes = ", ".join(limited)
        """Names of plain tasks with a timeout, for which a worker needs processes."""
        self.is_mixed = len({task.is_async for task in tasks.values()}) > 1
        """There are plain and async tasks."""

    def call_plain(self, message: Message, _context: object) -> object:
        return called(self._tasks, message).run()

    __call__ = call_plain

    def task_of(self, message: Message) -> Task[Any, Any, Any] | None:
        """Returns the task that a message calls, or None if it calls no known task."""
        name = message.body.get("task") if isinstance(message.body, dict) else None
        return self._tasks.get(name) if isinstance(name, str) else None

    def names_of(self, handled: Sequence[Message]) -> list[str]:
        """Returns the names of the tasks of messages that were handled: each of them calls a known task."""
        return [message.body["task"] for message in handled]

    def call_of(self, message: Message) -> ShownCall | None:
        """Returns the call of a message for logs and spans, without arguments that are not to be shown."""
        call = shown_call(msgspec.json.encode(message.body)) if isinstance(message.body, dict) else None
        task = self.task_of(message)
        return call if call is None or (task is not None and task.show_arguments) else call._replace(arguments=HIDDEN)

    def run(self, message: Message) -> object:
        call = called(self._tasks, message)
        return asyncio.run(call.awaited()) if call.task.is_async else call.run()

    async def run_async(self, message: Message) -> object:
        call = called(self._tasks, message)
        if call.task.is_async:
            return await call.awaited()
        result, error = await asyncio.to_thread(call.outcome)
        if error is not None:
            raise error
        return result

    def retry_of(self, message: Message, failure: Failure) -> TaskRetry | None:
        """Returns when the call of a message is tried again; None: as the queue says."""
        return None if failure.kind == _UNKNOWN else called(self._tasks, message).task.retry

    def decided(self, message: Message, error: Exception, deliveries: int) -> tuple[float | None, bool]:
        """Returns the seconds until a call is tried again (None: as the queue says), and whether it is."""
        retry = self.retry_of(message, Failure.of(error)) or TaskRetry()
        again = retry.attempts is None or deliveries < retry.attempts
        return retry.delay(deliveries, random()) if again else None, again  # noqa: S311 - spreads load


class AsyncTasks(PlainTasks):
    """Calls tasks of both kinds: the handler of an async worker, which calls plain ones by :meth:`call_plain`."""

    async def __call__(self, message: Message, _context: object) -> object:  # workers ask
        return await self.run_async(message)


_UNKNOWN = f"{UnknownTask.__module__}.{UnknownTask.__qualname__}"
