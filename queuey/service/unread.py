"""Use cases of read marks: how far a reader has read a queue, and the number of unread messages.

A mark is stored as the offsets of a group for the reader (:data:`~queuey.storage.offset_changes.READER_PREFIX`): in
each partition the id of the last message that counts as read. It moves forward, or back if the reader requests it, but
never above the horizon of reads: a message that becomes visible later is always unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from queuey import ids
from queuey.errors import NotAllowed, NotFound, QueueChanged, QueueyError
from queuey.ids import FIRST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.messages import OffsetChange, Page, Queue, Slice
from queuey.service.core import Core
from queuey.service.offsets import check_partitions
from queuey.service.queue_access import QueueAccess
from queuey.service.ranges import OTHER_PARTITIONS, make_horizon_slice
from queuey.storage import Store, bridge
from queuey.storage.calls import in_thread
from queuey.storage.offset_changes import READER_PREFIX

DEFAULT_COUNTED = 100
MAX_READ_IDS = 200_000
"""Max ids that one call reads, approximately; the call counts no further queues after that."""
SLICE_COST = 10
"""Cost of reading a partition, counted as ids."""
MAX_PARTITIONS_TOGETHER = 16
"""Max partitions of a queue that are read at once: each of them may return ``limit`` messages."""
MAX_CONCURRENT_QUEUES = 32
"""Max queues that are counted concurrently if reads wait for a network."""

MIN_MARKS_INTERVAL = 5.0
"""Min seconds between reads of all marks of a stream."""
MARKS_INTERVAL_PER_QUEUE = 0.05
"""Seconds per queue between reads of all marks, if that is longer: a stream reads about 20 marks a second, besides
changes within the process."""

Marks = Mapping[int, Position]
"""The id of the last message read, by partition."""


class ReadMark(NamedTuple):
    """A reader's mark after a change.

    Attributes:
        marks: The mark in the changed partitions.
        pending: Seconds until reads show the named messages, below which the mark stays until then; 0 if it is set.
    """

    marks: Marks
    pending: float


class Unread(msgspec.Struct, frozen=True):
    """A reader's unread messages in a queue.

    Attributes:
        marks: The reader's mark, without partitions that have none.
        count: Number of messages above the mark, up to the limit.
        more: True if there are more than ``count``.
    """

    marks: Marks
    count: int
    more: bool


class UnreadUseCases:
    """Sets read marks, and counts messages above them; blocks.

    Args:
        store: Stores the marks and the messages.
        core: Runs concurrent reads.
        notify: Called with the owner of a mark that may have moved, and the queue.
    """

    def __init__(self, store: Store, core: Core, notify: Callable[[str, Queue], None]) -> None:
        self._store = store
        self._core = core
        self._notify = notify

    def mark(self, access: QueueAccess, reader: str, ends: Marks, *, back: bool = False) -> ReadMark:
        """Marks messages below positions as read, and notifies the reader's streams in this process.

        Args:
            access: The queue.
            reader: Owner of the mark.
            ends: Positions by partition; ``OTHER_PARTITIONS`` is for partitions that are not named.
            back: Also move the mark back. Otherwise a mark above a position stays.

        Raises:
            InvalidRequest: The queue does not have one of the partitions.
            Conflict: The queue has the maximum number of readers.
        """

        def mark(queue: Queue) -> ReadMark:
            check_partitions((number for number in ends if number != OTHER_PARTITIONS), queue)
            horizon = bridge.run(self._store.messages.read(queue, [make_horizon_slice()]))[0].horizon, LOW_MIN
            requested = {
                number: end
                for number in range(1, queue.partitions + 1)
                if (end := ends.get(number, ends.get(OTHER_PARTITIONS))) is not None and end > FIRST
            }
            changes = [
                OffsetChange(number, ids.preceding(min(end, horizon)), forward=not back)
                for number, end in requested.items()
            ]
            offsets = (
                bridge.run(self._store.offsets.set_offsets(queue, make_reader_group(reader), changes))
                if changes
                else []
            )
            ahead = max(requested.values(), default=FIRST)
            pending = (ahead[0] + 1 - horizon[0]) / TICKS_PER_SECOND if ahead > horizon else 0.0
            return ReadMark({offset.partition: offset.position for offset in offsets}, pending)

        marked = access.use(mark)
        self._notify(reader, access.queue)
        return marked

    def unread(
        self, accesses: Sequence[QueueAccess], reader: str, limit: int = DEFAULT_COUNTED
    ) -> list[Unread | QueueyError | None]:
        """Counts a reader's unread messages in each queue, at most ``limit``. Reads only ids.

        Returns for each queue the count, the error, or None if this call has already read ``MAX_READ_IDS`` ids.
        """
        marks = self.read_marks(accesses, reader)
        return self.count(list(zip(accesses, marks, strict=True)), limit)

    def read_marks(self, accesses: Sequence[QueueAccess], reader: str) -> list[Marks]:
        queues = [access.queue for access in accesses]
        return [*bridge.run(self._store.offsets.offsets_of_queues(queues, make_reader_group(reader)))]

    def count(
        self, queue_marks: Sequence[tuple[QueueAccess, Marks]], limit: int = DEFAULT_COUNTED
    ) -> list[Unread | QueueyError | None]:
        return bridge.run(self._count(queue_marks, limit), as_one=True)

    async def _count(
        self, queue_marks: Sequence[tuple[QueueAccess, Marks]], limit: int
    ) -> list[Unread | QueueyError | None]:
        budget = MAX_READ_IDS
        counts: list[Unread | QueueyError | None] = []
        for start in range(0, len(queue_marks), MAX_CONCURRENT_QUEUES):
            batch = queue_marks[start : start + MAX_CONCURRENT_QUEUES] if budget > 0 else []
            for (access, marks), page in zip(batch, await self._read_ahead(batch, limit), strict=True):
                try:
                    count = partial(self._count_queue, marks=marks, limit=limit, row=access.queue, page=page)
                    unread, cost = await access.apply(count)
                except (NotFound, NotAllowed) as error:
                    counts.append(error)
                else:
                    counts.append(unread)
                    budget -= cost
        return counts + [None] * (len(queue_marks) - len(counts))

    async def _count_queue(
        self, queue: Queue, marks: Marks, limit: int, row: Queue, page: Page | None
    ) -> tuple[Unread, int]:
        """Counts one queue; also returns the cost. ``page`` is of the only partition of ``row``, if already read."""
        if queue is not row:
            page = None
        remaining = _unread_slices(queue, marks, limit)
        count = cost = 0
        while remaining and count <= limit:
            batch, remaining = remaining[:MAX_PARTITIONS_TOGETHER], remaining[MAX_PARTITIONS_TOGETHER:]
            pages = await self._store.messages.read(queue, batch) if page is None else [page]
            page = None
            count += sum(len(p.messages) for p in pages)
            cost += SLICE_COST * len(batch)
            # A page may end before its limit if the store has scanned as much as it does in one read.
            remaining += [
                replace(piece, lower=p.next)
                for piece, p in zip(batch, pages, strict=True)
                if p.more and p.next is not None
            ]
        return Unread(marks, min(count, limit), more=count > limit), cost + count

    async def _read_ahead(self, queue_marks: Sequence[tuple[QueueAccess, Marks]], limit: int) -> Sequence[Page | None]:
        """Reads queues of one partition concurrently if that is faster; None for queues not read."""
        if not self._store.waits_for_network or not queue_marks:
            return [None] * len(queue_marks)
        reading = partial(self._core.run, self._read_concurrently(queue_marks, limit))
        return await in_thread(reading)

    async def _read_concurrently(
        self, queue_marks: Sequence[tuple[QueueAccess, Marks]], limit: int
    ) -> list[Page | None]:
        return await asyncio.gather(
            *(self._read_only_partition(access.queue, marks, limit) for access, marks in queue_marks)
        )

    async def _read_only_partition(self, queue: Queue, marks: Marks, limit: int) -> Page | None:
        """Returns the first page of unread ids; None for several partitions or an outdated row."""
        if queue.partitions > 1:
            return None
        [piece] = _unread_slices(queue, marks, limit)
        try:
            [page] = await self._store.messages.read(queue, [piece])
        except QueueChanged:
            return None
        return page


def make_reader_group(reader: str) -> str:
    return READER_PREFIX + reader


def _unread_slices(queue: Queue, marks: Marks, limit: int) -> list[Slice]:
    return [
        Slice(number, ids.following(marks[number]) if number in marks else FIRST, limit=limit + 1, bodies=False)
        for number in range(1, queue.partitions + 1)
    ]


class MarkNews:
    """Reports a reader's marks to a stream: first the present ones, then changes.

    A change by this process is reported at once. A change by another process is found by reads every few seconds.
    Used in the loop's thread, except for reads.

    Args:
        unread: Reads and counts the marks.
        reader: Owner of the marks.
        wake: Wakes the stream, for a queue (qid).
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        unread: UnreadUseCases,
        reader: str,
        wake: Callable[[int | None], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.reader = reader
        self._unread = unread
        self._wake = wake
        self._clock = clock
        self._reported: dict[str, Marks] = {}
        self._queues_to_read: set[str] = set()
        """Queues whose marks must be read at the next turn."""
        self._due = -1.0
        self._queue_count = 0

    @property
    def pause(self) -> float:
        return max(MIN_MARKS_INTERVAL, MARKS_INTERVAL_PER_QUEUE * self._queue_count)

    @property
    def more(self) -> bool:
        return bool(self._queues_to_read)

    def request_read(self, queue: Queue) -> None:
        self._queues_to_read.add(queue.name)
        self._wake(queue.qid)

    def drop(self, name: str) -> None:
        self._reported.pop(name, None)

    def take_due(self, accesses: Sequence[QueueAccess]) -> Sequence[QueueAccess]:
        """Returns the stream's queues whose marks must be read now: periodically all of them.

        They count as read then: each request to read is returned once.
        """
        self._queue_count = len(accesses)
        is_due = self._clock() >= self._due
        if is_due:
            self._due = self._clock() + 0.5 * self.pause
        moved, self._queues_to_read = self._queues_to_read, set()
        return [a for a in accesses if is_due or a.queue.name in moved or a.queue.name not in self._reported]

    def read_news(self, accesses: Sequence[QueueAccess]) -> list[tuple[str, Unread]]:
        """Returns queues whose marks have changed, with their unread messages; blocks.

        Queues that this call had no room to count are due again. Queues that cannot be read any more are left out.
        """
        marks = self._unread.read_marks(accesses, self.reader)
        moved = [
            (access, mark)
            for access, mark in zip(accesses, marks, strict=True)
            if self._reported.get(access.queue.name) != mark
        ]
        counted = self._unread.count(moved) if moved else []
        news: list[tuple[str, Unread]] = []
        for (access, _), unread in zip(moved, counted, strict=True):
            if isinstance(unread, Unread):
                news.append((access.queue.name, unread))
                self._reported[access.queue.name] = unread.marks
            elif unread is None:
                self._queues_to_read.add(access.queue.name)
        return news
