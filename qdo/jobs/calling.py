"""Calling the tasks that messages name: the handler of a worker."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from qdo.errors import TimeLimit, UnknownTask
from qdo.jobs.tasks import Invocation, Task
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
            TimeLimit: It took too long; only where a signal can interrupt it.
            NothingRan: It returned something to be awaited, or a generator.
        """
        with _interrupted(self.task):
            result = self.task.function(*self.arguments.args, **self.arguments.kwargs)
        check_ran(result, f"task {self.task.name}")

    async def awaited(self) -> None:
        """Calls an async task.

        Raises:
            TimeLimit: It took too long.
        """
        timer = asyncio.timeout(self.task.timeout)
        try:
            async with timer:
                result = await self.task.function(*self.arguments.args, **self.arguments.kwargs)
        except TimeoutError as error:
            if timer.expired():
                raise _too_long(self.task) from error
            raise
        check_ran(result, f"task {self.task.name}")

    async def in_thread(self) -> None:
        """Calls a plain task in a thread; raises what it raises, also what a future cannot carry (StopIteration)."""
        error = await asyncio.to_thread(self._error)
        if error is not None:
            raise error

    def _error(self) -> BaseException | None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the failure of the call
            return error
        return None


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

    def __call__(self, message: Message, _context: object) -> None:
        called(self._tasks, message).run()

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
        elif call.task.timeout is not None:
            call.run()  # In a process of its own, where a signal can interrupt it.
        else:
            await call.in_thread()

    def retry_of(self, message: Message, failure: Failure) -> TaskRetry | None:
        """Returns when the call of a message is tried again; None: as the queue says."""
        return None if failure.kind == _UNKNOWN else called(self._tasks, message).task.retry

    def decided(self, message: Message, error: Exception, deliveries: int) -> tuple[float | None, bool]:
        """Returns the seconds until a call is tried again (None: as the queue says), and whether it is."""
        retry = self.retry_of(message, Failure.of(error)) or TaskRetry()
        again = retry.attempts is None or deliveries < retry.attempts
        return retry.delay(deliveries, random()) if again else None, again  # noqa: S311 - spreads load


class AsyncTasks(PlainTasks):
    """Calls tasks of both kinds: the handler of an async worker. Plain ones run in threads."""

    async def __call__(self, message: Message, _context: object) -> None:  # type: ignore[override] # workers ask
        await self.run_async(message)


_UNKNOWN = f"{UnknownTask.__module__}.{UnknownTask.__qualname__}"


@contextmanager
def _interrupted(task: Task[Any, Any, Any]) -> Iterator[None]:
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


def _too_long(task: Task[Any, Any, Any]) -> TimeLimit:
    return TimeLimit(f"task {task.name} took longer than {task.timeout:g} s")
