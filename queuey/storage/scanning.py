"""Scans of whole ranges, on top of what every store can do: read slices and say what its partitions hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from queuey import ids
from queuey.errors import QueueChanged
from queuey.ids import FIRST, LAST, LOW_MIN, Position
from queuey.messages import Measure, Message, PartitionInfo, Queue, Slice
from queuey.storage import Bulk, Messages

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class Scanning(Messages, Bulk):
    """The reading half of the bulk contract."""

    def plan(
        self, queue: Queue, lower: Position = FIRST, upper: Position = LAST, *, pieces: int = 1
    ) -> tuple[int, list[Slice]]:
        """See the contract."""
        horizon, partitions = self.inspect(queue)
        return horizon, divided(partitions, lower, min(upper, (horizon, LOW_MIN)), pieces=pieces)

    def scan(self, queue: Queue, part: Slice) -> Iterator[list[Message]]:
        """See the contract."""
        more = True
        while more:
            [page] = self.read(queue, [part])
            if page.messages:
                yield page.messages
            more = page.more and page.next is not None
            if page.next is not None:
                bounds = {"upper": ids.following(page.next)} if part.descending else {"lower": page.next}
                part = msgspec.structs.replace(part, **bounds)

    def horizon(self, queue: Queue) -> int:
        """See the contract."""
        [page] = self.read(queue, [Slice(1, LAST, LAST, limit=1)])
        return page.horizon

    def scan_arrow(self, queue: Queue, part: Slice, *, bodies: bool = True) -> Iterator[RecordBatch]:
        """See the contract."""
        from queuey.storage import columns  # noqa: PLC0415 - needs Arrow, which only pipelines install

        for messages in self.scan(queue, part):
            yield columns.batch_of(messages, bodies=bodies)

    def extent(self, queue: Queue, part: Slice) -> tuple[int, Position]:
        """See the contract."""
        upper = max(part.lower, min(part.upper, (self.horizon(queue), LOW_MIN)))
        [page] = self.read(queue, [msgspec.structs.replace(part, upper=upper)])
        at = page.next if page.more and page.next is not None else upper
        return len(page.messages), at

    def measure(self, queues: Sequence[Queue]) -> Iterator[list[Measure]]:
        """See the contract."""
        for queue in queues:
            try:
                yield list(self._measured(queue))
            except QueueChanged:
                yield []

    def _measured(self, queue: Queue) -> Iterator[Measure]:
        for info in self.inspect(queue)[1]:
            if info.count and info.oldest is not None and info.newest is not None:
                parts = self.scan(queue, Slice(info.partition, limit=1000, delayed=False))
                texts = (message.body for messages in parts for message in messages)
                size = sum(len(text.encode() if isinstance(text, str) else text) for text in texts)
                yield Measure(info.partition, info.count, size, info.exact, info.oldest, info.newest)


def divided(partitions: Sequence[PartitionInfo], lower: Position, upper: Position, *, pieces: int) -> list[Slice]:
    """Divides what partitions hold between two positions, as :meth:`~queuey.storage.Bulk.plan` does.

    For callers that have the counts of the partitions already, because counting messages costs time.
    """
    total = sum(info.count for info in partitions) or 1
    found: list[Slice] = []
    for info in partitions:
        if info.count:
            found += _divided(info, lower, upper, max(1, round(pieces * info.count / total)))
    return found


def _divided(info: PartitionInfo, lower: Position, upper: Position, pieces: int) -> list[Slice]:
    """Returns slices of a partition that take equal times."""
    low = lower if info.oldest is None else max(lower, info.oldest)
    high = upper if info.newest is None else min(upper, ids.following(info.newest))
    if low >= high:
        return []
    step = max(1, math.ceil((high[0] + 1 - low[0]) / pieces))
    bounds = [low, *((low[0] + step * number, LOW_MIN) for number in range(1, pieces)), high]
    return [
        Slice(info.partition, first, min(last, high)) for first, last in pairwise(bounds) if first < min(last, high)
    ]
