"""Instants of a schedule: pure functions of its timetable.

A cron expression refers to the wall clock of its time zone. At a change to or from daylight saving time:

* If the hour field is ``*`` (or ``*/2``, ...), real hours count: ``*/15 * * * *`` fires every 15 minutes at all times.
* Otherwise each time fires once a day. Times in a skipped hour fire once, at the moment of the change. Times in a
  repeated hour fire in its first occurrence.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import count
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from queuey.api.schedules import MAX_EXPRESSION
from queuey.model.errors import TimeZoneUnknown

_CRON_PATTERN = re.compile(r"[0-9A-Za-z*,/#\-]+(?: +[0-9A-Za-z*,/#\-]+){4}")
_ZONE_PATTERN = re.compile(r"[A-Z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+)*")
"""Zone names in the time zone database begin with a capital letter; ``localtime`` and copies of it do not."""
_MAX_ZONE_LENGTH = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_SEARCH_YEARS = 50
"""Number of years to search for the next instant; an expression without one counts as never."""


class Timetable(msgspec.Struct, frozen=True, array_like=True):
    """A cron expression or an interval.

    Attributes:
        cron: Minute, hour, day of the month, month, day of the week; blank for an interval.
        zone: Time zone of the cron expression.
        every: Seconds of the interval; 0 for a cron expression.
        anchor: Instant from which intervals are counted, in seconds since 1970.
    """

    cron: str = ""
    zone: str = "UTC"
    every: int = 0
    anchor: int = 0


def check_zone(name: str) -> None:
    try:
        if len(name) > _MAX_ZONE_LENGTH or _ZONE_PATTERN.fullmatch(name) is None:
            raise ValueError(name)  # noqa: TRY301 - one text for all
        _load_zone(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f'"{name[:_MAX_ZONE_LENGTH]}" is not a time zone, such as Europe/Berlin') from error


def check_cron(expression: str, zone: str, now: float) -> None:
    """Raises ``ValueError`` if a cron expression is not valid, or has no instant within ``_MAX_SEARCH_YEARS`` years.

    Raises ``TimeZoneUnknown``, which is not a ``ValueError``, for an unknown zone.
    """
    shown = expression[:MAX_EXPRESSION]
    if len(expression) > MAX_EXPRESSION or _CRON_PATTERN.fullmatch(expression) is None:
        raise ValueError(f'"{shown}" is not a cron expression: minute, hour, day, month, day of the week')
    try:
        if find_next_instant(Timetable(expression, zone), now) is not None:
            return
    except (CronSimError, AssertionError) as error:
        raise ValueError(f'"{shown}" is not a cron expression: {error}') from error
    raise ValueError(f'"{shown}" does not occur within {_MAX_SEARCH_YEARS} years')


def find_next_instant(timetable: Timetable, after: float) -> int | None:
    return next(iterate_instants(timetable, after), None)


def iterate_instants(timetable: Timetable, after: float) -> Iterator[int]:
    if timetable.every:
        first = timetable.anchor + (int(after - timetable.anchor) // timetable.every + 1) * timetable.every
        yield from count(first, timetable.every)
        return
    last = int(after)
    for instant in _moments(timetable, last):
        if instant > last:
            last = instant
            yield instant


def _moments(timetable: Timetable, begin: int) -> Iterator[int]:
    zone = _get_zone(timetable.zone)
    counts_real_hours = timetable.cron.split()[1].startswith("*")
    wall = (_EPOCH + timedelta(seconds=begin)).astimezone(zone)
    # In the first of two equal hours, the second one still has earlier wall times. Start before those.
    until_shown_again = timedelta(seconds=_to_seconds(wall.replace(fold=1)) - begin)
    repeated: deque[int] = deque()
    for time in CronSim(timetable.cron, wall.replace(tzinfo=None) - until_shown_again):
        first, second = _find_both_moments(time, zone)
        if counts_real_hours:
            if first > second:
                continue
            while repeated and repeated[0] < first:
                yield repeated.popleft()
            if first < second:
                repeated.append(second)
        while first > second:
            time += timedelta(minutes=1)  # noqa: PLW2901 - to the end of the skipped hour
            first, second = _find_both_moments(time, zone)
        yield first
    yield from repeated


def _find_both_moments(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """Returns both moments at which the wall clock shows a time. The first is later if the time is skipped."""
    return _to_seconds(wall.replace(tzinfo=zone)), _to_seconds(wall.replace(tzinfo=zone, fold=1))


def _to_seconds(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds())


def _get_zone(name: str) -> ZoneInfo:
    try:
        return _load_zone(name)
    except KeyError as error:
        raise TimeZoneUnknown(name) from error


_load_zone = lru_cache(maxsize=256)(ZoneInfo)
