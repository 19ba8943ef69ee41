"""The callbacks of a member in the life of an owned partition.

For each partition ``on_assign`` is called first and ends before any message is read. Then ``on_revoke`` follows, which
may still commit, or ``on_lost``, or both if the session ends or the timeout expires during the revocation. Callbacks of
different partitions may run concurrently. An exception in a callback is logged and does not change who owns the
partitions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from qdo.errors import CoordinationRefused
from qdo.group.offsets import PartitionOwnership
from qdo.partitions import Partition

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
