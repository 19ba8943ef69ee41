"""How many messages a range holds, and how many bytes a partition: read where they are few, else counted by Cassandra.

A bucket holds some ten thousands of messages by design (see :class:`..bucketing.BucketWidths`). Of many
narrow buckets only some are counted; the rest are assumed to be alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

from queuey import ids
from queuey.ids import LOW_MIN, Position
from queuey.messages import Measure, Slice
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import Bucket
from queuey.storage.cassandra.driver import Driver, Encoded, Request, Rows, TooManyDead
from queuey.storage.cassandra.read import reading
from queuey.storage.cassandra.read.reading import BucketSource, Extent, Probe

LISTED, ROUGHLY_LISTED = 2000, 100
"""Max messages that are listed; up to that their number is exact."""
COUNTED, ROUGHLY_COUNTED = 8, 2
"""Narrow buckets that are counted."""
END: Position = (ids.TICKS_MAX + 1, LOW_MIN)
"""Above every id."""

FIRST_ROWS = 8
"""Max rows read of a bucket at first, to measure it; bodies may be large."""
MORE_ROWS, MORE_BYTES = 200, 128 << 10
"""Max rows read beyond that, and about the max bytes of them."""
LAST_ROWS = 50
"""Max rows read at the upper end of a bucket that has more."""
MAX_BUCKETS = 16
"""Max buckets of a partition that is measured this way."""


class Tally(NamedTuple):
    size: int
    exact: bool
    oldest: Position | None
    newest: Position | None


NOTHING = Tally(0, exact=True, oldest=None, newest=None)


class Rest(NamedTuple):
    """The range of a bucket that is still to be counted."""

    time_bucket: Bucket
    lower: Position
    upper: Position

    @classmethod
    def of(cls, source: BucketSource, lower: Position, upper: Position) -> Self | None:
        """Returns the part of a range in which a bucket may hold something; None: it holds nothing there."""
        low, high = max(lower, source.lowest), min(upper, (source.time_bucket.end, LOW_MIN))
        return cls(source.time_bucket, low, high) if low < high else None


def _counting(key: tuple[int, int], part: Rest, consistency: str) -> Request:
    ends = message_codec.uuid_of(part.lower), message_codec.uuid_of(ids.preceding(part.upper))
    values = (*key, part.time_bucket.bucket, *ends)
    return Request(message_codec.COUNT[part.time_bucket.ttl_class], values, consistency)


async def tally(
    driver: Driver,
    key: tuple[int, int],
    extents: tuple[Extent, Extent],
    consistency: str,
    *,
    now: int,
    rough: bool = False,
) -> Tally:
    """Counts what lies in an extent."""
    up, down = extents
    wanted = Slice(key[1], up.lower, up.upper, limit=(ROUGHLY_LISTED if rough else LISTED) + 1, bodies=False)
    reader = reading.rounds(wanted, up, now, first=math.inf, most=math.inf)
    [first] = await reading.run(driver, [reader], [key], consistency)
    found = [message.position for message in first.messages]
    if not first.more and up.complete:
        return Tally(len(found), exact=True, oldest=found[0], newest=found[-1]) if found else NOTHING
    wanted = Slice(key[1], down.lower, down.upper, limit=1, descending=True, bodies=False)
    reader = reading.rounds(wanted, down, now, first=math.inf, most=math.inf)
    [last] = await reading.run(driver, [reader], [key], consistency)
    newest = last.messages[0].position if last.messages else None
    oldest = found[0] if found else newest
    sources = [*{*up.sources, *down.sources}]
    most = ROUGHLY_COUNTED if rough else COUNTED
    narrow, wide = await _count(driver, key, sources, (up.lower, down.upper), consistency, most=most)
    narrow += _between(narrow, up, down)
    return Tally(max(len(found), narrow + wide), exact=False, oldest=oldest, newest=newest)


def _between(size: int, up: Extent, down: Extent) -> int:
    """Estimates the count in narrow buckets between two reads that do not meet, by the density that the reads found."""
    starts = [source.time_bucket.start for source in up.sources if not source.time_bucket.wide]
    ends = [source.time_bucket.end for source in down.sources if not source.time_bucket.wide]
    gap = down.lower[0] - up.upper[0]
    if gap <= 0 or not starts or not ends:
        return 0
    reached = max(0, up.upper[0] - min(starts)) + max(0, max(ends) - down.lower[0])
    return size * gap // reached if reached else 0


async def _count(
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
    counted = [rest for source in [*chosen, *wide] if (rest := Rest.of(source, *bounds)) is not None]
    if not counted:
        return 0, 0
    try:
        found = await driver.ask_all([_counting(key, part, consistency) for part in counted])
    except TooManyDead:  # An estimate is not worth more than what was listed.
        return 0, 0
    answers = [int(answer[0][0]) for answer in found]
    of_narrow = [number for part, number in zip(counted, answers, strict=True) if not part.time_bucket.wide]
    more = left_out * sum(of_narrow) // len(of_narrow) if of_narrow else 0
    return sum(of_narrow) + more, sum(answers) - sum(of_narrow)


class Measurement:
    """Measures one partition: the bytes of bodies as well.

    Of each bucket a few messages are read. Where that is all there are, they are counted; else Cassandra counts the
    rest, and their bytes are estimated by those that were read at both ends.
    """

    def __init__(self, driver: Driver, key: tuple[int, int], consistency: str, now: int) -> None:
        self._driver = driver
        self._key = key
        self._consistency = consistency
        self._now = now
        self._sizes: dict[Position, int] = {}
        self._samples: dict[Bucket, list[int]] = {}

    async def measure(self, extent: Extent) -> Measure | None:
        # If a message exists in both buckets, the one of chosen ids is used: it comes first.
        left = [
            rest
            for source in sorted(extent.sources, key=lambda source: source.time_bucket.new_ids_only)
            if (rest := Rest.of(source, extent.lower, extent.upper)) is not None
        ]
        limits = [FIRST_ROWS] * len(left)
        for _ in range(2):
            if left:
                answers = await self._driver.ask_all([self._read(*one) for one in zip(left, limits, strict=True)])
                left = [
                    rest
                    for part, limit, answer in zip(left, limits, answers, strict=True)
                    if (rest := self._taken(part, limit, answer)) is not None
                ]
                limits = [self._more(part) for part in left]
        if not left:
            return self._result(len(self._sizes), sum(self._sizes.values()), self._sizes, exact=True)
        counts = [_counting(self._key, part, self._consistency) for part in left]
        ends = [self._read(part, LAST_ROWS, descending=True) for part in left]
        answers = await self._driver.ask_all([*counts, *ends])
        count, size, last = len(self._sizes), sum(self._sizes.values()), dict(self._sizes)
        for part, counted, answer in zip(left, answers, answers[len(left) :], strict=False):
            alive = self._alive(answer)
            last |= alive
            sample = [*self._samples[part.time_bucket], *alive.values()]
            count += counted[0][0]
            size += counted[0][0] * sum(sample) // max(1, len(sample))
        return self._result(count, size, last, exact=False)

    def _result(self, count: int, size: int, seen: dict[Position, int], *, exact: bool) -> Measure | None:
        if not seen:
            return None
        return Measure(self._key[1], count, size, exact, min(seen), max(seen))

    def _read(self, part: Rest, limit: int, *, descending: bool = False) -> Encoded:
        probe = Probe(part.time_bucket, part.lower, part.upper, limit, descending)
        return reading.query(self._key, probe, self._consistency)

    def _taken(self, part: Rest, limit: int, answer: Rows) -> Rest | None:
        alive = self._alive(answer)
        self._sizes = alive | self._sizes
        self._samples.setdefault(part.time_bucket, []).extend(alive.values())
        if len(answer) < limit:
            return None
        rest = part._replace(lower=ids.following(message_codec.position_of(answer[-1][0])))
        return rest if rest.lower < rest.upper else None

    def _alive(self, answer: Rows) -> dict[Position, int]:
        return {
            message_codec.position_of(data): len(body)
            for data, body, expires, _ in answer
            if expires is not None and body is not None and expires > self._now
        }

    def _more(self, part: Rest) -> int:
        sample = self._samples[part.time_bucket]
        average = max(1, sum(sample) // max(1, len(sample)))
        return max(1, min(MORE_ROWS, MORE_BYTES // average))
