"""How many messages lie in a range: listed where they are few, else counted by Cassandra, bucket by bucket.

A bucket holds some ten thousands of messages by design (see :class:`..bucketing.BucketWidths`). Of many
narrow buckets only some are counted; the rest are assumed to be alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from queuey import ids
from queuey.ids import LOW_MIN, Position
from queuey.messages import Slice
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.driver import Driver, Request, TooManyDead
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import BucketSource, Extent

LISTED, ROUGHLY_LISTED = 2000, 100
"""Up to so many messages are listed; their number is exact."""
COUNTED, ROUGHLY_COUNTED = 8, 2
"""Narrow buckets that are counted."""
END: Position = (ids.TICKS_MAX + 1, LOW_MIN)
"""Above every id."""


class Tally(NamedTuple):
    """What is known of a range."""

    size: int
    exact: bool
    oldest: Position | None
    newest: Position | None


NOTHING = Tally(0, exact=True, oldest=None, newest=None)


def tally(
    driver: Driver,
    key: tuple[int, int],
    extents: tuple[Extent, Extent],
    consistency: str,
    *,
    now: int,
    rough: bool = False,
) -> Tally:
    """Counts what lies in an extent.

    Args:
        driver: The way to Cassandra.
        key: qid and partition.
        extents: What is to be counted, as known from reading upwards and from reading downwards.
        consistency: The queue's read level.
        now: Ticks; what has expired by then is not listed.
        rough: As little as possible is listed and counted.

    Raises:
        StoreUnavailable: As the driver.
    """
    up, down = extents
    wanted = Slice(key[1], up.lower, up.upper, limit=(ROUGHLY_LISTED if rough else LISTED) + 1, bodies=False)
    reader = reading.ascend(wanted, up, now, first=math.inf, most=math.inf)
    [first] = reading.run(driver, [reader], [key], consistency)
    found = [message.position for message in first.messages]
    if not first.more and up.complete:
        return Tally(len(found), exact=True, oldest=found[0], newest=found[-1]) if found else NOTHING
    wanted = Slice(key[1], down.lower, down.upper, limit=1, descending=True, bodies=False)
    reader = reading.descend(wanted, down, now, first=math.inf, most=math.inf)
    [last] = reading.run(driver, [reader], [key], consistency)
    newest = last.messages[0].position if last.messages else None
    oldest = found[0] if found else newest
    sources = [*{*up.sources, *down.sources}]
    most = ROUGHLY_COUNTED if rough else COUNTED
    narrow, wide = _count(driver, key, sources, (up.lower, down.upper), consistency, most=most)
    narrow += _between(narrow, up, down)
    return Tally(max(len(found), narrow + wide), exact=False, oldest=oldest, newest=newest)


def _between(size: int, up: Extent, down: Extent) -> int:
    """Estimates the count in narrow buckets between two reads that do not meet, by the density that the reads found.

    Args:
        size: How much lies in the narrow buckets that they reach.
        up: What the read from the lower end reaches.
        down: The same from the upper end.
    """
    starts = [source.time_bucket.start for source in up.sources if not source.time_bucket.wide]
    ends = [source.time_bucket.end for source in down.sources if not source.time_bucket.wide]
    gap = down.lower[0] - up.upper[0]
    if gap <= 0 or not starts or not ends:
        return 0
    reached = max(0, up.upper[0] - min(starts)) + max(0, max(ends) - down.lower[0])
    return size * gap // reached if reached else 0


def _count(
    driver: Driver,
    key: tuple[int, int],
    sources: Sequence[BucketSource],
    bounds: tuple[Position, Position],
    consistency: str,
    *,
    most: int,
) -> tuple[int, int]:
    """Returns how many messages the narrow buckets hold, of which some are counted, and how many the wide ones."""
    narrow = sorted(
        (source for source in sources if not source.time_bucket.wide), key=lambda source: source.time_bucket.start
    )
    left_out = max(0, len(narrow) - most)
    chosen = (
        narrow if not left_out else [narrow[len(narrow) * (2 * number + 1) // (2 * most)] for number in range(most)]
    )
    wide = [source for source in sources if source.time_bucket.wide]
    counts: list[Request] = []
    counted = []
    for time_bucket, lowest in [*chosen, *wide]:
        low, high = max(bounds[0], lowest), min(bounds[1], (time_bucket.end, LOW_MIN))
        if low < high:
            ends = message_codec.uuid_of(low), message_codec.uuid_of(ids.preceding(high))
            values = (*key, time_bucket.bucket, *ends)
            counts.append(Request(message_codec.COUNT[time_bucket.kind], values, consistency))
            counted.append(time_bucket)
    try:
        answers = [int(answer[0][0]) for answer in driver.gather(counts)]
    except TooManyDead:  # An estimate is not worth more than what was listed.
        return 0, 0
    of_narrow = [number for time_bucket, number in zip(counted, answers, strict=True) if not time_bucket.wide]
    more = left_out * sum(of_narrow) // len(of_narrow) if of_narrow else 0
    return sum(of_narrow) + more, sum(answers) - sum(of_narrow)
