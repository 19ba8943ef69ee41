"""The order of what is done to partitions: one thing at a time for each, and what comes together goes out together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from qdo.partitions import Partition

T = TypeVar("T")
R = TypeVar("R")


class Turns:
    """Runs work on partitions, in the order of the calls for each partition, side by side for different ones.

    Work is carried to its end even if whoever asked for it no longer waits: what the service does is not undone by
    looking away, and the next in turn must find it done.
    """

    def __init__(self) -> None:
        self._last: dict[Partition, asyncio.Task[Any]] = {}

    def run(self, partitions: Collection[Partition], work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Starts work when all that was started before on any of the partitions is over.

        Returns:
            The task. Wait for it in ways that do not cancel it.
        """
        earlier = {self._last[partition] for partition in partitions if partition in self._last}
        task = asyncio.create_task(self._after(earlier, work))
        for partition in partitions:
            self._last[partition] = task
        task.add_done_callback(lambda done: self._forget(done, partitions))
        return task

    @staticmethod
    async def _after(earlier: set[asyncio.Task[Any]], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if earlier:
            await asyncio.wait(earlier)
        return await work()

    def _forget(self, task: asyncio.Task[Any], partitions: Collection[Partition]) -> None:
        for partition in partitions:
            if self._last.get(partition) is task:
                del self._last[partition]
        if not task.cancelled():
            task.exception()  # whoever waited was told; that nobody did is no reason for a warning


class Gathered(Generic[T, R]):
    """Makes one call of those that are made side by side.

    A hundred partitions that are given up at once are so committed and released by two calls, not by two hundred.

    Args:
        send: Does the work for several partitions and returns a result for each.
    """

    def __init__(self, send: Callable[[dict[Partition, T]], Awaitable[Mapping[Partition, R]]]) -> None:
        self._send = send
        self._items: dict[Partition, T] = {}
        self._soon: asyncio.Task[Mapping[Partition, R]] | None = None

    async def call(self, items: Mapping[Partition, T]) -> dict[Partition, R]:
        """Returns the results; a partition must not be in two calls at a time."""
        self._items.update(items)
        if self._soon is None:
            self._soon = asyncio.create_task(self._send_soon())
        results = await asyncio.shield(self._soon)
        return {partition: results[partition] for partition in items}

    async def _send_soon(self) -> Mapping[Partition, R]:
        # Whoever is ready to run gets to add its own first.
        await asyncio.sleep(0)
        items, self._items, self._soon = self._items, {}, None
        return await self._send(items)
