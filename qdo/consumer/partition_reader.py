"""Reads a consumer's partitions for as long as it owns them, and passes each event of their life on.

A row is one ownership. When a partition comes back although the calls for its former row have not come to an end in
time, the former row is lost first, and what is called for it later does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from qdo.consumer.fetcher import Fetcher
from qdo.consumer.owned_partition import FetchBuffer, OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition
from qdo.tasks import cancel, start


class PartitionReader(PartitionListener):
    """Starts and ends the reads of this member's partitions, and notifies its own listeners.

    Args:
        buffer: Where messages are held.
        fetcher: Reads ahead.
        listeners: Notified in this order.
        begin: Finds out where to begin for partitions of which nothing is recorded, and calls :meth:`begin_at`; None:
            they begin at the beginning.
        changed: Called when partitions can be handed out that could not.
        failed: Called with an error that does not pass without help.

    Attributes:
        stopped: Nothing may be handed out now.
    """

    def __init__(
        self,
        buffer: FetchBuffer,
        fetcher: Fetcher,
        listeners: Iterable[PartitionListener],
        *,
        begin: Callable[[list[OwnedPartition]], Coroutine[Any, Any, None]] | None,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.stopped = False
        self._buffer = buffer
        self._fetcher = fetcher
        self._listeners = list(listeners)
        self._begin = begin
        self._changed = changed
        self._failed = failed
        self._beginning: set[asyncio.Task[None]] = set()
        self._present: dict[Partition, OwnedPartition] = {}
        """The rows whose assignment was announced last, until the end of each is announced."""

    def attach(self, listener: PartitionListener) -> None:
        """Adds a listener, which is notified before the present ones."""
        self._listeners.insert(0, listener)

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        await self.lost([self._present[row.partition] for row in rows if row.partition in self._present])
        for row in rows:
            self._present[row.partition] = row
            row.begun = True
            if row.recorded is not None or self._begin is None:
                row.place(row.recorded)
        for listener in self._listeners:
            if present := self._still_present(rows):
                await listener.assigned(present)
        for row in rows:
            row.announced = True
        self._open(row for row in rows if not row.closed)

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        for row in rows:
            if row.opened:
                self._fetcher.drop(row)
            self._buffer.clear(row)

    async def revoke(self, row: OwnedPartition) -> None:
        for listener in self._listeners:
            if self._still_present([row]):
                await listener.revoke(row)
        self._end([row])

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        if ended := self._end(rows):
            for listener in self._listeners:
                await listener.lost(ended)

    def refused(self, error: CoordinationRefused) -> None:
        self._failed(error)

    def suspended(self) -> None:
        self.stopped = True
        for listener in self._listeners:
            listener.suspended()

    def resumed(self) -> None:
        self.stopped = False
        self._changed()
        for listener in self._listeners:
            listener.resumed()

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
