"""Where a message lies: retention classes, bucket widths, and the buckets that may hold a range of ids.

A **class** is a table; the smallest one that covers a message's lifetime holds it, so that whole files expire at once.
A **bucket** is one Cassandra partition of a queue partition: a class, a width index and a number. Width index 0 is as
wide as the class, so a queue with few messages has its live ones in the present bucket and the one before. Width index
1 to 4 are narrow, for partitions that get many messages. Width index 5 to 7 hold messages written under given ids
(``put``, bulk loads): all other buckets only ever grow at ids that no reader's horizon has passed.

Buckets with width index 0 of the queue's own class are always read; every other bucket is recorded in the bucket index
(:mod:`.bucket_index`) before a message is written to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND

HOUR = 3600
_LAST_SECOND = (1 << 31) - 2 - HOUR
DAY = 24 * HOUR

CLASSES = (6 * HOUR, 4 * DAY, 32 * DAY, 400 * DAY)
"""Seconds that the messages of each class live at most."""
NAMES = ("6h", "4d", "32d", "400d")
"""Ends of the tables' names: ``messages_6h`` and so on."""

HOME_WIDTH = 0
NARROWEST = 4
PUT = 5
LOAD = 6
DENSE_LOAD = 7
WIDTHS = range(8)
_SECONDS = (0, 6 * HOUR, 15 * 60, 60, 5, 0, 15 * 60, 5)
"""Widths of the bucket widths; 0: that of the class."""


class Bucket(NamedTuple):
    """A Cassandra partition of one queue partition: a table (TTL class), and a part of the key in it."""

    ttl_class: int
    """The class, 0 to 3."""
    bucket: int

    @property
    def width_index(self) -> int:
        return self.bucket & 7

    @property
    def new_ids_only(self) -> bool:
        """False: its rows were written under given ids (``put``, loads)."""
        return self.bucket & 7 < PUT

    @property
    def wide(self) -> bool:
        """True: it is as wide as its class."""
        return not _SECONDS[self.bucket & 7]

    @property
    def start(self) -> int:
        return (self.bucket >> 3) * width(self.ttl_class, self.bucket & 7)

    @property
    def end(self) -> int:
        """The tick after the last of its ids."""
        return ((self.bucket >> 3) + 1) * width(self.ttl_class, self.bucket & 7)


def class_of(seconds: float) -> int:
    """Returns the smallest class for messages that live so long, the largest if none is large enough."""
    for number, longest in enumerate(CLASSES):
        if seconds <= longest:
            return number
    return len(CLASSES) - 1


def width(kind: int, width_index: int) -> int:
    return (_SECONDS[width_index] or CLASSES[kind]) * TICKS_PER_SECOND


def bucket_of(ticks: int, kind: int, width_index: int) -> Bucket:
    return Bucket(kind, (ticks // width(kind, width_index)) << 3 | width_index)


def narrower(kind: int, width_index: int) -> int:
    if width_index >= NARROWEST:
        return width_index
    following = width_index + 1
    return following if width(kind, following) < width(kind, width_index) else following + 1


def wider(kind: int, width_index: int) -> int:
    """Width index 1 is as wide as the class of 6 h itself, so that class has no use for it."""
    previous = max(HOME_WIDTH, width_index - 1)
    return previous if width(kind, previous) < width(kind, HOME_WIDTH) else HOME_WIDTH


def own_buckets(kind: int, lower: int, upper: int) -> list[Bucket]:
    size = width(kind, HOME_WIDTH)
    return [
        Bucket(kind, index << 3 | HOME_WIDTH)
        for index in range(max(0, lower) // size, (max(lower, upper - 1)) // size + 1)
    ]


def longest_ttl(now: int) -> int:
    """Returns the most seconds that Cassandra lets anything written now (ticks) live.

    Nothing may expire after 2038-01-19 unless ``storage_compatibility_mode`` is ``NONE``, which cannot be asked for.
    """
    return max(1, _LAST_SECOND - (now - EPOCH_TICKS) // TICKS_PER_SECOND)


def is_recorded(time_bucket: Bucket, home_class: int) -> bool:
    """Returns whether a bucket has to be in ``bucket_index`` before it is written to."""
    return time_bucket.ttl_class != home_class or time_bucket.width_index != HOME_WIDTH


class RecordedBuckets:
    """Buckets by start, so that a few of very many are found without visiting the rest."""

    __slots__ = ("_narrow", "_wide", "time_buckets")

    def __init__(self, time_buckets: Iterable[Bucket]) -> None:
        self.time_buckets = tuple(time_buckets)
        self._wide = [time_bucket for time_bucket in self.time_buckets if time_bucket.wide]
        # Of one class and level they do not overlap, so their ends ascend as their starts do.
        self._narrow: list[tuple[int, list[int], list[Bucket]]] = []
        narrow = sorted(
            (time_bucket for time_bucket in self.time_buckets if not time_bucket.wide),
            key=lambda time_bucket: (time_bucket.ttl_class, time_bucket.start),
        )
        for kind, width_index in sorted({(time_bucket.ttl_class, time_bucket.width_index) for time_bucket in narrow}):
            row = [
                time_bucket
                for time_bucket in narrow
                if (time_bucket.ttl_class, time_bucket.width_index) == (kind, width_index)
            ]
            self._narrow.append((width(kind, width_index), [time_bucket.start for time_bucket in row], row))

    def overlapping(self, lower: int, upper: int) -> list[Bucket]:
        """Returns those that may hold ids in ``[lower, upper)`` (ticks), by start, wider ones first."""
        found = [time_bucket for time_bucket in self._wide if time_bucket.start < upper and time_bucket.end > lower]
        for size, starts, row in self._narrow:
            found += row[bisect_right(starts, lower - size) : bisect_left(starts, upper)]
        found.sort(key=lambda time_bucket: (time_bucket.start, -time_bucket.end))
        return found

    def nearest(
        self, lower: int, upper: int, most: int, *, alive: Sequence[int], descending: bool
    ) -> tuple[list[Bucket], int | None]:
        """Returns the wide ones that overlap ``[lower, upper)`` and of the narrow ones those nearest to one end.

        Args:
            lower: The first tick of interest.
            upper: The tick after the last.
            most: Narrow ones to return; more than can overlap in one tick.
            alive: By class, the tick below which buckets of new ids hold nothing; those are left out.
            descending: Nearest to the upper end.

        Returns:
            The buckets in any order, and how far they are complete: the tick at which the first one that was left out
            starts (descending: ends); None: none was left out.
        """
        wide = [time_bucket for time_bucket in self._wide if time_bucket.start < upper and time_bucket.end > lower]
        found: list[Bucket] = []
        for size, starts, row in self._narrow:
            lowest = max(lower, alive[row[0].ttl_class]) if row[0].new_ids_only else lower
            low, high = bisect_right(starts, lowest - size), bisect_left(starts, upper)
            if high - low > most:
                low, high = (high - most - 1, high) if descending else (low, low + most + 1)
            found += row[low:high]
        if len(found) <= most:
            return wide + found, None
        found.sort(key=lambda time_bucket: -time_bucket.end if descending else time_bucket.start)
        left = found[most]
        return wide + found[:most], left.end if descending else left.start


FULL_ROWS = 50_000
FULL_BYTES = 30_000_000
ENOUGH = 0.1
"""Min part of a full bucket above which a burst counts."""
SPARSE = 0.25
"""Min part to which a bucket must be filled; else the next one is wider."""


class BucketWidths:
    """Counts what was written to the present bucket of a partition, and chooses the width of the next."""

    __slots__ = ("_began", "_end", "_fill", "_full_rows", "kind", "width_index")

    def __init__(self, kind: int, *, full_rows: int = FULL_ROWS) -> None:
        self.kind = kind
        self._full_rows = full_rows
        self.width_index = HOME_WIDTH
        self._fill = 0.0
        self._began = 0
        self._end = 0

    def add(self, rows: int, size: int) -> None:
        self._fill += max(rows / self._full_rows, size / FULL_BYTES)

    def width_at(self, now: int) -> int:
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
        self._end = bucket_of(now, self.kind, self.width_index).end
        self._fill = 0.0

    def _turn(self, now: int) -> None:
        """Goes to the next bucket, at a wider width if the last one stayed nearly empty."""
        rate = self._fill / (now - self._began)
        while self.width_index != HOME_WIDTH:
            next_width = wider(self.kind, self.width_index)
            if rate * width(self.kind, next_width) >= SPARSE:
                break
            self.width_index = next_width
        self._enter(now)

    def _narrow(self, rate: float, now: int) -> None:
        width_index = narrower(self.kind, self.width_index)
        while rate * width(self.kind, width_index) > 1 and width_index != NARROWEST:
            width_index = narrower(self.kind, width_index)
        if width_index != self.width_index:
            self.width_index = width_index
            self._enter(now)
