"""Calling the tasks that messages name: the handler of a worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from qdo.errors import UnknownTask
from qdo.jobs.tasks import Invocation, Task
from qdo.worker.executors.in_process import limited
from qdo.worker.failure import Failure, TaskRetry
from queuey.client.claims.handlers import check_ran

if TYPE_CHECKING:
    from queuey.client import AsyncClient, Message


class Called(NamedTuple):
    """A task and the arguments that a message has for it."""

    task: Task[Any, Any, Any]
    arguments: inspect.BoundArguments

    def run(self) -> None:
        """Calls a plain task.

        Raises:
            NothingRan: It returned something to be awaited, or a generator.
        """
        result = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        check_ran(result, f"task {self.task.name}")

    def error(self) -> BaseException | None:
        """Calls a plain task; returns its error, because a future cannot carry each one (StopIteration)."""
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the failure of the call
            return error
        return None

    async def awaited(self) -> None:
        """Calls an async task.

        Raises:
            TimeLimit: It took too long.
        """
        call = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        result = await (call if self.task.timeout is None else limited(call, self.task.timeout, self.task))
        if result is not None:
            check_ran(result, f"task {self.task.name}")


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


class PlainTasks:
    """Calls plain tasks: the handler of a worker with threads or processes."""

    def __init__(
        self, tasks: Mapping[str, Task[Any, Any, Any]], prepare: Callable[[AsyncClient], Coroutine[Any, Any, None]]
    ) -> None:
        self._tasks = tasks
        self.prepare = prepare
        """Run beside the messages when a worker starts."""
        limited = [task.name for task in tasks.values() if task.timeout is not None and not task.is_async]
        self.needs_processes = ", ".join(limited)
        """Names of plain tasks with a timeout, for which a worker needs processes."""
        self.is_mixed = len({task.is_async for task in tasks.values()}) > 1
        """There are plain and async tasks."""

    def call_plain(self, message: Message, _context: object) -> None:
        called(self._tasks, message).run()

    __call__ = call_plain

    def task_of(self, message: Message) -> Task[Any, Any, Any] | None:
        """Returns the task that a message calls, or None if it calls no known task."""
        name = message.body.get("task") if isinstance(message.body, dict) else None
        return self._tasks.get(name) if isinstance(name, str) else None

    def run(self, message: Message) -> None:
        call = called(self._tasks, message)
        if call.task.is_async:
            asyncio.run(call.awaited())
        else:
            call.run()

    async def run_async(self, message: Message) -> None:
        call = called(self._tasks, message)
        if call.task.is_async:
            await call.awaited()
        elif (error := await asyncio.to_thread(call.error)) is not None:
            raise error

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

    async def __call__(self, message: Message, _context: object) -> None:  # type: ignore[override] # workers ask
        await self.run_async(message)


_UNKNOWN = f"{UnknownTask.__module__}.{UnknownTask.__qualname__}"
