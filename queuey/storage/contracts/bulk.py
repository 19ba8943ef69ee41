"""The contract on whole ranges: scan them, measure them, load them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from queuey.ids import Position
    from queuey.messages import Measure, Message, Queue, Slice


class Bulk(ABC):
    """Whole ranges out of a store and into it, for pipelines: past the limits of single calls, in any process."""

    @abstractmethod
    def scan(self, queue: Queue, part: Slice) -> AsyncIterator[list[Message]]:
        """Reads a whole slice, in lists of at most its ``limit`` messages and about ``max_bytes``."""

    @abstractmethod
    async def horizon(self, queue: Queue) -> int:
        """Returns the horizon (ticks) that a read with ``delayed=True`` would have now."""

    @abstractmethod
    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> AsyncIterator[RecordBatch]:
        """Reads a whole slice as Arrow record batches of the shape in :mod:`queuey.storage.columns`.

        The messages and their order are those of ``scan``, in batches of at most the slice's ``limit`` rows (a batch
        may be smaller, never empty) and about its ``max_bytes``. Ascending only. Without ``bodies`` the columns
        ``body`` and ``meta`` are left out, and not read where the backend can.
        """

    @abstractmethod
    async def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        """Finds how far the first messages of an ascending slice reach, without reading bodies.

        Cost: proportional to ``limit`` at most, whatever lies below or above.

        Returns:
            How many messages were found, at most ``limit``; and the position up to which the slice was considered:
            above the last one counted, or the slice's upper bound (below the horizon) if there are fewer.
        """

    @abstractmethod
    def measure(self, queues: Sequence[Queue]) -> AsyncIterator[list[Measure]]:
        """Measures queues, each partition that is not empty, without moving bodies out of the store's process.

        Yields the measures of one queue, by partition, in the order of ``queues``; empty for a queue that is empty,
        gone or changed.
        """

    @abstractmethod
    async def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        """Writes messages at their own partitions and ids, with their own ends; idempotent.

        Returns how many were written: those that have expired are left out. Overwrites messages at these ids. Moves no
        generator. After an error some of them may be written.

        Raises:
            InvalidRequest: A partition is beyond the queue's.
        """

    @abstractmethod
    async def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        """Writes messages like :meth:`load`, at ids that lie above every horizon that a reader may have been given.

        So no reader whose cursor is below them misses them (G1 holds for them as for new ids).

        Raises:
            TooLate: The lowest of the ids is not certain to be unread, or was not any more when the write was
                acknowledged (``written``).
        """
