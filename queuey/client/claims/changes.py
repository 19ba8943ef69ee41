"""Condition variables: one class for threads, one for tasks of an event loop."""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING

from queuey.client.forks import register_forkable

if TYPE_CHECKING:
    import asyncio


class Condition:
    """A lock and a condition for threads. Hold the lock while you wait or notify."""

    def __init__(self) -> None:
        self.begin_in_child()
        register_forkable(self)

    def begin_in_child(self) -> None:
        self._condition = threading.Condition()

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *_: object) -> None:
        self._condition.release()

    def wait(self, seconds: float) -> None:
        """Waits for the next :meth:`notify`, at most ``seconds``. The lock is released meanwhile."""
        self._condition.wait(min(seconds, threading.TIMEOUT_MAX))

    def notify(self) -> None:
        self._condition.notify_all()


class AsyncCondition:
    """A condition for tasks of one event loop. They need no lock, because none runs between two awaits of another."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass

    async def wait(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - the caller has already loaded it

        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait({future}, timeout=None if seconds == inf else seconds)
        finally:
            self._waiting.discard(future)

    def notify(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
