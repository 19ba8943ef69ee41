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

from queuey.access.queue_access import QueueAccess
from queuey.messages.ranges import OTHER_PARTITIONS, make_horizon_slice
from queuey.model import ids
from queuey.model.errors import NotAllowed, NotFound, QueueChanged, QueueyError
from queuey.model.ids import FIRST, LAST, LOW_MIN, TICKS_PER_SECOND, Position
from queuey.model.messages import Message, OffsetChange, Page, Queue, Slice
from queuey.model.partitions import check_partitions
from queuey.runtime.event_loop import Core
from queuey.storage import Store
from queuey.storage.deadlines import in_thread
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
EVERYTHING: Marks = {OTHER_PARTITIONS: LAST}
"""Ends of a count of all messages."""
UnreadRange = tuple[QueueAccess, Marks, Marks]
"""A queue, its marks and its ends. Messages below a partition's end count; ``OTHER_PARTITIONS`` is for partitions that
are not named."""


class ChangedMark(NamedTuple):
    """A reader's mark after a change.

    Attributes:
        marks: The mark in the changed partitions.
        pending: Seconds until reads show the named messages, below which the mark stays until then; 0 if it is set.
    """

    marks: Marks
    pending: float


class UnreadCount(msgspec.Struct, frozen=True):
    """A reader's unread messages in a queue.

    Attributes:
        marks: The reader's mark, without partitions that have none.
        count: Number of messages above the mark, up to the limit.
        more: True if there are more than ``count``.
        is_final: False if messages that reads do not show yet may add to the count.
    """

    marks: Marks
    count: int
    more: bool
    is_final: bool = True


NOT_REPORTED = 0, UnreadCount({}, 0, more=True)


class UnreadUseCases:
    """Sets read marks, and counts messages above them.

    Args:
        notify: Called with the owner of a mark that may have moved, and the queue.
    """

    def __init__(self, store: Store, core: Core, notify: Callable[[str, Queue], None]) -> None:
        self._store = store
        self._core = core
        self._notify = notify

    async def mark(self, access: QueueAccess, reader: str, ends: Marks, *, back: bool = False) -> ChangedMark:
        """Marks messages below positions as read, and notifies the reader's streams in this process.

        Args:
            reader: Owner of the mark.
            ends: Positions by partition; ``OTHER_PARTITIONS`` is for partitions that are not named.
            back: Also move the mark back. Otherwise a mark above a position stays.

        Raises:
            InvalidRequest: The queue does not have one of the partitions.
            Conflict: The queue has the maximum number of readers.
        """

        async def mark(queue: Queue) -> ChangedMark:
            check_partitions((number for number in ends if number != OTHER_PARTITIONS), queue.partitions)
            [page] = await self._store.messages.read(queue, [make_horizon_slice()])
            horizon = page.horizon, LOW_MIN
            requested = {
                number: end
                for number in range(1, queue.partitions + 1)
                if (end := ends.get(number, ends.get(OTHER_PARTITIONS))) is not None and end > FIRST
            }
            changes = [
                OffsetChange(number, ids.preceding(min(end, horizon)), forward=not back)
                for number, end in requested.items()
            ]
            group = make_reader_group(reader)
            offsets = await self._store.offsets.set_offsets(queue, group, changes) if changes else []
            ahead = max(requested.values(), default=FIRST)
            pending = (ahead[0] + 1 - horizon[0]) / TICKS_PER_SECOND if ahead > horizon else 0.0
            return ChangedMark({offset.partition: offset.position for offset in offsets}, pending)

        marked = await access.apply(mark)
        self._notify(reader, access.queue)
        return marked

    async def unread(
        self, accesses: Sequence[QueueAccess], reader: str, limit: int = DEFAULT_COUNTED
    ) -> list[UnreadCount | QueueyError | None]:
        """Counts a reader's unread messages in each queue, at most ``limit``. Reads only ids.

        Returns for each queue the count, the error, or None if this call has already read ``MAX_READ_IDS`` ids.
        """
        marks = await self.read_marks(accesses, reader)
        return await self.count(
            [(access, mark, EVERYTHING) for access, mark in zip(accesses, marks, strict=True)], limit
        )

    async def read_marks(self, accesses: Sequence[QueueAccess], reader: str) -> Sequence[Marks]:
        queues = [access.queue for access in accesses]
        return await self._store.offsets.offsets_of_queues(queues, make_reader_group(reader))

    async def count(
        self, ranges: Sequence[UnreadRange], limit: int = DEFAULT_COUNTED
    ) -> list[UnreadCount | QueueyError | None]:
        budget = MAX_READ_IDS
        counts: list[UnreadCount | QueueyError | None] = []
        for start in range(0, len(ranges), MAX_CONCURRENT_QUEUES):
            batch = ranges[start : start + MAX_CONCURRENT_QUEUES] if budget > 0 else []
            for (access, marks, ends), page in zip(batch, await self._read_ahead(batch, limit), strict=True):
                try:
                    count = partial(self._count_queue, marks=marks, ends=ends, limit=limit, row=access.queue, page=page)
                    unread, cost = await access.apply(count)
                except (NotFound, NotAllowed) as error:
                    counts.append(error)
                else:
                    counts.append(unread)
                    budget -= cost
        return counts + [None] * (len(ranges) - len(counts))

    async def _count_queue(
        self, queue: Queue, marks: Marks, ends: Marks, limit: int, row: Queue, page: Page | None
    ) -> tuple[UnreadCount, int]:
        if queue is not row:
            page = None
        remaining = _unread_slices(queue, marks, ends, limit)
        count, cost, is_final = 0, 0, True
        while remaining and count <= limit:
            batch, remaining = remaining[:MAX_PARTITIONS_TOGETHER], remaining[MAX_PARTITIONS_TOGETHER:]
            pages = await self._store.messages.read(queue, batch) if page is None else [page]
            page = None
            count += sum(len(p.messages) for p in pages)
            cost += SLICE_COST * len(batch)
            is_final = is_final and all(
                piece.upper <= (p.horizon, LOW_MIN) for piece, p in zip(batch, pages, strict=True)
            )
            # A page may end before its limit if the store has scanned as much as it does in one read.
            remaining += [
                replace(piece, lower=p.next)
                for piece, p in zip(batch, pages, strict=True)
                if p.more and p.next is not None
            ]
        return UnreadCount(marks, min(count, limit), more=count > limit, is_final=is_final), cost + count

    async def _read_ahead(self, ranges: Sequence[UnreadRange], limit: int) -> Sequence[Page | None]:
        """Reads queues of one partition concurrently if that is faster; None for queues not read."""
        if not self._store.waits_for_network or not ranges:
            return [None] * len(ranges)
        reading = partial(self._core.run, self._read_concurrently(ranges, limit))
        return await in_thread(reading)

    async def _read_concurrently(self, ranges: Sequence[UnreadRange], limit: int) -> list[Page | None]:
        slices = [(access.queue, _unread_slices(access.queue, marks, ends, limit)) for access, marks, ends in ranges]
        return await asyncio.gather(*(self._read_only_slice(queue, pieces) for queue, pieces in slices))

    async def _read_only_slice(self, queue: Queue, slices: Sequence[Slice]) -> Page | None:
        if len(slices) != 1:
            return None
        try:
            [page] = await self._store.messages.read(queue, slices)
        except QueueChanged:
            return None
        return page


def make_reader_group(reader: str) -> str:
    return READER_PREFIX + reader


def _unread_slices(queue: Queue, marks: Marks, ends: Marks, limit: int) -> list[Slice]:
    slices = []
    for number in range(1, queue.partitions + 1):
        lower = ids.following(marks[number]) if number in marks else FIRST
        upper = ends.get(number, ends.get(OTHER_PARTITIONS, FIRST))
        if lower < upper:
            slices.append(Slice(number, lower, upper, limit=limit + 1, bodies=False))
    return slices


class MarkNews:
    """Reports a reader's unread messages to a stream, up to the stream's cursor: first the present ones, then changes.

    The stream's reader adds each later message above the mark, and so does this class. A report is due when that sum is
    wrong: the mark has moved, or messages were removed. Changes by this process are reported at once. Others are found
    by reads every few seconds: of the marks, and of the ids of unread messages, if there are any.
    Used in the loop's thread, except for reads.

    Args:
        wake: Wakes the stream, for a queue (qid).
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
        self._reported: dict[str, tuple[int, UnreadCount]] = {}
        """By queue, its qid, and the last report with the messages that were sent since."""
        self._queues_to_read: set[str] = set()
        """Queues whose marks must be read, and messages counted, at the next turn."""
        self._queues_to_count: set[str] = set()
        """Queues whose messages must be counted in this turn, even if the mark has not moved."""
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

    def record_sent(self, name: str, message: Message) -> None:
        """Adds a message that the stream has sent to the last report, as its reader does."""
        qid, unread = self._reported.get(name, NOT_REPORTED)
        if not unread.more and message.position > unread.marks.get(message.partition, FIRST):
            self._reported[name] = qid, replace(unread, count=unread.count + 1)

    def take_due(self, accesses: Sequence[QueueAccess]) -> Sequence[QueueAccess]:
        """Returns the stream's queues whose marks must be read now: periodically all of them.

        They count as read then: each request to read is returned once.
        """
        self._queue_count = len(accesses)
        is_due = self._clock() >= self._due
        self._queues_to_count, self._queues_to_read = self._queues_to_read, set()
        if is_due:
            self._due = self._clock() + 0.5 * self.pause
            # Where nothing is unread, nothing can fall.
            self._queues_to_count |= {
                n for n, (_, unread) in self._reported.items() if unread.count or not unread.is_final
            }
        return [access for access in accesses if is_due or self._must_count(access.queue)]

    async def read_news(
        self, accesses: Sequence[QueueAccess], find_ends: Callable[[str], Marks]
    ) -> list[tuple[str, UnreadCount]]:
        """Returns queues whose unread messages differ from the last report and those sent since.

        Queues that this call had no room to count are due again. Queues that cannot be read any more are left out.

        Args:
            find_ends: Returns the positions, by partition of a queue, below which the stream has sent all messages.
        """
        marks = await self._unread.read_marks(accesses, self.reader)
        to_count = [
            (access, mark, find_ends(access.queue.name))
            for access, mark in zip(accesses, marks, strict=True)
            if self._must_count(access.queue) or self._reported[access.queue.name][1].marks != mark
        ]
        counted = await self._unread.count(to_count) if to_count else []
        news: list[tuple[str, UnreadCount]] = []
        for (access, _, _), unread in zip(to_count, counted, strict=True):
            name = access.queue.name
            if isinstance(unread, UnreadCount):
                _, before = self._reported.get(name, NOT_REPORTED)
                self._reported[name] = access.queue.qid, unread
                if replace(unread, is_final=before.is_final) != before:
                    news.append((name, unread))
            elif unread is None:
                self._queues_to_read.add(name)
        return news

    def _must_count(self, queue: Queue) -> bool:
        """Returns whether to count messages though the mark may not have moved: on request, and after a purge."""
        qid, _ = self._reported.get(queue.name, NOT_REPORTED)
        return qid != queue.qid or queue.name in self._queues_to_count
