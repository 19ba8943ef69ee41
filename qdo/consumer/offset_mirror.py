"""Mirrors a group's offsets to the service, which shows the group's lag from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from qdo.group.callbacks import PartitionListener
from qdo.partitions import Partition, Queue
from queuey.client import AsyncClient, ClientError, OffsetConflict, order_of

log = logging.getLogger("qdo.consumer")

MAX_TRIES = 5


class OffsetMirror(PartitionListener):
    """A copy of one group's offsets in the service, so that the service shows the group's lag.

    The coordination service has the authoritative offsets. The mirror is updated in the background. It moves an offset
    back only after a seek, because a member that has lost a partition may write late. Failures are logged, and the next
    commit tries again.

    Args:
        client: A client of the service.
        group: The group's name.
    """

    def __init__(self, client: AsyncClient, group: str) -> None:
        self._client = client
        self._group = group
        self._last_recorded: dict[Partition, str | None] = {}
        self._due: dict[Partition, tuple[str, bool]] = {}
        self._task: asyncio.Task[None] | None = None

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        for partition, (offset, back) in offsets.items():
            again = self._due.get(partition, ("", False))[1]
            self._due[partition] = (offset, back or again)
        if self._due and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._write_due())

    async def flush(self) -> None:
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _write_due(self) -> None:
        while self._due:
            queue = next(iter(self._due)).queue
            partitions = [partition for partition in self._due if partition.queue == queue]
            changes = {partition.number: self._due.pop(partition) for partition in partitions}
            try:
                await self._write_queue_offsets(queue, changes)
            except ClientError as error:
                log.warning("offsets of %s were not recorded in the service: %s", queue.name, error)

    async def _write_queue_offsets(self, queue: Queue, changes: Mapping[int, tuple[str, bool]]) -> None:
        """Records offsets of one queue. Skips offsets that are not after the service's, unless they must go back.

        Gives up after ``MAX_TRIES`` conflicts.
        """
        remaining = dict(changes)
        for _ in range(MAX_TRIES):
            # An offset that must go back is recorded unconditionally.
            expected = {
                n: self._last_recorded.get(Partition(queue, n)) for n, (_, back) in remaining.items() if not back
            }
            if not remaining:
                return
            try:
                await self._client.commit(
                    queue.name, self._group, {n: offset for n, (offset, _) in remaining.items()}, expected=expected
                )
            except OffsetConflict as conflict:
                for number, current in conflict.current.items():
                    self._last_recorded[Partition(queue, number)] = current
                remaining = {n: change for n, change in remaining.items() if not _has_reached(conflict, n, change[0])}
            else:
                self._last_recorded |= {Partition(queue, n): offset for n, (offset, _) in remaining.items()}
                return


def _has_reached(conflict: OffsetConflict, number: int, offset: str) -> bool:
    current = conflict.current.get(number)
    return number in conflict.applied or (current is not None and order_of(current) >= order_of(offset))
