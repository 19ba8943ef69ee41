"""What a stream tells of the marks of its reader: those that it finds, and those that move.

A mark that this process sets is told at once. One that another process has set is found by looking, every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from queuey.service.queue_access import InThread, QueueAccess
from queuey.service.unread import Marks, Unread, UnreadUseCases

PAUSE = 5.0
"""Seconds between looks at the marks, at least."""
QUEUE_PAUSE = 0.05
"""Seconds for each queue that is looked at, if that is longer: so a stream has 20 marks a second read at most."""


class MarkNews:
    """Finds what is new about the marks of one reader. Used in the loop's thread, but for what it does in others.

    Args:
        unread: Has the marks.
        reader: Whose marks these are.
        wake: Has the stream tried again, for a queue (qid).
        clock: Seconds.

    Attributes:
        more: Not all marks were looked at.
    """

    def __init__(
        self,
        unread: UnreadUseCases,
        reader: str,
        wake: Callable[[int | None], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.reader = reader
        self.more = False
        self._unread = unread
        self._wake = wake
        self._clock = clock
        self._told: dict[str, Marks] = {}
        self._due = -1.0
        self._queues = 0

    @property
    def pause(self) -> float:
        """Seconds between looks at the marks."""
        return max(PAUSE, QUEUE_PAUSE * self._queues)

    def hear(self, qid: int) -> None:
        """Looks at once: a mark may have moved."""
        self._due = -1.0
        self._wake(qid)

    def drop(self, name: str) -> None:
        """Forgets a queue."""
        self._told.pop(name, None)

    async def news(self, accesses: Sequence[QueueAccess], in_thread: InThread) -> list[tuple[str, Unread]]:
        """Returns the queues whose marks were not told yet, with what is unread there; nothing before the next look."""
        is_new = any(access.queue.name not in self._told for access in accesses)
        if not (is_new or self.more or self._clock() >= self._due):
            return []
        self._queues = len(accesses)
        self._due = self._clock() + 0.5 * self.pause
        found, self.more = await in_thread(lambda: self._look(accesses))
        self._told |= {name: unread.marks for name, unread in found}
        return list(found)

    def _look(self, accesses: Sequence[QueueAccess]) -> tuple[list[tuple[str, Unread]], bool]:
        marks = self._unread.marks(accesses, self.reader)
        moved = [
            (access, each)
            for access, each in zip(accesses, marks, strict=True)
            if self._told.get(access.queue.name) != each
        ]
        counted = self._unread.count(moved) if moved else []
        found = [
            (access.queue.name, unread)
            for (access, _), unread in zip(moved, counted, strict=True)
            if isinstance(unread, Unread)
        ]
        return found, None in counted
