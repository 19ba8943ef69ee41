"""Where handlers run: what threads, tasks and processes have in common, and what those in this process share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Protocol

from qdo.worker.dispatch.partition_queue import MessageRun
from qdo.worker.executors.handler_context import enter
from qdo.worker.executors.run_handler import RunControl
from qdo.worker.failure import Delivery, RunResult
from qdo.worker.handlers import Context
from qdo.worker.middleware import Hooks


class Executor(Protocol):
    """Runs messages somewhere, a bounded number of runs at a time."""

    slots: int
    """How many runs there may be at the same moment."""

    async def open(self) -> None:
        """Gets everything ready, the context too.

        Raises:
            HandlerError: The handler or its context cannot be used.
        """

    def start(self, run: MessageRun, place: Delivery, control: RunControl) -> asyncio.Future[RunResult]:
        """Begins a run. The future has its end, whatever happens; it never raises."""

    def abandon(self, control: RunControl) -> bool:
        """Ends one run whose message in hand takes too long; returns whether it ends, or else makes room for another.

        Args:
            control: Of the run. It may be asked for once more if it has not ended.
        """

    def give_up(self) -> bool:
        """Ends what is running as far as that is possible: tasks and processes are stopped, threads cannot be.

        Returns:
            Whether it ends soon.
        """

    async def close(self) -> None:
        """Leaves the context. Nothing is running any more, or was given up."""


class InThisProcess:
    """What threads and tasks share: a handler, and a context that is entered once for all of them.

    Args:
        handler: Called with each message.
        context: Factory of its second argument; None: an empty dict.
        count: Runs at the same moment.
        seconds: After which a run ends before its last message.
        hooks: Called around each message.
    """

    def __init__(
        self,
        handler: Any,  # noqa: ANN401 - plain or async, as the runner wants it
        context: Context | None,
        count: int,
        seconds: float,
        hooks: Hooks,
    ) -> None:
        self.slots = count
        self._handler = handler
        self._factory = context
        self._seconds = seconds
        self._hooks = hooks
        self._entered = AsyncExitStack()
        self._context: Any = None

    async def open(self) -> None:
        """Enters the context."""
        self._context = await enter(self._factory, self._entered)

    async def close(self) -> None:
        """Leaves the context."""
        await self._entered.aclose()
