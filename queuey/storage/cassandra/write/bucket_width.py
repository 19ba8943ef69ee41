"""At which bucket width a process writes to a queue partition: as wide as keeps buckets readable.

A bucket is full at 50,000 rows or 30 MB. The level follows what this process alone has written: writers need not agree,
because readers look at every recorded bucket.
"""

from __future__ import annotations

from queuey.ids import TICKS_PER_SECOND
from queuey.storage.cassandra import bucketing

FULL_ROWS = 50_000
FULL_BYTES = 30_000_000
ENOUGH = 0.1
"""Part of a full bucket below which a burst says nothing."""
SPARSE = 0.25
"""A wider width is taken when its bucket would be filled to less than this."""


class BucketWidths:
    """What was written to the present bucket of a partition.

    Args:
        kind: The class of the bucket.
        full_rows: Rows at which a bucket is full.

    Attributes:
        width_index: The level to write at.
    """

    __slots__ = ("_began", "_end", "_fill", "_full_rows", "kind", "width_index")

    def __init__(self, kind: int, *, full_rows: int = FULL_ROWS) -> None:
        self.kind = kind
        self._full_rows = full_rows
        self.width_index = bucketing.HOME_WIDTH
        self._fill = 0.0
        self._began = 0
        self._end = 0

    def add(self, rows: int, size: int) -> None:
        """Counts rows and the bytes of their bodies."""
        self._fill += max(rows / self._full_rows, size / FULL_BYTES)

    def width_at(self, now: int) -> int:
        """Decides the level for ids of ``now`` (ticks)."""
        if self._began == 0:
            self._enter(now)
        elif now >= self._end:
            self._turn(now)
        elif self._fill >= ENOUGH:
            rate = self._fill / max(now - self._began, TICKS_PER_SECOND)
            if self._fill >= 1 or self._fill + rate * (self._end - now) > 1:
                self._narrow(rate, now)
        return self.width_index

    def _enter(self, now: int) -> None:
        self._began = now
        self._end = bucketing.bucket_of(now, self.kind, self.width_index).end
        self._fill = 0.0

    def _turn(self, now: int) -> None:
        """Goes to the next bucket, at a wider width if the last one stayed nearly empty."""
        rate = self._fill / (now - self._began)
        while self.width_index != bucketing.HOME_WIDTH:
            wider = bucketing.wider(self.kind, self.width_index)
            if rate * bucketing.width(self.kind, wider) >= SPARSE:
                break
            self.width_index = wider
        self._enter(now)

    def _narrow(self, rate: float, now: int) -> None:
        width_index = bucketing.narrower(self.kind, self.width_index)
        while rate * bucketing.width(self.kind, width_index) > 1 and width_index != bucketing.NARROWEST:
            width_index = bucketing.narrower(self.kind, width_index)
        if width_index != self.width_index:
            self.width_index = width_index
            self._enter(now)
