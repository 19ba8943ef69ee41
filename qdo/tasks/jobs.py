"""The tasks of a program: sending their calls, and calling them in a worker."""

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
from qdo.tasks.queues import (
    JobQueueOptions,
    create_queue,
    create_queue_async,
    keep_queues,
    make_job_queues,
    send_or_create_queue,
    send_or_create_queue_async,
)
from qdo.tasks.schedules import (
    TaskSchedule,
    check_scheduled,
    keep_schedules,
    make_timetable,
    put_schedules,
    put_schedules_async,
)
from qdo.tasks.tasks import Invocation, Task, TaskCall, Unique, bind_type, group_by_queue, send_call, send_call_async
from qdo.worker.executors.in_process import await_with_limit
from qdo.worker.failure import Failure, TaskRetry
from queuey.client import AsyncClient, Client, Outgoing
from queuey.client.claims.handlers import check_ran, explain_unusable, keep_result
from queuey.model.task_calls import HIDDEN, ShownCall, find_call

if TYPE_CHECKING:
    from queuey.client import Backoff, Message, Receipt, Schedule
    from queuey.client.results import Queue

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class TaskOptions(TypedDict, total=False):
    """Options of :meth:`Jobs.task`. None means the default.

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


class Jobs:
    """The tasks of a program. Their calls are sent to a queue, and ``qdo work module:jobs`` runs them.

    Example:
        >>> from qdo import Jobs
        >>> jobs = Jobs("orders")
        >>> @jobs.task(retries=3, timeout=60)
        ... async def weigh(pieces: int, *, unit: str = "kg") -> None:
        ...     print(pieces, unit)
        >>> receipt = weigh.send(7, unit="lb")
        >>> jobs.close()

    Args:
        queue: The queue that calls are sent to and workers claim from, or up to 10 queues in order of preference. Tasks
            without a queue use the first. A mapping gives each queue its own options.
        client: Sends calls; by default a client of the user's profile.
        async_client: Sends calls of async code; by default such a client for each event loop.
        options: Options of all these queues; see :class:`JobQueueOptions`.

    Attributes:
        queues: The names of the queues.

    Raises:
        InvalidArgument: A queue name or an option is not valid.
    """

    def __init__(
        self,
        queue: str | Iterable[str] | Mapping[str, JobQueueOptions],
        *,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        **options: Unpack[JobQueueOptions],
    ) -> None:
        self._queues = make_job_queues(queue, options)
        self.queues = tuple(self._queues)
        self._tasks: dict[str, Task[Any, Any, Any]] = {}
        self._client = client
        self._async_client = async_client
        self._is_sync_only = False
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncClient, AsyncGenerator[None]]] = {}
        """The client of each event loop, with the generator that closes it when the loop ends."""
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
            function: The function, when used as ``@jobs.task``.
            unique: The name of a call. While a call waits or runs, no other with the same name is sent. True names it
                by all arguments. A string names it by the arguments in braces, such as ``"order {order}"``. A function
                gets the arguments and returns the name. None sends every call.
            options: See :class:`TaskOptions`.

        Raises:
            InvalidArgument: Another task has the name, these jobs do not have the queue, an option is not valid, or
                calling the function would run nothing, because it is a generator or a class.
        """
        target = self.queues[0] if (queue := options.get("queue")) is None else queue
        timeout, retries = options.get("timeout"), options.get("retries")
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if target not in self.queues:
            raise InvalidArgument(f"queue is {queue!r}, which is not one of {', '.join(self.queues)}")
        if retries is not None and retries < 0:
            raise InvalidArgument(f"retries is {retries}: use 0 or more")
        if seconds is not None and seconds <= 0:
            raise InvalidArgument(f"timeout is {timeout}: use more than 0")
        retry = TaskRetry(None if retries is None else retries + 1, options.get("backoff"))

        def make(function: Callable[..., Any]) -> Task[..., Any, Any]:
            called = _find_task_name(function, options.get("name"))
            if called in self._tasks:
                raise InvalidArgument(f"there are two tasks {called!r}: rename one of them with @jobs.task(name=...)")
            times = options.get("cron"), options.get("timezone"), options.get("every"), options.get("missed")
            timetable = make_timetable(called, *times)
            if unique is not None and timetable is not None:
                raise InvalidArgument(f"scheduled calls of task {called} cannot be unique: leave out unique")
            if timetable is not None:
                check_scheduled(function, called, target)
            made = self._tasks[called] = Task(self, function, called, target, retry, seconds, unique, timetable)
            made.show_arguments = options.get("show_arguments", True)
            return made

        return make if function is None else make(function)

    # Sending

    @property
    def client(self) -> Client:
        """The client that sends calls; without a given one, it is created at the first use."""
        with self._lock:
            if self._client is None:
                self._client = Client()
            return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The client that sends calls in the running event loop; ``asyncio.run`` closes it unless it was given.

        Raises:
            InvalidArgument: :meth:`using` was called without an async client.
        """
        if self._async_client is not None:
            return self._async_client
        if self._is_sync_only:
            raise InvalidArgument("jobs.using() has no async client: pass one of the same store as second argument")
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._clients:
                self._clients = {other: entry for other, entry in self._clients.items() if not other.is_closed()}
                client = AsyncClient()
                self._clients[loop] = client, self._close_with_loop(loop, client)
                with suppress(StopIteration):  # Once started, the generator is closed by its loop at the end.
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

        Unique calls are sent after the others, one by one. A unique call is left out if another has its name.
        """
        by_queue, unique = group_by_queue(calls)
        receipts: list[Receipt] = []
        for queue, group in by_queue.items():
            outgoing = [Outgoing(json=call.body) for call in group]
            receipts += map(bind_type, self.sent(queue, partial(self.client.send_many, queue, outgoing)), group)
        sent = [send_call(self, call, {}) for call in unique]
        return [*receipts, *filter(None, sent)]

    async def asend_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Async variant of :meth:`send_many`."""
        by_queue, unique = group_by_queue(calls)
        receipts: list[Receipt] = []
        for queue, group in by_queue.items():
            outgoing = [Outgoing(json=call.body) for call in group]
            sent = await self.asent(queue, partial(self.async_client.send_many, queue, outgoing))
            receipts += map(bind_type, sent, group)
        named = [await send_call_async(self, call, {}) for call in unique]
        return [*receipts, *filter(None, named)]

    def sent(self, queue: str, send: Callable[[], T]) -> T:
        """Calls ``send`` and returns its result. If the queue does not exist, creates it and calls ``send`` again."""
        return send_or_create_queue(self.client, self._queues.get(queue), send)

    async def asent(self, queue: str, send: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Async variant of :meth:`sent`."""
        return await send_or_create_queue_async(self.async_client, self._queues.get(queue), send)

    def create_queues(self) -> list[Queue]:
        """Creates missing queues, and sets the options given in the code on existing ones.

        A worker does this when it starts, too, but does not override values that are already set.

        Raises:
            NotAllowed: The credential lacks ``admin`` for the queues.
            InvalidRequest: An existing queue cannot be changed like this: its kind is fixed, and partitions only grow.
        """
        return [create_queue(self.client, queue) for queue in self._queues.values()]

    async def acreate_queues(self) -> list[Queue]:
        """Async variant of :meth:`create_queues`."""
        return [await create_queue_async(self.async_client, queue) for queue in self._queues.values()]

    def put_schedules(self) -> list[Schedule]:
        """Creates or updates the schedules of tasks with ``cron`` or ``every``, and returns them.

        A worker does this when it starts, if its credential has the rights. Schedules that match the code are not
        written.

        Raises:
            NotAllowed: The credential lacks ``admin`` or ``send`` for the queues.
            InvalidRequest: A cron expression or time zone is invalid.
        """
        return put_schedules(self.client, self._make_schedules())

    async def aput_schedules(self) -> list[Schedule]:
        """Async variant of :meth:`put_schedules`."""
        return await put_schedules_async(self.async_client, self._make_schedules())

    def _make_schedules(self) -> list[TaskSchedule]:
        return [
            TaskSchedule(task.name, task.queue, task.timetable, task.call().body)
            for task in self._tasks.values()
            if task.timetable is not None
        ]

    def close(self) -> None:
        """Closes the client that sends calls, also a given one. Clients of event loops are closed by :meth:`aclose`."""
        with self._lock:
            if self._client is not None:
                self._client.close()

    async def aclose(self) -> None:
        """Closes the given async client, or else the client of the running event loop."""
        if self._async_client is not None:
            await self._async_client.close()
        elif (entry := self._clients.get(asyncio.get_running_loop())) is not None:
            await entry[1].aclose()

    # Handling

    def as_handler(self) -> PlainTasks | AsyncTasks:
        """Returns the handler for a worker: an async one if any task is async."""
        has_async = any(task.is_async for task in self._tasks.values())
        return (AsyncTasks if has_async else PlainTasks)(self._tasks, self._keep_queues, self._keep_schedules)

    async def _keep_queues(self, client: AsyncClient) -> None:
        await keep_queues(client, self._queues.values())

    async def _keep_schedules(self, client: AsyncClient) -> None:
        await keep_schedules(client, self.queues, self._make_schedules())

    @contextmanager
    def using(self, client: Client, async_client: AsyncClient | None = None) -> Iterator[None]:
        """Sends and runs calls only with these clients inside the ``with`` block; for tests of a program."""
        own = self._client, self._async_client, self._is_sync_only
        self._client, self._async_client, self._is_sync_only = client, async_client, async_client is None
        try:
            yield
        finally:
            self._client, self._async_client, self._is_sync_only = own

    def run_all(self, *, until: Literal["settled"] | None = None) -> int:
        """Runs the waiting calls one after another in this process, until the queues are empty; for tests of a program.

        Calls that are not due yet are left waiting. A failed call is released, as a worker would do. Receipts get
        results if the queue has a ``result_ttl``.

        Args:
            until: With ``settled``, failed calls are retried at once, without backoff, until each is done or a dead
                letter.

        Returns:
            The number of calls that were run.

        Raises:
            Exception: The error of a task. With ``settled`` only that of a call that has failed 100 times and would be
                retried.
        """
        check_until(until)
        count, handler = 0, self.as_handler()
        for job in self.client.job_queue(self.queues).claim(idle=0):
            try:
                result = handler.run(job.message)
            except Exception as error:
                delay, again = handler.decide_retry(job.message, error, job.deliveries)
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
                delay, again = handler.decide_retry(job.message, error, job.deliveries)
                await job.release(0 if until else delay, error, retry=again)
                if until is None or (again and is_endless(error, job.deliveries)):
                    raise
            else:
                keep_result(job, result)
            count += 1
        return count


MAX_ATTEMPTS = 100
"""Max attempts at a call before ``run_all`` raises its error."""


def check_until(until: str | None) -> None:
    if until not in {None, "settled"}:
        raise InvalidArgument(f"until is {until!r}: use 'settled', or leave it out")


def is_endless(error: Exception, deliveries: int) -> bool:
    """Returns whether a call has failed ``MAX_ATTEMPTS`` times, and then adds a note to its error."""
    if deliveries < MAX_ATTEMPTS:
        return False
    hint = "Limit the retries with @jobs.task(retries=...) or max_deliveries of its queue"
    error.add_note(f"The call has failed {deliveries} times. {hint}")
    return True


def _find_task_name(function: Callable[..., Any], name: str | None) -> str:
    """Returns the name of a task. Raises InvalidArgument if it has no name, or if a call would run nothing."""
    name_of_task = name or getattr(function, "__name__", None)
    if name_of_task is None:
        raise InvalidArgument(f"{function!r} has no name: use @jobs.task(name=...)")
    if (why := explain_unusable(function)) is not None:
        raise InvalidArgument(f"task {name_of_task} {why}")
    return str(name_of_task)


class Called(NamedTuple):
    """A task and the arguments from a message."""

    task: Task[Any, Any, Any]
    arguments: inspect.BoundArguments

    def run(self) -> object:
        """Calls a plain task and returns its result.

        Raises:
            NothingRan: The function returned an awaitable or a generator, so nothing has run.
        """
        result: object = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        check_ran(result, f"task {self.task.name}")
        return result

    def run_and_catch(self) -> tuple[object, BaseException | None]:
        """Calls a plain task and returns its result and error. A future cannot carry every error (StopIteration)."""
        try:
            return self.run(), None
        except BaseException as error:  # noqa: BLE001 - any error is a failure of the call
            return None, error

    async def await_result(self) -> object:
        """Calls an async task and returns its result.

        Raises:
            TimeLimit: The call took longer than the task's timeout.
            NothingRan: The call returned an awaitable or a generator, which has not run.
        """
        call = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        result: object = await (
            call if self.task.timeout is None else await_with_limit(call, self.task.timeout, self.task)
        )
        if result is not None:
            check_ran(result, f"task {self.task.name}")
        return result


def find_task_call(tasks: Mapping[str, Task[Any, Any, Any]], message: Message) -> Called:
    """Returns the task and arguments of a message; raises UnknownTask, also for arguments that do not fit."""
    try:
        call = msgspec.convert(message.body, Invocation)
    except msgspec.ValidationError as error:
        raise UnknownTask(f"message {message.id} does not call a task: {error}") from error
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
        """Awaited before a worker's first claim."""
        self.prepare = keep_schedules
        """Runs in the background when a worker starts."""
        limited = [task.name for task in tasks.values() if task.timeout is not None and not task.is_async]
        self.needs_processes = ", ".join(limited)
        """The names of plain tasks with a timeout, which need a worker with processes."""
        self.is_mixed = len({task.is_async for task in tasks.values()}) > 1
        """Whether there are both plain and async tasks."""

    def call_plain(self, message: Message, _context: object) -> object:
        return find_task_call(self._tasks, message).run()

    __call__ = call_plain

    def task_of(self, message: Message) -> Task[Any, Any, Any] | None:
        name = message.body.get("task") if isinstance(message.body, dict) else None
        return self._tasks.get(name) if isinstance(name, str) else None

    def names_of(self, handled: Sequence[Message]) -> list[str]:
        return [message.body["task"] for message in handled]

    def call_of(self, message: Message) -> ShownCall | None:
        """Returns the call of a message for logs and spans, without hidden arguments."""
        call = find_call(msgspec.json.encode(message.body)) if isinstance(message.body, dict) else None
        task = self.task_of(message)
        return call if call is None or (task is not None and task.show_arguments) else call._replace(arguments=HIDDEN)

    def run(self, message: Message) -> object:
        """Calls a task; an async one in an event loop of its own."""
        call = find_task_call(self._tasks, message)
        return asyncio.run(call.await_result()) if call.task.is_async else call.run()

    async def run_async(self, message: Message) -> object:
        """Calls a task; a plain one in a thread."""
        call = find_task_call(self._tasks, message)
        if call.task.is_async:
            return await call.await_result()
        result, error = await asyncio.to_thread(call.run_and_catch)
        if error is not None:
            raise error
        return result

    def retry_of(self, message: Message, failure: Failure) -> TaskRetry | None:
        return None if failure.kind == _UNKNOWN else find_task_call(self._tasks, message).task.retry

    def decide_retry(self, message: Message, error: Exception, deliveries: int) -> tuple[float | None, bool]:
        """Returns the seconds until a call is retried, or None if the queue decides, and whether it is retried."""
        retry = self.retry_of(message, Failure.of(error)) or TaskRetry()
        again = retry.attempts is None or deliveries < retry.attempts
        return retry.delay(deliveries, random()) if again else None, again  # noqa: S311 - spreads load


class AsyncTasks(PlainTasks):
    """Calls plain and async tasks: the handler of an async worker. A mixed worker uses :meth:`call_plain`, too."""

    async def __call__(self, message: Message, _context: object) -> object:  # workers ask
        return await self.run_async(message)


_UNKNOWN = f"{UnknownTask.__module__}.{UnknownTask.__qualname__}"
