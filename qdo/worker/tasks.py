"""Async functions as tasks of the worker's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from qdo.worker.contexts import enter
from qdo.worker.failure import Delivery, Ran
from qdo.worker.handlers import Context
from qdo.worker.hooks import Hooks
from qdo.worker.lanes import Run
from qdo.worker.loops import Control, run_async
from queuey.client import Message


class Tasks:
    """One task for a run.

    Args:
        handler: Async function.
        context: Factory of its second argument; None: an empty dict.
        count: Runs at the same moment.
        seconds: After which a run ends before its last message.
        hooks: Called around each message.
        limit: Seconds that one call may take; None: any. A handler that swallows its cancellation cannot be stopped.
    """

    def __init__(
        self,
        handler: Callable[[Message, Any], Awaitable[Any]],
        context: Context | None,
        count: int,
        seconds: float,
        hooks: Hooks,
        limit: float | None,
    ) -> None:
        self.slots = count
        self._handler = handler
        self._factory = context
        self._seconds = seconds
        self._hooks = hooks
        self._limit = limit
        self._entered = AsyncExitStack()
        self._context: Any = None
        self._running: dict[Control, asyncio.Task[Ran]] = {}

    async def open(self) -> None:
        """Enters the context."""
        self._context = await enter(self._factory, self._entered)

    def start(self, run: Run, place: Delivery, control: Control) -> asyncio.Future[Ran]:
        """Begins a run in a task."""
        task = asyncio.get_running_loop().create_task(
            run_async(
                self._handler, self._context, run.messages, place, control, self._seconds, self._hooks, self._limit
            )
        )
        control.begun = True
        self._running[control] = task
        task.add_done_callback(lambda _: self._running.pop(control, None))
        return task

    def abandon(self, control: Control) -> bool:
        """Cancels the run; one that goes on all the same gets no more messages, and another may run beside it."""
        control.stop()
        task = self._running.get(control)
        if task is None or not task.cancelling():
            return task is None or task.cancel()
        self.slots += 1
        task.add_done_callback(self._ended)
        return False

    def _ended(self, _: asyncio.Task[Ran]) -> None:
        self.slots -= 1

    def give_up(self) -> bool:
        """Cancels what is running."""
        for task in self._running.values():
            task.cancel()
        return True

    async def close(self) -> None:
        """Leaves the context."""
        await self._entered.aclose()
