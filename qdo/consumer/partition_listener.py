"""The lifecycle of an owned partition: the callbacks, and the reads between them.

For each partition ``on_assign`` is called first and ends before anything is read. Then ``on_revoke`` follows, which may
still commit, or ``on_lost``, or both if the session ends or the timeout expires during the revocation. Callbacks of
different partitions may run concurrently. An exception in a callback is logged and does not change who owns the
partitions.
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
from qdo.consumer.owned_partition import FetchBuffer, PartitionOwnership
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition
from qdo.tasks import cancel, start_task

log = logging.getLogger("qdo.consumer")

Callback = Callable[[frozenset[Partition]], Awaitable[None] | None]


class PartitionListener:
    """Receives events about the partitions that a member owns. This base class does nothing.

    All methods are called in the event loop of the group. For each row, ``assigned`` is called first, then ``revoke``
    or ``lost``, or both if revoking was not finished in time. Each call ends before the next call for its row begins,
    unless it takes longer than ``revoke_timeout``. A partition may come back as another row while a call for the former
    row still hangs. Exceptions are logged; if ``revoke`` fails, ``lost`` follows.
    """

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        """This member owns the rows now; commits for them are accepted while this runs."""

    def stop(self, rows: Collection[PartitionOwnership]) -> None:
        """No message of the rows may be handed out from now on. Called as soon as they are no longer ``owned``."""

    async def revoke(self, row: PartitionOwnership) -> None:
        """Finishes the work on a row; the row is released when this returns.

        Called once per row, so that a slow one does not delay the others; the calls run concurrently. Cancelled after
        ``revoke_timeout``.
        """

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        """Other members own the rows now: abandon all work on them. Commits are refused."""

    def suspended(self) -> None:
        """The service does not answer: hand out no new messages."""

    def resumed(self) -> None:
        """The service answers again: hand out messages of the rows that are still held."""

    def refused(self, error: CoordinationRefused) -> None:
        """The service refuses an operation that the member needs. The operation is retried."""

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        """These offsets were recorded. The flag says whether they may go back."""

    def not_recorded(self, error: Exception) -> None:
        """A write of offsets failed. It is retried after CoordinationLost."""


@dataclass(frozen=True)
class CallbackListener(PartitionListener):
    """Calls the callbacks of a consumer's user: coroutine functions or plain ones."""

    on_assign: Callback | None = None
    on_revoke: Callback | None = None
    on_lost: Callback | None = None

    async def assigned(self, rows: Collection[PartitionOwnership]) -> None:
        await _call(self.on_assign, rows)

    async def revoke(self, row: PartitionOwnership) -> None:
        await _call(self.on_revoke, [row])

    async def lost(self, rows: Collection[PartitionOwnership]) -> None:
        await _call(self.on_lost, rows)


async def _call(callback: Callback | None, rows: Collection[PartitionOwnership]) -> None:
    """Calls a callback and awaits its result if it is awaitable; only logs its errors."""
    if callback is None:
        return
    partitions = frozenset(row.partition for row in rows)
    with log_callback_errors(callback, partitions):
        result = callback(partitions)
        if inspect.isawaitable(result):
            await result


@contextmanager
def log_callback_errors(callback: Callable[..., object], partitions: frozenset[Partition]) -> Iterator[None]:
    """Logs an exception of a callback instead of raising it: it cannot change which member owns the partitions.

    A cancellation counts as the callback's own error, unless the task that awaits the callback was cancelled.
    """
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        log.exception("callback %s failed for %s partitions", getattr(callback, "__name__", callback), len(partitions))


def _is_cancelled() -> bool:
    """Returns whether the current task was cancelled; False in a thread without a loop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0


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
        """Adds a listener that is notified before the present ones."""
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
            if present := self._select_present(rows):
                await listener.assigned(present)
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
            if self._select_present([row]):
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
        """Cancels the requests for first positions; the reads are the fetcher's."""
        await cancel(*self._beginning)

    def _select_present(self, rows: Iterable[PartitionOwnership]) -> list[PartitionOwnership]:
        return [row for row in rows if self._present.get(row.partition) is row]

    def _remove_present(self, rows: Iterable[PartitionOwnership]) -> list[PartitionOwnership]:
        """Forgets rows, and returns only those whose end was not announced before."""
        ended = self._select_present(rows)
        for row in ended:
            del self._present[row.partition]
        return ended

    def _start_reading(self, rows: Iterable[PartitionOwnership]) -> None:
        """Reads rows that have a position, and requests the first position of the others."""
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
