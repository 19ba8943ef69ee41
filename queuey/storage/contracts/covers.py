"""The contract of covers: a part of the state of dedup queues, beside their claim logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.messages import Queue


class Covers(ABC):
    """Numbers by digest, for each partition of a queue. Of several that were written for a digest the highest counts.

    They belong to ``(queue.qid, partition)``, as claim logs do, and go with them.
    """

    @abstractmethod
    async def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        """Writes numbers (ticks, above 0) by digest (16 bytes). Idempotent; the order of several calls does not count.

        Raises:
            InvalidRequest: The partition is beyond the queue's.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: Some may not have been written.
        """

    @abstractmethod
    async def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Returns the numbers of digests that have one. All earlier writes are seen.

        Raises:
            InvalidRequest: The partition is beyond the queue's.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: They cannot be read.
        """

    @abstractmethod
    async def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        """Removes numbers that are not above ``until``; a few may stay, which does no harm.

        Raises:
            InvalidRequest: The partition is beyond the queue's.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: Some are left.
        """
