"""The life of a partition, as those follow it who work on it: what is called when partitions come and go.

Per partition ``on_assign`` comes first and is over before anything is read, then either ``on_revoke``, which may still
commit, or ``on_lost``, or both when the session ends, or the time is over, in the middle of a revocation. Callbacks for
different partitions may run side by side. An exception in one of them is logged; the partitions go where the group says
all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager

from qdo.consumer.owned_partition import OwnedPartition
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition

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


class CallbackListener(PartitionListener):
    """Calls the callbacks of a consumer's user, each a coroutine function or a plain one."""

    def __init__(
        self, on_assign: Callback | None = None, on_revoke: Callback | None = None, on_lost: Callback | None = None
    ) -> None:
        self._on_assign = on_assign
        self._on_revoke = on_revoke
        self._on_lost = on_lost

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        await _call(self._on_assign, rows)

    async def revoke(self, row: OwnedPartition) -> None:
        await _call(self._on_revoke, [row])

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        await _call(self._on_lost, rows)


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
