"""Plain functions in threads of this process: one call into a thread runs a whole run."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from qdo.worker.dispatch.partition_queue import MessageRun
from qdo.worker.executors.executor import InThisProcess
from qdo.worker.executors.run_handler import RunControl, run_plain
from qdo.worker.failure import Delivery, RunResult
from qdo.worker.handlers import Context
from qdo.worker.middleware import Hooks
from queuey.client import Message

Job = tuple[asyncio.Future[RunResult], MessageRun, Delivery, RunControl]


class ThreadExecutor(InThisProcess):
    """A pool whose threads do not keep the process from ending: one that never returns cannot be stopped.

    Each thread is started when it is needed first. Arguments: see :class:`.running.InThisProcess`.
    """

    def __init__(
        self, handler: Callable[[Message, Any], Any], context: Context | None, count: int, seconds: float, hooks: Hooks
    ) -> None:
        super().__init__(handler, context, count, seconds, hooks)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def start(self, run: MessageRun, place: Delivery, control: RunControl) -> asyncio.Future[RunResult]:
        """Begins a run in a thread."""
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        control.begun = True
        if self._busy > len(self._threads) < self.slots:
            thread = threading.Thread(target=self._work, name=f"qdo-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((future, run, place, control))
        return future

    def abandon(self, control: RunControl) -> bool:  # noqa: ARG002 - whichever it is, it cannot be stopped
        """Lets another thread begin; this one counts no more."""
        self.slots += 1
        return False

    def give_up(self) -> bool:
        """Does nothing: each run ends after its message in hand, if that ever ends."""
        return False

    async def close(self) -> None:
        """Lets the idle threads end and leaves the context."""
        for _ in self._threads:
            self._jobs.put(None)
        await super().close()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, run, place, control = job
            ran = contextvars.Context().run(
                run_plain, self._handler, self._context, run.messages, place, control, self._seconds, self._hooks
            )
            try:
                future.get_loop().call_soon_threadsafe(self._settle, future, ran, control)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _settle(self, future: asyncio.Future[RunResult], ran: RunResult, control: RunControl) -> None:
        self._busy -= 1
        self.slots -= control.abandoned is not None
        if not future.done():
            future.set_result(ran)
