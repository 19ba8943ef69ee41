"""The tasks of a program: sending their calls, and calling them in a worker."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from random import random
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeVar, Unpack, overload

import msgspec

from qdo.errors import InvalidArgument, UnknownTask
from qdo.tasks.definitions import TaskOptions, Unique, define_task
from qdo.tasks.queues import (
    JobQueueOptions,
    TaskQueue,
    create_queue,
    create_queue_async,
    keep_queues,
    make_job_queues,
    send_or_create_queue,
    send_or_create_queue_async,
)
from qdo.tasks.schedules import TaskSchedule, keep_schedules, put_schedules, put_schedules_async
from qdo.tasks.tasks import Invocation, Task, TaskCall, bind_type, group_by_queue, send_call, send_call_async
from qdo.worker.executors.in_process import await_with_limit
from qdo.worker.failure import Failure
from qdo.worker.handlers import TaskHandler, find_retry
from queuey.client import AsyncClient, Client, Outgoing
from queuey.client.claims.handlers import check_ran, keep_result

if TYPE_CHECKING:
    from queuey.client import Message, Receipt, Schedule
    from queuey.client.results import Queue

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


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

        def make(function: Callable[..., Any]) -> Task[..., Any, Any]:
            definition = define_task(function, self.queues, unique, options)
            name = definition.name
            if name in self._tasks:
                raise InvalidArgument(f"there are two tasks {name!r}: rename one of them with @jobs.task(name=...)")
            made = self._tasks[name] = Task(self, function, definition)
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
        return put_schedules(self.client, _make_schedules(self._tasks))

    async def aput_schedules(self) -> list[Schedule]:
        """Async variant of :meth:`put_schedules`."""
        return await put_schedules_async(self.async_client, _make_schedules(self._tasks))

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

    def as_handler(self) -> JobsHandler:
        """Returns the handler for a worker: an async one if any task is async."""
        return JobsHandler(self._tasks, self._queues)

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
        timeout = self.task.definition.timeout
        result: object = await (call if timeout is None else await_with_limit(call, timeout, f"task {self.task.name}"))
        if result is not None:
            check_ran(result, f"task {self.task.name}")
        return result


def find_task_call(tasks: Mapping[str, Task[Any, Any, Any]], message: Message) -> Called:
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


def _make_schedules(tasks: Mapping[str, Task[Any, Any, Any]]) -> list[TaskSchedule]:
    return [
        TaskSchedule(task.name, task.queue, timetable, task.call().body)
        for task in tasks.values()
        if (timetable := task.definition.timetable) is not None
    ]


class JobsHandler(TaskHandler):
    """Calls tasks. It is async if any task is async; a worker calls plain tasks beside async ones in threads."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any, Any]], queues: Mapping[str, TaskQueue]) -> None:
        self._tasks = tasks
        self.tasks = {name: task.definition for name, task in tasks.items()}
        self._queues = queues
        kinds = {task.is_async for task in self.tasks.values()}
        self.call = self._call_async if True in kinds else self._call_plain
        self.call_plain = self._call_plain if len(kinds) > 1 else None

    def _call_plain(self, message: Message, _context: object) -> object:
        return find_task_call(self._tasks, message).run()

    async def _call_async(self, message: Message, _context: object) -> object:
        return await self.run_async(message)

    async def keep_queues(self, client: AsyncClient) -> None:
        await keep_queues(client, self._queues.values())

    async def keep_schedules(self, client: AsyncClient) -> None:
        await keep_schedules(client, tuple(self._queues), _make_schedules(self._tasks))

    def run(self, message: Message) -> object:
        """Calls a task; an async one in an event loop of its own."""
        call = find_task_call(self._tasks, message)
        return asyncio.run(call.await_result()) if call.task.definition.is_async else call.run()

    async def run_async(self, message: Message) -> object:
        """Calls a task; a plain one in a thread."""
        call = find_task_call(self._tasks, message)
        if call.task.definition.is_async:
            return await call.await_result()
        result, error = await asyncio.to_thread(call.run_and_catch)
        if error is not None:
            raise error
        return result

    def decide_retry(self, message: Message, error: Exception, deliveries: int) -> tuple[float | None, bool]:
        """Returns the seconds until a call is retried, or None if the queue decides, and whether it is retried."""
        retry = find_retry(self.task_of(message), Failure.of(error))
        again = retry.attempts is None or deliveries < retry.attempts
        return retry.delay(deliveries, random()) if again else None, again  # noqa: S311 - spreads load
