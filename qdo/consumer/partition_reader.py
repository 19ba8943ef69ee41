"""The reads of a member's partitions: each is read between ``assigned`` and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from qdo.consumer.buffer import FetchBuffer
from qdo.consumer.fetcher import Fetcher
from qdo.errors import CoordinationRefused
from qdo.group.callbacks import PartitionListener
from qdo.group.offsets import PartitionOwnership
from qdo.loops import cancel, start_task
from qdo.partitions import Partition


class PartitionReader(PartitionListener):
    """Starts and ends the reads of this member's partitions, and notifies its own listeners.

    If a partition comes back before the calls for its former row have ended, the former row is lost first, and later
    calls for it have no effect.

    Args:
        buffer: The buffer of fetched messages.
        fetcher: Prefetches messages.
        listeners: Notified in this order.
        begin: Finds the first position of partitions without a recorded offset and calls :meth:`begin_at`. None means
            that they are read from the beginning.
        changed: Called when more partitions can be handed out.
        failed: Called with an error that requires a correction.

    Attributes:
        is_stopped: Whether nothing may be handed out now, because the service does not answer.
    """

    def __init__(
        self,
        buffer: FetchBuffer,
        fetcher: Fetcher,
        listeners: Iterable[PartitionListener],
        *,
        begin: Callable[[list[PartitionOwnership]], Coroutine[Any, Any, None]] | None,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.is_stopped = False
        self._buffer = buffer
        self._fetcher = fetcher
        self._listeners = list(listeners)
        self._begin = begin
        self._changed = changed
        self._failed = failed
        self._beginning: set[asyncio.Task[None]] = set()
        self._present: dict[Partition, PartitionOwnership] = {}
        """The latest announced row of each partition, until its end is announced."""

    def attach(self, listener: PartitionListener) -> None:
        self._listeners.insert(0, listener)

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        # Notifies the listeners, then starts reading. Former rows of the same partitions are lost first.
        await self.lost([self._present[row.partition] for row in rows if row.partition in self._present])
        for row in rows:
            self._present[row.partition] = row
            row.begun = True
            if row.recorded is not None or self._begin is None:
                row.set_position(row.recorded)
        for listener in self._listeners:
            await listener.assigned(rows)
        for row in rows:
            row.announced = True
        self._start_reading(row for row in rows if not row.closed)

    def stop(self, rows: Collection[PartitionOwnership]) -> None:
        for row in rows:
            if row.opened:
                self._fetcher.drop(row)
            self._buffer.clear(row)

    async def revoke(self, row: PartitionOwnership) -> None:
        for listener in self._listeners:
            await listener.revoke(row)
        self._remove_present([row])

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        if ended := self._remove_present(rows):
            for listener in self._listeners:
                await listener.lost(ended)

    def refused(self, error: CoordinationRefused) -> None:
        self._failed(error)

    def suspended(self) -> None:
        self.is_stopped = True
        for listener in self._listeners:
            listener.suspended()

    def resumed(self) -> None:
        self.is_stopped = False
        self._changed()
        for listener in self._listeners:
            listener.resumed()

    def begin_at(self, row: PartitionOwnership, position: str) -> None:
        """Starts reading a partition at a position, unless the user has chosen another one meanwhile."""
        if row.closed or row.fetch_from is not None:
            return
        row.set_position(position)
        self._start_reading([row])

    def read_from_new_position(self, row: PartitionOwnership) -> None:
        """Reads a partition from the user's new position, unless ``on_assign`` is still running."""
        if row.announced:
            self._start_reading([row])

    async def close(self) -> None:
        await cancel(*self._beginning)

    def _remove_present(self, rows: Iterable[PartitionOwnership]) -> list[PartitionOwnership]:
        ended = [row for row in rows if self._present.get(row.partition) is row]
        for row in ended:
            del self._present[row.partition]
        return ended

    def _start_reading(self, rows: Iterable[PartitionOwnership]) -> None:
        unplaced = []
        for row in rows:
            if row.fetch_from is None:
                unplaced.append(row)
            elif not row.opened:
                row.opened = True
                self._fetcher.add(row)
        if unplaced and self._begin is not None:
            start_task(self._begin(unplaced), self._beginning)
        self._changed()
