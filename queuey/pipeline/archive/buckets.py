"""Buckets: the time ranges into which an archive is divided.

A bucket holds the messages whose ids have times in ``[start, start + width)``; the first bucket also all before 1970.
Buckets start at multiples of their width since 1970, so every run and every machine divides time in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime

import msgspec

from queuey.model.ids import EPOCH_TICKS, FIRST, LOW_MIN, TICKS_PER_SECOND, Position

_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_NAME_FORMAT = "%Y%m%dT%H%M%SZ"


class ArchiveBucket(msgspec.Struct, frozen=True, order=True):
    """One bucket.

    Attributes:
        start: Seconds since 1970, a multiple of ``seconds``.
        seconds: Width of the bucket.
    """

    start: int
    seconds: int

    def __post_init__(self) -> None:
        if self.seconds < 1 or self.start < 0 or self.start % self.seconds:
            raise ValueError(f"no bucket of {self.seconds} s begins {self.start} s after 1970")

    @property
    def name(self) -> str:
        """The start in UTC: ``20261120T140000Z``. Names sort as their buckets do."""
        return datetime.fromtimestamp(self.start, UTC).strftime(_NAME_FORMAT)

    @property
    def lower(self) -> Position:
        return EPOCH_TICKS + self.start * TICKS_PER_SECOND, LOW_MIN

    @property
    def upper(self) -> Position:
        return EPOCH_TICKS + (self.start + self.seconds) * TICKS_PER_SECOND, LOW_MIN

    @property
    def end(self) -> int:
        return self.start + self.seconds


def find_bucket(ticks: int, seconds: int) -> ArchiveBucket:
    since = max(0, ticks - EPOCH_TICKS) // TICKS_PER_SECOND
    return ArchiveBucket(since - since % seconds, seconds)


def parse_bucket(name: str, seconds: int) -> ArchiveBucket:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not the name of a bucket")
    moment = datetime.strptime(name, _NAME_FORMAT).replace(tzinfo=UTC)
    return ArchiveBucket(int(moment.timestamp()), seconds)


def is_name(name: str, seconds: int) -> bool:
    try:
        parse_bucket(name, seconds)
    except ValueError:
        return False
    return True


def find_closed_end(horizon: int, seconds: int) -> Position:
    """Returns the end of the closed buckets: no producer can add a message below it.

    Args:
        horizon: All messages with lower times have been stored, in ticks.
        seconds: Width of the buckets.
    """
    return find_bucket(horizon, seconds).lower


def find_gaps(end: Position, done: Collection[ArchiveBucket]) -> Iterator[tuple[Position, Position]]:
    """Yields the ranges of positions below ``end`` that no done bucket covers, ascending.

    The bucket at the start of 1970 also covers everything before it.
    """
    lower = FIRST
    for bucket in sorted(done):
        if bucket.lower >= end:
            break
        if lower < bucket.lower and bucket.start > 0:
            yield lower, bucket.lower
        lower = bucket.upper
    if lower < end:
        yield lower, end
