"""Where handlers run: what threads, tasks and processes have in common."""

from __future__ import annotations

import asyncio
from typing import Protocol

from qdo.worker.failure import Delivery, Ran
from qdo.worker.lanes import Run
from qdo.worker.loops import Control


class Runner(Protocol):
    """Runs messages somewhere, a bounded number of runs at a time."""

    slots: int
    """How many runs there may be at the same moment."""

    async def open(self) -> None:
        """Gets everything ready, the context too.

        Raises:
            HandlerError: The handler or its context cannot be used.
        """

    def start(self, run: Run, place: Delivery, control: Control) -> asyncio.Future[Ran]:
        """Begins a run. The future has its end, whatever happens; it never raises."""

    def abandon(self, control: Control) -> bool:
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
