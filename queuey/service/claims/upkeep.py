"""Decides when a log needs a snapshot, and how many entries may be removed then."""

from __future__ import annotations

from collections import deque

import msgspec

MARK_EVERY = 5.0
"""Interval in seconds between two marks of the log's growth."""


class SnapshotPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Policy that keeps a log short.

    Attributes:
        entries: A snapshot is made after so many entries, if they are together as long as the last snapshot was.
        most_entries: A snapshot is made after so many entries in any case.
        kept_entries: Number of entries that truncation leaves.
        kept_seconds: Age up to which it leaves entries, too.
    """

    entries: int = 256
    most_entries: int = 2048
    kept_entries: int = 256
    kept_seconds: float = 60.0


class LogCompaction:
    """A log's length, as one process has seen it.

    Attributes:
        to_name: The snapshot that the next entry is to name, if the log names none that is newer.
    """

    __slots__ = ("_bytes", "_entries", "_marks", "_snapshot", "_upkeep", "to_name")

    def __init__(self, upkeep: SnapshotPolicy) -> None:
        self._upkeep = upkeep
        self._entries = self._bytes = self._snapshot = 0
        self._marks: deque[tuple[float, int]] = deque()
        self.to_name = 0

    def entered(self, number: int, length: int, written: float) -> None:
        """Adds an entry of ``length`` bytes, written at a boot time by any process."""
        self._entries += 1
        self._bytes += length
        if not self._marks or written - self._marks[-1][0] >= min(MARK_EVERY, self._upkeep.kept_seconds):
            self._marks.append((written, number))
            while len(self._marks) > 1 and self._marks[1][0] <= written - self._upkeep.kept_seconds:
                self._marks.popleft()

    def read(self, length: int) -> None:
        """Records that a snapshot of ``length`` bytes was read."""
        self._snapshot = length
        self._entries = self._bytes = 0

    def is_due(self) -> bool:
        if self._entries < self._upkeep.entries:
            return False
        return self._bytes >= self._snapshot or self._entries >= self._upkeep.most_entries

    def begun(self) -> None:
        """Records that one is being written; if that fails it is due after as many entries again."""
        self._entries = self._bytes = 0

    def written(self, number: int, length: int) -> None:
        """Records a snapshot of the entries up to ``number``."""
        self._snapshot = length
        self.to_name = number

    def truncatable(self, last: int, now: float) -> int | None:
        """Returns the number below which entries may go when the next one names :attr:`to_name`; None: none may."""
        old = 0
        while self._marks and self._marks[0][0] <= now - self._upkeep.kept_seconds:
            old = self._marks.popleft()[1]
        below = min(old, self.to_name + 1, last - self._upkeep.kept_entries)
        return below if below > 1 else None
