"""The listener for a consumer's group: which partitions the consumer owns from now on, and which no longer.

Per partition ``on_assign`` comes first and is over before anything is read, then either ``on_revoke``, which may still
commit, or ``on_lost``, or both when the session ends, or the time is over, in the middle of a revocation. Callbacks for
different partitions may run side by side. An exception in one of them is logged; the partitions go where the group says
all the same.

A row is one ownership. When a partition comes back although the callbacks for its former row have not come to an end
in time, the former row is lost first, and what is called for it later does nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from qdo.consumer.fetch_buffer import FetchBuffer
from qdo.consumer.fetcher import Fetcher
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
        leaving: Awaited after the callback of a revocation, before the partition is released.
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
        leaving: Callable[[OwnedPartition], Awaitable[None]],
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
        self._present: dict[Partition, OwnedPartition] = {}
        """The rows whose assignment was announced last, until the end of each is announced."""

    def attach(self, callbacks: Callbacks) -> None:
        """Adds callbacks, which are called before those that were added earlier."""
        self._callbacks.insert(0, callbacks)

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """Calls the user's callback, then begins to read partitions."""
        await self.lost([self._present[row.partition] for row in rows if row.partition in self._present])
        for row in rows:
            self._present[row.partition] = row
            row.begun = True
            if row.recorded is not None or self._begin is None:
                row.place(row.recorded)
        for each in self._callbacks:
            await _notify(each.on_assign, self._still_present(rows))
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
            await _notify(each.on_revoke, self._still_present([row]))
        if self._still_present([row]):
            await self._leaving(row)
            self._end([row])

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        ended = self._end(rows)
        for each in self._callbacks:
            await _notify(each.on_lost, ended)

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

    def _still_present(self, rows: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        return [row for row in rows if self._present.get(row.partition) is row]

    def _end(self, rows: Iterable[OwnedPartition]) -> list[OwnedPartition]:
        """Returns the rows whose end is to be announced now; for the others it was, or it does not count any more."""
        ended = self._still_present(rows)
        for row in ended:
            del self._present[row.partition]
        return ended

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
    """Logs what a callback raises: it cannot change which member owns the partitions.

    A cancellation counts as the callback's own error, unless the task that awaits the callback was cancelled.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        log.exception("callback %s failed for %s partitions", getattr(callback, "__name__", callback), len(partitions))


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0
