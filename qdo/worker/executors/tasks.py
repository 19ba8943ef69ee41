"""Async functions as tasks of the worker's loop."""

from __future__ import annotations

import asyncio
from typing import Any

from qdo.worker.dispatch.partition_queue import MessageRun
from qdo.worker.executors.executor import InThisProcess
from qdo.worker.executors.run_handler import RunControl, run_async
from qdo.worker.failure import Delivery, RunResult


class TaskExecutor(InThisProcess):
    """One task for a run.

    Args:
        *shared: See :class:`.running.InThisProcess`.
        limit: Seconds that one call may take; None: any. A handler that swallows its cancellation cannot be stopped.
    """

    def __init__(self, *shared: Any, limit: float | None) -> None:  # noqa: ANN401 - see there
        super().__init__(*shared)
        self._limit = limit
        self._running: dict[RunControl, asyncio.Task[RunResult]] = {}

    def start(self, run: MessageRun, place: Delivery, control: RunControl) -> asyncio.Future[RunResult]:
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

    def abandon(self, control: RunControl) -> bool:
        """Cancels the run; one that goes on all the same gets no more messages, and another may run beside it."""
        control.stop()
        task = self._running.get(control)
        if task is None or not task.cancelling():
            return task is None or task.cancel()
        self.slots += 1
        task.add_done_callback(self._ended)
        return False

    def _ended(self, _: asyncio.Task[RunResult]) -> None:
        self.slots -= 1

    def give_up(self) -> bool:
        """Cancels what is running."""
        for task in self._running.values():
            task.cancel()
        return True
