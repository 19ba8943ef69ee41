"""The life of a partition: what is called when it comes and goes, and who reads it meanwhile.

Per partition ``on_assign`` comes first and is over before anything is read, then either ``on_revoke``, which may still
commit, or ``on_lost``, or both when the session ends, or the time is over, in the middle of a revocation. Callbacks for
different partitions may run side by side. An exception in one of them is logged; the partitions go where the group says
all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qdo.consumer.fetcher import Fetcher
from qdo.consumer.owned_partition import FetchBuffer, OwnedPartition
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition
from qdo.tasks import cancel, start

log = logging.getLogger("qdo.consumer")

Callback = Callable[[frozenset[Partition]], Awaitable[None] | None]


class PartitionListener:
    """Follows the partitions that a member owns. This one does nothing.

    Everything is called in the loop of the group. For a row, ``assigned`` is called, then ``revoke`` or ``lost``, or
    both if revoking was not done in time. Each call has ended before the next of its row begins, unless it takes longer
    than ``revoke_timeout`` to end. A partition may come back as another row while a call of the former one still hangs.
    What a call raises is logged; if ``revoke`` fails, ``lost`` follows.
    """

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """These are ours now; commits for them are accepted already while this runs."""

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        """Stop handing out messages of these; called as soon as they are not ``owned`` any more."""

    async def revoke(self, row: OwnedPartition) -> None:
        """Returns when this may be released.

        Called once per partition, so that a slow one does not hold up the rest; the calls run concurrently. It is
        cancelled after ``revoke_timeout``.
        """

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        """These are lost to other members: abandon all work on them; nothing can be committed."""

    def suspended(self) -> None:
        """The service does not answer: hand out nothing new."""

    def resumed(self) -> None:
        """The service answers again: go on with what is still held."""

    def refused(self, error: CoordinationRefused) -> None:
        """The service refuses something that the member cannot do without; it is tried again all the same."""

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        """These offsets were recorded, with ``True`` even if they go back."""

    def not_recorded(self, error: Exception) -> None:
        """A write of offsets failed. After CoordinationLost it is tried again."""


@dataclass(frozen=True)
class CallbackListener(PartitionListener):
    """Calls the callbacks of a consumer's user, each a coroutine function or a plain one."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        await _call(self.on_assign, rows)

    async def revoke(self, row: OwnedPartition) -> None:
        await _call(self.on_revoke, [row])

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        await _call(self.on_lost, rows)


async def _call(callback: Callback | None, rows: Collection[OwnedPartition]) -> None:
    if callback is None:
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


class PartitionReader(PartitionListener):
    """Starts and ends the reads of this member's partitions, and notifies its own listeners.

    When a partition comes back although the calls for its former row have not come to an end in time, the former row is
    lost first, and what is called for it later does nothing.

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
