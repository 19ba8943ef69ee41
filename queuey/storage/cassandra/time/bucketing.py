"""Where a message is stored: retention classes, bucket widths, and the buckets that may hold a range of ids.

A **class** is a table. A message is stored in the smallest class that covers its lifetime, so that whole files expire
at once. A **bucket** is one Cassandra partition of a queue partition: a class, a width index and a number. Width index
0 is as wide as the class, so the live messages of a small queue are in the present bucket and the previous one. Width
indexes 1 to 4 are narrow, for partitions that get many messages. Width indexes 5 to 7 hold messages written under given
ids (``put``, bulk loads); all other buckets only gain ids that no reader's horizon has passed.

Buckets with width index 0 of the queue's home class are always read. Every other bucket is recorded in the bucket index
(:mod:`..read.bucket_index`) before a message is written to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from queuey.model.ids import EPOCH_TICKS, TICKS_PER_SECOND

HOUR = 3600
_LAST_SECOND = (1 << 31) - 2 - HOUR
DAY = 24 * HOUR

CLASSES = (6 * HOUR, 4 * DAY, 32 * DAY, 400 * DAY)
"""Max lifetime of messages by class, in seconds."""
NAMES = ("6h", "4d", "32d", "400d")
"""Suffixes of the table names: ``messages_6h`` and so on."""

HOME_WIDTH = 0
NARROWEST = 4
PUT_WIDTH = 5
LOAD_WIDTH = 6
DENSE_LOAD_WIDTH = 7
WIDTHS = range(8)
_WIDTH_SECONDS = (0, 6 * HOUR, 15 * 60, 60, 5, 0, 15 * 60, 5)
"""Bucket widths by width index, in seconds; 0 stands for the width of the class."""
_WIDTH_TICKS = [[(seconds or lifetime) * TICKS_PER_SECOND for seconds in _WIDTH_SECONDS] for lifetime in CLASSES]
"""Bucket widths by class and width index, in ticks."""


class Bucket(NamedTuple):
    """A Cassandra partition of one queue partition: a table (TTL class), and a part of the key in it.

    Start and end are in ticks. A bucket is ``wide`` if it is as wide as its class.
    """

    ttl_class: int
    """The class, 0 to 3."""
    code: int
    """Number and width index, packed; the value of the column ``bucket``."""

    @property
    def width_index(self) -> int:
        return self.code & 7

    @property
    def new_ids_only(self) -> bool:
        """False if its rows were written under given ids (``put``, loads)."""
        return self.code & 7 < PUT_WIDTH

    @property
    def wide(self) -> bool:
        return not _WIDTH_SECONDS[self.code & 7]

    @property
    def start(self) -> int:
        return (self.code >> 3) * _WIDTH_TICKS[self.ttl_class][self.code & 7]

    @property
    def end(self) -> int:
        return ((self.code >> 3) + 1) * _WIDTH_TICKS[self.ttl_class][self.code & 7]


def class_of(seconds: float) -> int:
    """Returns the smallest class for messages with this lifetime, or the largest class if none is large enough."""
    for index, max_seconds in enumerate(CLASSES):
        if seconds <= max_seconds:
            return index
    return len(CLASSES) - 1


def width(ttl_class: int, width_index: int) -> int:
    return _WIDTH_TICKS[ttl_class][width_index]


def bucket_of(ticks: int, ttl_class: int, width_index: int) -> Bucket:
    return Bucket(ttl_class, (ticks // _WIDTH_TICKS[ttl_class][width_index]) << 3 | width_index)


def find_narrower_width(ttl_class: int, width_index: int) -> int:
    if width_index >= NARROWEST:
        return width_index
    following = width_index + 1
    return following if width(ttl_class, following) < width(ttl_class, width_index) else following + 1


def find_wider_width(ttl_class: int, width_index: int) -> int:
    """Returns the next width index whose buckets are wider. Index 1 is as wide as the class of 6 h, which skips it."""
    previous = max(HOME_WIDTH, width_index - 1)
    return previous if width(ttl_class, previous) < width(ttl_class, HOME_WIDTH) else HOME_WIDTH


def home_buckets(ttl_class: int, lower: int, upper: int) -> list[Bucket]:
    """Returns the home buckets of a class that overlap ``[lower, upper)`` (ticks); at least one."""
    size = _WIDTH_TICKS[ttl_class][HOME_WIDTH]
    return [
        Bucket(ttl_class, index << 3 | HOME_WIDTH)
        for index in range(max(0, lower) // size, (max(lower, upper - 1)) // size + 1)
    ]


def max_cassandra_ttl(now: int) -> int:
    """Returns the max TTL in seconds that Cassandra accepts for a write now (ticks).

    Nothing may expire after 2038-01-19 unless ``storage_compatibility_mode`` is ``NONE``, which cannot be queried.
    """
    return max(1, _LAST_SECOND - (now - EPOCH_TICKS) // TICKS_PER_SECOND)


def is_indexed(time_bucket: Bucket, home_class: int) -> bool:
    """Returns whether a bucket is recorded in the index: all are, except the wide buckets of the home class."""
    return time_bucket.ttl_class != home_class or time_bucket.code & 7 != HOME_WIDTH


class RecordedBuckets:
    """Buckets sorted by start: a few of very many are found without visiting the rest."""

    __slots__ = ("_narrow", "_wide", "time_buckets")

    def __init__(self, time_buckets: Iterable[Bucket]) -> None:
        self.time_buckets = tuple(time_buckets)
        self._wide = [time_bucket for time_bucket in self.time_buckets if time_bucket.wide]
        # Buckets of one class and width do not overlap, so their ends ascend like their starts.
        self._narrow: list[tuple[int, list[int], list[Bucket]]] = []
        narrow = sorted(
            (time_bucket for time_bucket in self.time_buckets if not time_bucket.wide),
            key=lambda time_bucket: (time_bucket.ttl_class, time_bucket.start),
        )
        for ttl_class, width_index in sorted(
            {(time_bucket.ttl_class, time_bucket.width_index) for time_bucket in narrow}
        ):
            row = [
                time_bucket
                for time_bucket in narrow
                if (time_bucket.ttl_class, time_bucket.width_index) == (ttl_class, width_index)
            ]
            self._narrow.append((width(ttl_class, width_index), [time_bucket.start for time_bucket in row], row))

    def find_overlapping(self, lower: int, upper: int) -> list[Bucket]:
        """Returns the buckets that may hold ids in ``[lower, upper)`` (ticks), by start, wide ones first."""
        buckets = [time_bucket for time_bucket in self._wide if time_bucket.start < upper and time_bucket.end > lower]
        for size, starts, row in self._narrow:
            buckets += row[bisect_right(starts, lower - size) : bisect_left(starts, upper)]
        buckets.sort(key=lambda time_bucket: (time_bucket.start, -time_bucket.end))
        return buckets

    def find_nearest(
        self, lower: int, upper: int, max_narrow: int, *, alive: Sequence[int], descending: bool
    ) -> tuple[list[Bucket], int | None]:
        """Returns all wide buckets that overlap ``[lower, upper)``, and the narrow ones nearest to one end.

        Args:
            max_narrow: Max narrow buckets; more than can overlap in one tick.
            alive: By class, the tick below which buckets of new ids hold no messages and are skipped.
            descending: Nearest to the upper end.

        Returns:
            The buckets in any order, and the tick up to which they are complete: the start (descending: the end) of the
            first bucket that was left out. None if they are all there.
        """
        wide = [time_bucket for time_bucket in self._wide if time_bucket.start < upper and time_bucket.end > lower]
        narrow: list[Bucket] = []
        for size, starts, row in self._narrow:
            lowest = max(lower, alive[row[0].ttl_class]) if row[0].new_ids_only else lower
            low, high = bisect_right(starts, lowest - size), bisect_left(starts, upper)
            if high - low > max_narrow:
                low, high = (high - max_narrow - 1, high) if descending else (low, low + max_narrow + 1)
            narrow += row[low:high]
        if len(narrow) <= max_narrow:
            return wide + narrow, None
        narrow.sort(key=lambda time_bucket: -time_bucket.end if descending else time_bucket.start)
        next_bucket = narrow[max_narrow]
        return wide + narrow[:max_narrow], next_bucket.end if descending else next_bucket.start


FULL_ROWS = 50_000
FULL_BYTES = 30_000_000
MIN_BURST_FILL = 0.1
"""Min filled part of a bucket before its rate can narrow the next one."""
MIN_FILL = 0.25
"""Min filled part of a bucket. Below it, the next bucket is wider."""


class BucketWidths:
    """Counts what was written to a partition's present bucket, and chooses the width of the next one."""

    __slots__ = ("_began", "_end", "_fill", "_full_rows", "ttl_class", "width_index")

    def __init__(self, ttl_class: int, *, full_rows: int = FULL_ROWS) -> None:
        self.ttl_class = ttl_class
        self._full_rows = full_rows
        self.width_index = HOME_WIDTH
        self._fill = 0.0
        self._began = 0
        self._end = 0

    def add(self, rows: int, size: int) -> None:
        self._fill += max(rows / self._full_rows, size / FULL_BYTES)

    def width_at(self, now: int) -> int:
        """Returns the width index for ids made now. Narrows in the middle of a bucket; widens only at its end."""
        if self._began == 0:
            self._begin_bucket(now)
        elif now >= self._end:
            self._begin_next(now)
        elif self._fill >= MIN_BURST_FILL:
            rate = self._fill / max(now - self._began, TICKS_PER_SECOND)
            if self._fill >= 1 or self._fill + rate * (self._end - now) > 1:
                self._narrow(rate, now)
        return self.width_index

    def _begin_bucket(self, now: int) -> None:
        self._began = now
        self._end = bucket_of(now, self.ttl_class, self.width_index).end
        self._fill = 0.0

    def _begin_next(self, now: int) -> None:
        rate = self._fill / (now - self._began)
        while self.width_index != HOME_WIDTH:
            next_width = find_wider_width(self.ttl_class, self.width_index)
            if rate * width(self.ttl_class, next_width) >= MIN_FILL:
                break
            self.width_index = next_width
        self._begin_bucket(now)

    def _narrow(self, rate: float, now: int) -> None:
        width_index = find_narrower_width(self.ttl_class, self.width_index)
        while rate * width(self.ttl_class, width_index) > 1 and width_index != NARROWEST:
            width_index = find_narrower_width(self.ttl_class, width_index)
        if width_index != self.width_index:
            self.width_index = width_index
            self._begin_bucket(now)
