"""The contract of covers: state of dedup queues that is stored outside their claim logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queuey.model.messages import Queue


class Covers(ABC):
    """Numbers by digest, for each partition of a queue. A digest has the highest number ever written for it.

    Like claim logs, covers belong to ``(queue.qid, partition)`` and are removed with it.
    """

    @abstractmethod
    async def write_covers(self, queue: Queue, partition: int, covers: Collection[tuple[bytes, int]]) -> None:
        """Writes pairs of digest (16 bytes) and number (ticks, above 0). Idempotent; calls may come in any order.

        Raises:
            InvalidRequest: The queue does not have the partition.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: Some numbers may not have been written.
        """

    @abstractmethod
    async def read_covers(self, queue: Queue, partition: int, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Returns the numbers of the digests that have one. All earlier writes are seen.

        Raises:
            InvalidRequest: The queue does not have the partition.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: The numbers cannot be read.
        """

    @abstractmethod
    async def forget_covers(self, queue: Queue, partition: int, until: int) -> None:
        """Removes numbers up to ``until``, inclusive. A few may stay, which is harmless.

        Raises:
            InvalidRequest: The queue does not have the partition.
            QueueChanged: ``queue`` is out of date.
            StoreUnavailable: Some numbers were not removed.
        """
