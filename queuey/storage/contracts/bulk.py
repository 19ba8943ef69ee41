"""The contract of bulk access: scanning, measuring and loading whole ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from queuey.model.ids import Position
    from queuey.model.messages import Measure, Message, Queue, Slice


class Bulk(ABC):
    """Reads and writes whole ranges for pipelines, in any process, without the limits of single calls."""

    @abstractmethod
    def scan(self, queue: Queue, part: Slice) -> AsyncIterator[list[Message]]:
        """Reads a whole slice, in lists of at most its ``limit`` messages and about ``max_bytes``."""

    @abstractmethod
    async def horizon(self, queue: Queue) -> int:
        """Returns the horizon (ticks) that a read that keeps the read delay would have now."""

    @abstractmethod
    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> AsyncIterator[RecordBatch]:
        """Reads a whole slice as Arrow record batches of the shape in :mod:`queuey.storage.arrow_format`.

        The messages and their order are those of ``scan``, in batches of at most the slice's ``limit`` rows (a batch
        may be smaller, never empty) and about its ``max_bytes``. Ascending only. Without ``bodies`` the columns
        ``body`` and ``meta`` are left out, and not read where the backend can.
        """

    @abstractmethod
    async def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        """Counts the first messages of an ascending slice without reading bodies.

        Cost: at most proportional to ``limit``, however many messages lie below or above.

        Returns:
            The number of messages, at most ``limit``; and the position up to which they were counted: above the last
            one counted, or the slice's upper bound (at most the horizon) if there are fewer than ``limit``.
        """

    @abstractmethod
    def measure(self, queues: Sequence[Queue]) -> AsyncIterator[list[Measure]]:
        """Measures the partitions of queues that are not empty, without moving bodies out of the store's process.

        Yields for each queue, in the order of ``queues``, a list of measures by partition. The list is empty if the
        queue is empty, gone or changed.
        """

    @abstractmethod
    async def load(self, queue: Queue, messages: Iterable[Message]) -> int:
        """Writes messages at their own partitions and ids, with their own expiries. Idempotent.

        Expired messages are left out. Messages that exist at these ids are overwritten. Id generators do not move
        beyond the present clock.
        After an error some messages may be written.

        Returns:
            The number of messages written.

        Raises:
            InvalidRequest: The queue does not have a partition.
        """

    @abstractmethod
    async def load_unread(self, queue: Queue, messages: Sequence[Message]) -> int:
        """Writes messages like :meth:`load`, at ids above every horizon that any reader has received.

        So no reader with a cursor below them misses them (G1 holds for them as for new ids).

        Raises:
            TooLate: The lowest id may have been below a reader's horizon before the write, or by the time the write was
                acknowledged (``written``).
        """
