"""Where a worker's messages come from: partitions that a group shares out, or claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from qdo.worker import exit_codes
from qdo.worker.executors.in_process import Executor
from qdo.worker.failure import Failure, StopTheWorker, TaskRetry
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.middleware import Hooks
from qdo.worker.settings import WorkerSettings
from queuey.client import AsyncClient, Message

logger = logging.getLogger("qdo.worker")

REFUSED_PAUSE = 1.0
"""Interval before messages are asked for again after a refusal, in seconds."""


class Handling(NamedTuple):
    """The worker's side of a source.

    Attributes:
        runner: Runs handlers.
        asked: Set when the worker is to stop.
        changed: Called when more messages may be taken again, or the state has changed.
        end: Called when the worker is to end, with the reason.
        stop: Called when the worker is to end because its source has nothing more.
        lag_shown: The lag is to be measured.
        prepare: Run beside the messages when the worker starts; None: nothing.
        retry_of: Returns when a failed message is tried again; None: as the settings or the queue say.
    """

    runner: Executor
    settings: WorkerSettings
    hooks: Hooks
    metrics: WorkerMetrics
    asked: asyncio.Event
    changed: Callable[[], None]
    end: Callable[[StopTheWorker, Failure], None]
    stop: Callable[[int], None]
    lag_shown: bool
    prepare: Callable[[AsyncClient], Coroutine[Any, Any, None]] | None = None
    retry_of: Callable[[Message, Failure], TaskRetry | None] = lambda _message, _failure: None


def note_refusal(handling: Handling, seconds: float) -> None:
    """Ends the worker if the service has refused its credential for too long."""
    handling.metrics.refused = seconds
    if seconds >= handling.settings.stalled_after:
        text = "the worker ends: for %.0f s the service has refused its credential. Give it one for its queues"
        logger.critical(text, seconds)
        handling.stop(exit_codes.FAILED)


class Source(Protocol):
    """The messages of a worker: gets them, has them handled, and records what is done."""

    async def start(self) -> None:
        """Gets ready to take messages, however long that takes.

        Raises:
            MissingRights: The credential may not do all that the settings need.
            QdoError, ClientError
        """

    async def take(self) -> bool:
        """Begins as many messages as there are handlers for, or waits for some.

        Returns:
            False: there is no handler free, and no other message may begin before the state has changed.
        """

    def wake(self) -> None:
        """Ends the wait of :meth:`take`."""

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        """Returns the tasks beside the worker's loop; none of them ends by itself."""

    async def drain(self, patience: float) -> bool:
        """Finishes the running messages within so many seconds and records them; releases everything else.

        Returns:
            False: some were not finished or not recorded.
        """

    async def until_ended(self, deadline: float) -> None:
        """Waits, until a deadline of the loop's clock, for handlers that were given up."""

    async def close(self) -> None:
        """Leaves; what is not recorded is handled again."""

    async def close_all(self) -> None:
        """Closes client and coordinator."""
