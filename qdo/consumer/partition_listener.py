"""The listener for a consumer's group: which partitions the consumer owns from now on, and which no longer.

Per partition ``on_assign`` comes first and is over before anything is read, then either ``on_revoke``, which may still
commit, or ``on_lost``, or both when the session ends, or the time is over, in the middle of a revocation. Callbacks for
different partitions may run side by side. An exception in one of them is logged; the partitions go where the group says
all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from qdo.consumer.fetch.fetch_buffer import FetchBuffer
from qdo.consumer.fetch.fetcher import Fetcher
from qdo.consumer.owned_partition import OwnedPartition
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition
from qdo.tasks import cancel, start

log = logging.getLogger("qdo.consumer")

Callback = Callable[[frozenset[Partition]], Awaitable[None] | None]


class Callbacks(NamedTuple):
    """The callbacks of a consumer's user; each may be a coroutine function or a plain one.

    The last two are plain functions: nothing is handed out from ``on_suspend`` until ``on_resume``, because it is
    unknown whether this member still owns the partitions.
    """

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None
    on_suspend: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None


class PartitionListener:
    """Starts and ends the reads of this member's partitions, and calls the user's callbacks.

    Args:
        buffer: Where messages are held.
        fetcher: Reads ahead.
        callbacks: Of the user.
        begin: Finds out where to begin for partitions of which nothing is recorded, and calls :meth:`begin_at`; None:
            they begin at the beginning.
        leaving: Awaited after the callback of a revocation, before the partitions are released.
        changed: Called when partitions can be handed out that could not.
        failed: Called with an error that does not pass without help.

    Attributes:
        stopped: Nothing may be handed out now.
    """

    def __init__(
        self,
        buffer: FetchBuffer,
        fetcher: Fetcher,
        callbacks: Callbacks,
        *,
        begin: Callable[[list[OwnedPartition]], Coroutine[Any, Any, None]] | None,
        leaving: Callable[[frozenset[Partition]], Awaitable[None]],
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.stopped = False
        self._buffer = buffer
        self._fetcher = fetcher
        self._callbacks = [callbacks]
        self._begin = begin
        self._leaving = leaving
        self._changed = changed
        self._failed = failed
        self._beginning: set[asyncio.Task[None]] = set()

    def attach(self, callbacks: Callbacks) -> None:
        """Adds callbacks, which are called before those that were added earlier."""
        self._callbacks.insert(0, callbacks)

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """Calls the user's callback, then begins to read partitions."""
        for row in rows:
            row.begun = True
            if row.recorded is not None or self._begin is None:
                row.place(row.recorded)
        for each in self._callbacks:
            await _notify(each.on_assign, rows)
        for row in rows:
            row.announced = True
        self._open(row for row in rows if not row.closed)

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        for row in rows:
            if row.opened:
                self._fetcher.drop(row)
            self._buffer.clear(row)

    async def revoke(self, row: OwnedPartition) -> None:
        """Calls the user's callback for a partition; afterwards it may be released."""
        for each in self._callbacks:
            await _notify(each.on_revoke, [row])
        await self._leaving(frozenset([row.partition]))

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        for each in self._callbacks:
            await _notify(each.on_lost, rows)

    def refused(self, error: CoordinationRefused) -> None:
        self._failed(error)

    def suspended(self) -> None:
        self.stopped = True
        for each in self._callbacks:
            if each.on_suspend is not None:
                each.on_suspend()

    def resumed(self) -> None:
        self.stopped = False
        self._changed()
        for each in self._callbacks:
            if each.on_resume is not None:
                each.on_resume()

    def begin_at(self, row: OwnedPartition, position: str) -> None:
        """Begins to read a partition at a point, unless the user has chosen another one meanwhile."""
        if row.closed or row.fetch_from is not None:
            return
        row.place(position)
        self._open([row])

    def moved(self, row: OwnedPartition) -> None:
        """Reads a partition from where the user placed it, unless the user's callback still runs."""
        if row.announced:
            self._open([row])

    async def close(self) -> None:
        await cancel(*self._beginning)

    def _open(self, rows: Iterable[OwnedPartition]) -> None:
        unplaced = []
        for row in rows:
            if row.fetch_from is None:
                unplaced.append(row)
            elif not row.opened:
                row.opened = True
                self._fetcher.add(row)
        if unplaced and self._begin is not None:
            start(self._begin(unplaced), self._beginning)
        self._changed()


async def _notify(callback: Callback | None, rows: Collection[OwnedPartition]) -> None:
    if callback is None or not rows:
        return
    partitions = frozenset(row.partition for row in rows)
    with logged(callback, partitions):
        result = callback(partitions)
        if inspect.isawaitable(result):
            await result


@contextmanager
def logged(callback: Callable[..., object], partitions: frozenset[Partition]) -> Iterator[None]:
    """Logs what a callback raises: it cannot change which member owns the partitions."""
    try:
        yield
    except Exception:
        log.exception("callback %s failed for %s partitions", getattr(callback, "__name__", callback), len(partitions))
