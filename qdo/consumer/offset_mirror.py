"""The offsets of a group in the service, where they are shown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from qdo.consumer.partition_listener import PartitionListener
from qdo.partitions import Partition, Queue
from queuey.client import AsyncClient, ClientError, OffsetConflict, order_of

log = logging.getLogger("qdo.consumer")

MAX_TRIES = 5
"""Max attempts while others record offsets at the same time."""


class OffsetMirror(PartitionListener):
    """The offsets of one group, as the service has them, so that its lag shows there.

    The coordination service has the offsets that count. The mirror follows: it goes back only after a seek (a member
    that lost a partition may come late), it is brought up to date in the background, and when it fails that is logged
    and tried again with the next commit.

    Args:
        client: To speak to the service with.
        group: The group's name.
    """

    def __init__(self, client: AsyncClient, group: str) -> None:
        self._client = client
        self._group = group
        self._known: dict[Partition, str | None] = {}
        self._due: dict[Partition, tuple[str, bool]] = {}
        self._task: asyncio.Task[None] | None = None

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        for partition, (offset, back) in offsets.items():
            again = self._due.get(partition, ("", False))[1]
            self._due[partition] = (offset, back or again)
        if self._due and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._catch_up())

    async def flush(self) -> None:
        """Waits until everything is recorded, or could not be."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _catch_up(self) -> None:
        while self._due:
            queue = next(iter(self._due)).queue
            mine = [partition for partition in self._due if partition.queue == queue]
            changes = {partition.number: self._due.pop(partition) for partition in mine}
            try:
                await self._set(queue, changes)
            except ClientError as error:
                log.warning("offsets of %s were not recorded in the service: %s", queue.name, error)

    async def _set(self, queue: Queue, changes: Mapping[int, tuple[str, bool]]) -> None:
        """Records offsets of one queue, each unless the service has a later one and it is not to go back."""
        left = dict(changes)
        for _ in range(MAX_TRIES):
            # An offset that must go back is recorded without comparing.
            expected = {n: self._known.get(Partition(queue, n)) for n, (_, back) in left.items() if not back}
            if not left:
                return
            try:
                await self._client.commit(
                    queue.name, self._group, {n: offset for n, (offset, _) in left.items()}, expected=expected
                )
            except OffsetConflict as conflict:
                for number, now in conflict.current.items():
                    self._known[Partition(queue, number)] = now
                left = {n: change for n, change in left.items() if not _reached(conflict, n, change[0])}
            else:
                self._known |= {Partition(queue, n): offset for n, (offset, _) in left.items()}
                return


def _reached(conflict: OffsetConflict, number: int, offset: str) -> bool:
    now = conflict.current.get(number)
    return number in conflict.applied or (now is not None and order_of(now) >= order_of(offset))
