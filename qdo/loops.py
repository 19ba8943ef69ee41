"""Helpers for asyncio: background tasks, events with a timeout, and an event loop for blocking callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from qdo.errors import InvalidArgument, NotOwner

T = TypeVar("T")

CANCEL_GRACE = 1.0
"""Seconds for a cancelled task to end, after which it is cancelled again or no longer waited for."""


def start_task(work: Coroutine[Any, Any, T], running: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    task = asyncio.get_running_loop().create_task(work)
    running.add(task)
    task.add_done_callback(running.discard)
    return task


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_event(event: asyncio.Event, within: float) -> bool:
    try:
        async with asyncio.timeout(within):
            return await event.wait()
    except TimeoutError:
        return False


class Signal:
    """A repeating event for waiters in one event loop.

    Attributes:
        next: The event that the next :meth:`notify` sets.
    """

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def notify(self) -> None:
        self.next.set()
        self.next = asyncio.Event()


class LoopThread:
    """An event loop in a daemon thread.

    Args:
        what: The object that uses it, such as ``consumer``, for thread names and errors.

    Attributes:
        alive: False once the loop was stopped.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.alive = True
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"qdo-{what}", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and waits for its result. An error while waiting, such as Ctrl-C, cancels it.

        Raises:
            InvalidArgument: The caller runs in the loop's thread, which would wait for itself.
            NotOwner: The loop was stopped.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidArgument(f"blocking calls cannot be made from the {self._what}'s own event loop")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise NotOwner(f"the {self._what} is closed") from None
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def run(self, function: Callable[[], T]) -> T:
        """Calls a function in the loop and waits for its result. Raises the errors of :meth:`call`."""

        async def work() -> T:
            return function()

        return self.call(work())

    def call_soon(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """Cancels the remaining calls and ends the thread. Idempotent."""
        self.alive = False
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_twice(asyncio.all_tasks(self._loop)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _cancel_twice(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancels tasks, a second time if they still wait after ``CANCEL_GRACE``, such as for a callback's thread."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, waiting = await asyncio.wait(tasks, timeout=CANCEL_GRACE)
        await cancel(*waiting)
