"""News of its reader's marks for a stream: those that it finds, and those that move.

A mark that this process sets is told at once. One that another process has set is found by reading, every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from queuey.messages import Queue
from queuey.service.queue_access import QueueAccess
from queuey.service.unread import Marks, Unread, UnreadUseCases

PAUSE = 5.0
"""Min seconds between reads of the marks."""
QUEUE_PAUSE = 0.05
"""Interval in seconds for each queue, if that is longer: so a stream reads 20 marks a second, and those that it
hears of."""


class MarkNews:
    """News of one reader's marks. Used in the loop's thread, except for reads.

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
