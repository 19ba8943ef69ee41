"""Where a message lies: retention classes, bucket levels, and which buckets a range of ids is to be looked for in.

A **class** is a table; the smallest one that covers a message's lifetime holds it, so that whole files expire at once.
A **bucket** is a Cassandra partition of one queue partition: a level and a number. Level 0 is as wide as the class, so
a queue with few messages has its live ones in the present bucket and the one before. Levels 1 to 4 are narrow, for
partitions that get many messages. Levels 5 to 7 hold messages written under given ids (``put``, bulk loads): all other
buckets only ever grow at ids that no reader's horizon has passed.

A **bucket** is class and bucket. Level 0 of a queue's own class is looked at without being told; every other bucket is
recorded in ``bucket index`` before a message is written to it.
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
"""What the tables are called: ``messages_6h`` and so on."""

HOME = 0
NARROWEST = 4
PUT = 5
LOAD = 6
DENSE_LOAD = 7
LEVELS = range(8)
_SECONDS = (0, 6 * HOUR, 15 * 60, 60, 5, 0, 15 * 60, 5)
"""Widths of the levels; 0: that of the class."""


class Bucket(NamedTuple):
    """A Cassandra partition of one queue partition."""

    kind: int
    """The class, 0 to 3."""
    bucket: int

    @property
    def level(self) -> int:
        """Its level, 0 to 7."""
        return self.bucket & 7

    @property
    def minted(self) -> bool:
        """Whether its rows were written under ids that were new then."""
        return self.bucket & 7 < PUT

    @property
    def wide(self) -> bool:
        """Whether it is as wide as its class."""
        return not _SECONDS[self.bucket & 7]

    @property
    def start(self) -> int:
        """The first tick of its ids."""
        return (self.bucket >> 3) * width(self.kind, self.bucket & 7)

    @property
    def end(self) -> int:
        """The tick after the last of its ids."""
        return self.start + width(self.kind, self.bucket & 7)


def class_of(seconds: float) -> int:
    """Returns the smallest class for messages that live so long, the largest if none is large enough."""
    for number, longest in enumerate(CLASSES):
        if seconds <= longest:
            return number
    return len(CLASSES) - 1


def width(kind: int, level: int) -> int:
    """Returns the width of a bucket in ticks."""
    return (_SECONDS[level] or CLASSES[kind]) * TICKS_PER_SECOND


def bucket_of(ticks: int, kind: int, level: int) -> Bucket:
    """Returns the bucket of an id time at a level."""
    return Bucket(kind, (ticks // width(kind, level)) << 3 | level)


def narrower(kind: int, level: int) -> int:
    """Returns the next narrower level, or the same if there is none."""
    if level >= NARROWEST:
        return level
    following = level + 1
    return following if width(kind, following) < width(kind, level) else following + 1


def wider(kind: int, level: int) -> int:
    """Returns the next wider level, or the same if there is none.

    Level 1 is as wide as the class of 6 h itself, so that class has no use for it.
    """
    previous = max(HOME, level - 1)
    return previous if width(kind, previous) < width(kind, HOME) else HOME


def own_buckets(kind: int, lower: int, upper: int) -> list[Bucket]:
    """Returns the buckets of level 0 of a class that hold ids in ``[lower, upper)`` (ticks), in time order."""
    size = width(kind, HOME)
    return [
        Bucket(kind, index << 3 | HOME) for index in range(max(0, lower) // size, (max(lower, upper - 1)) // size + 1)
    ]


def longest_ttl(now: int) -> int:
    """Returns the most seconds that Cassandra lets anything written now (ticks) live.

    Nothing may expire after 2038-01-19 unless ``storage_compatibility_mode`` is ``NONE``, which cannot be asked for.
    """
    return max(1, _LAST_SECOND - (now - EPOCH_TICKS) // TICKS_PER_SECOND)


def is_recorded(place: Bucket, home: int) -> bool:
    """Tells whether a bucket has to be in ``bucket index`` before it is written to."""
    return place.kind != home or place.level != HOME


class Recorded:
    """Places by start, so that a few of very many are found without a look at the others.

    Args:
        buckets: In any order.
    """

    __slots__ = ("_narrow", "_wide", "places")

    def __init__(self, places: Iterable[Bucket]) -> None:
        self.places = tuple(places)
        self._wide = [place for place in self.places if place.wide]
        # Of one class and level they do not overlap, so their ends ascend as their starts do.
        self._narrow: list[tuple[int, list[int], list[Bucket]]] = []
        narrow = sorted((place for place in self.places if not place.wide), key=lambda place: (place.kind, place.start))
        for kind, level in sorted({(place.kind, place.level) for place in narrow}):
            row = [place for place in narrow if (place.kind, place.level) == (kind, level)]
            self._narrow.append((width(kind, level), [place.start for place in row], row))

    def overlapping(self, lower: int, upper: int) -> list[Bucket]:
        """Returns those that may hold ids in ``[lower, upper)`` (ticks), by start, wider ones first."""
        found = [place for place in self._wide if place.start < upper and place.end > lower]
        for size, starts, row in self._narrow:
            found += row[bisect_right(starts, lower - size) : bisect_left(starts, upper)]
        found.sort(key=lambda place: (place.start, -place.end))
        return found

    def nearest(
        self, lower: int, upper: int, most: int, *, alive: Sequence[int], descending: bool
    ) -> tuple[list[Bucket], int | None]:
        """Returns the wide ones that overlap ``[lower, upper)`` and of the narrow ones those nearest to one end.

        Args:
            lower: The first tick of interest.
            upper: The tick after the last.
            most: Narrow ones to return; more than can overlap in one tick.
            alive: By class the tick below which no minted bucket holds anything; those are left out.
            descending: Nearest to the upper end.

        Returns:
            The buckets in any order, and how far they are complete: the tick at which the first one that was left out
            starts (descending: ends); None: none was left out.
        """
        wide = [place for place in self._wide if place.start < upper and place.end > lower]
        found: list[Bucket] = []
        for size, starts, row in self._narrow:
            lowest = max(lower, alive[row[0].kind]) if row[0].minted else lower
            low, high = bisect_right(starts, lowest - size), bisect_left(starts, upper)
            if high - low > most:
                low, high = (high - most - 1, high) if descending else (low, low + most + 1)
            found += row[low:high]
        if len(found) <= most:
            return wide + found, None
        found.sort(key=lambda place: -place.end if descending else place.start)
        left = found[most]
        return wide + found[:most], left.end if descending else left.start
