"""Use cases of read marks: up to where a reader has read a queue, and the number of messages above that.

A mark is the offset of a group that stands for the reader (:data:`~queuey.storage.offset_changes.READERS`): in each
partition the id of the last message that counts as read. It goes forward, unless the reader asks for it to go back, and
never above the horizon of reads: a message that becomes visible later is unread, whatever was marked before.
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
from queuey.service.ranges import OTHERS, nothing
from queuey.storage import Store, bridge
from queuey.storage.calls import in_thread
from queuey.storage.offset_changes import READERS

DEFAULT_COUNTED = 100
MAX_ROWS = 200_000
"""Max ids that one call reads, about: no further queue is counted after as many."""
SLICE_ROWS = 10
"""Cost of a read of a partition besides the ids that it finds, in ids."""
PARTITIONS_TOGETHER = 16
"""Max partitions of one queue that are counted at once: each may have all counted messages."""
QUEUES_TOGETHER = 32
"""Max queues that are counted side by side, where a read mostly waits for a network."""

PAUSE = 5.0
"""Min seconds between reads of the marks."""
QUEUE_PAUSE = 0.05
"""Interval in seconds for each queue, if that is longer: so a stream reads 20 marks a second, and those that it
hears of."""

Marks = Mapping[int, Position]
"""The id of the last message read, by partition."""


class ReadMark(NamedTuple):
    """A reader's mark after a change.

    Attributes:
        marks: In the partitions of the change.
        pending: Seconds until reads show the named messages; until then the mark stays below them. 0: it is set.
    """

    marks: Marks
    pending: float


class Unread(msgspec.Struct, frozen=True):
    """A reader's unread messages in a queue.

    Attributes:
        marks: The reader's mark; partitions without one are missing.
        count: Messages above it.
        more: There are more than ``count``.
    """

    marks: Marks
    count: int
    more: bool


class UnreadUseCases:
    """Sets read marks, and counts messages above them.

    Args:
        store: Has the marks and the messages.
        core: Runs reads side by side.
        notify: Called with the owner of a mark that may have moved, and the queue.
    """

    def __init__(self, store: Store, core: Core, notify: Callable[[str, Queue], None]) -> None:
        self._store = store
        self._core = core
        self._notify = notify

    def mark(self, access: QueueAccess, reader: str, ends: Marks, *, back: bool = False) -> ReadMark:
        """Marks messages below certain positions as read; streams of the same reader in this process learn of it.

        Args:
            access: The way to the queue.
            reader: Owner of the mark.
            ends: By partition; ``OTHERS``: in all that are not named.
            back: A mark that lies above goes back; otherwise it stays.

        Raises:
            InvalidRequest: The queue does not have a partition.
            Conflict: The queue keeps marks of as many readers as it may.
        """

        def mark(queue: Queue) -> ReadMark:
            check_partitions((number for number in ends if number != OTHERS), queue)
            horizon = bridge.run(self._store.messages.read(queue, [nothing()]))[0].horizon, LOW_MIN
            wanted = {
                number: end
                for number in range(1, queue.partitions + 1)
                if (end := ends.get(number, ends.get(OTHERS))) is not None and end > FIRST
            }
            changes = [
                OffsetChange(number, ids.preceding(min(end, horizon)), forward=not back)
                for number, end in wanted.items()
            ]
            offsets = bridge.run(self._store.offsets.set_offsets(queue, group_of(reader), changes)) if changes else []
            ahead = max(wanted.values(), default=FIRST)
            pending = (ahead[0] + 1 - horizon[0]) / TICKS_PER_SECOND if ahead > horizon else 0.0
            return ReadMark({offset.partition: offset.position for offset in offsets}, pending)

        marked = access.use(mark)
        self._notify(reader, access.queue)
        return marked

    def unread(
        self, accesses: Sequence[QueueAccess], reader: str, limit: int = DEFAULT_COUNTED
    ) -> list[Unread | QueueyError | None]:
        """Counts a reader's unread messages in each queue, at most ``limit``, by ids alone.

        Returns for each queue the count, or the error, or None: this call has read as much as it may.
        """
        marks = self.marks(accesses, reader)
        return self.count(list(zip(accesses, marks, strict=True)), limit)

    def marks(self, accesses: Sequence[QueueAccess], reader: str) -> list[Marks]:
        """Returns the marks of a reader in several queues."""
        queues = [access.queue for access in accesses]
        return [*bridge.run(self._store.offsets.offsets_of_queues(queues, group_of(reader)))]

    def count(
        self, asked: Sequence[tuple[QueueAccess, Marks]], limit: int = DEFAULT_COUNTED
    ) -> list[Unread | QueueyError | None]:
        """Counts messages above marks; see :meth:`unread`."""
        return bridge.run(self._count(asked, limit), as_one=True)

    async def _count(self, asked: Sequence[tuple[QueueAccess, Marks]], limit: int) -> list[Unread | QueueyError | None]:
        left = MAX_ROWS
        found: list[Unread | QueueyError | None] = []
        for start in range(0, len(asked), QUEUES_TOGETHER):
            some = asked[start : start + QUEUES_TOGETHER] if left > 0 else []
            for (access, marks), page in zip(some, await self._begun(some, limit), strict=True):
                try:
                    count = partial(self._count_queue, marks=marks, limit=limit, row=access.queue, page=page)
                    one, read = await access.apply(count)
                except (NotFound, NotAllowed) as error:
                    found.append(error)
                else:
                    found.append(one)
                    left -= read
        return found + [None] * (len(asked) - len(found))

    async def _count_queue(
        self, queue: Queue, marks: Marks, limit: int, row: Queue, page: Page | None
    ) -> tuple[Unread, int]:
        """Counts one queue; returns the cost, too. ``page``: of the only partition of ``row``, if it was read."""
        if queue is not row:
            page = None
        left = _slices(queue, marks, limit)
        count = read = 0
        while left and count <= limit:
            some, left = left[:PARTITIONS_TOGETHER], left[PARTITIONS_TOGETHER:]
            pages = await self._store.messages.read(queue, some) if page is None else [page]
            page = None
            count += sum(len(each.messages) for each in pages)
            read += SLICE_ROWS * len(some)
            # A page may end before its limit where a store has looked at as much as it does at once.
            left += [
                replace(piece, lower=each.next)
                for piece, each in zip(some, pages, strict=True)
                if each.more and each.next is not None
            ]
        return Unread(marks, min(count, limit), more=count > limit), read + count

    async def _begun(self, some: Sequence[tuple[QueueAccess, Marks]], limit: int) -> Sequence[Page | None]:
        """Reads queues of one partition side by side, where that is faster; None: it is still to be read."""
        if not self._store.waits_for_network or not some:
            return [None] * len(some)
        reading = partial(self._core.run, self._read_begun(some, limit))
        return await in_thread(reading)

    async def _read_begun(self, some: Sequence[tuple[QueueAccess, Marks]], limit: int) -> list[Page | None]:
        return await asyncio.gather(*(self._read_one(access.queue, marks, limit) for access, marks in some))

    async def _read_one(self, queue: Queue, marks: Marks, limit: int) -> Page | None:
        if queue.partitions > 1:
            return None
        [piece] = _slices(queue, marks, limit)
        try:
            [page] = await self._store.messages.read(queue, [piece])
        except QueueChanged:
            return None
        return page


def group_of(reader: str) -> str:
    """Returns the group whose offsets are a reader's marks."""
    return READERS + reader


def _slices(queue: Queue, marks: Marks, limit: int) -> list[Slice]:
    """Returns the slices above marks, of one message more than is counted in each partition."""
    return [
        Slice(number, ids.following(marks[number]) if number in marks else FIRST, limit=limit + 1, bodies=False)
        for number in range(1, queue.partitions + 1)
    ]


class MarkNews:
    """News of its reader's marks for a stream: those that it finds, and those that move.

    A mark that this process sets is told at once. One that another process has set is found by reading, every few
    seconds. Used in the loop's thread, except for reads.

    Args:
        unread: Has the marks.
        reader: Owner of the marks.
        wake: Wakes the stream, for a queue (qid).
        clock: Seconds.
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
        self._told: dict[str, Marks] = {}
        self._heard: set[str] = set()
        """Queues whose marks are to be read at the next turn."""
        self._due = -1.0
        self._queues = 0

    @property
    def pause(self) -> float:
        return max(PAUSE, QUEUE_PAUSE * self._queues)

    @property
    def more(self) -> bool:
        """True if there are marks to read now."""
        return bool(self._heard)

    def hear(self, queue: Queue) -> None:
        """Requests a read of a queue's mark: it may have moved."""
        self._heard.add(queue.name)
        self._wake(queue.qid)

    def drop(self, name: str) -> None:
        self._told.pop(name, None)

    def due(self, accesses: Sequence[QueueAccess]) -> Sequence[QueueAccess]:
        """Returns the queues whose marks are to be read now, of all those of the stream: once in a while all."""
        self._queues = len(accesses)
        is_due = self._clock() >= self._due
        if is_due:
            self._due = self._clock() + 0.5 * self.pause
        heard, self._heard = self._heard, set()
        return [each for each in accesses if is_due or each.queue.name in heard or each.queue.name not in self._told]

    def news(self, accesses: Sequence[QueueAccess]) -> list[tuple[str, Unread]]:
        """Returns the queues whose marks were not told yet, with their unread messages; blocks.

        Those that could not be counted this time are due again.
        """
        marks = self._unread.marks(accesses, self.reader)
        moved = [
            (access, each)
            for access, each in zip(accesses, marks, strict=True)
            if self._told.get(access.queue.name) != each
        ]
        counted = self._unread.count(moved) if moved else []
        found: list[tuple[str, Unread]] = []
        for (access, _), unread in zip(moved, counted, strict=True):
            if isinstance(unread, Unread):
                found.append((access.queue.name, unread))
                self._told[access.queue.name] = unread.marks
            elif unread is None:
                self._heard.add(access.queue.name)
        return found
