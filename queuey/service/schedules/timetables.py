"""Instants of a schedule: pure functions of its timetable.

A cron expression is about the wall clock of its time zone. When that clock is changed:

* An hour of ``*`` (or ``*/2``, ...) counts real hours: ``*/15 * * * *`` comes every 15 minutes all the time.
* Any other hour comes once. A time in the hour that is left out comes at the moment of the change; several such times
  come as one. A time in the hour that is there twice comes the first time.
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
from queuey.errors import TimeZoneUnknown

_ALLOWED = re.compile(r"[0-9A-Za-z*,/#\-]+(?: +[0-9A-Za-z*,/#\-]+){4}")
_ZONE = re.compile(r"[A-Z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+)*")
"""Names of the database of time zones begin with a capital; ``localtime`` and copies of it do not."""
_MAX_ZONE = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS = 50
"""Max years until a cron expression comes; one that takes longer counts as never."""


class Timetable(msgspec.Struct, frozen=True, array_like=True):
    """Instants of a schedule: a cron expression or an interval.

    Attributes:
        cron: Minute, hour, day of the month, month, day of the week; blank: an interval.
        zone: Time zone of the cron expression.
        every: Seconds of the interval; 0: a cron expression.
        anchor: An instant from which intervals are counted (seconds since 1970).
    """

    cron: str = ""
    zone: str = "UTC"
    every: int = 0
    anchor: int = 0


def check_zone(name: str) -> None:
    """Refuses a time zone that this machine does not know (``ValueError``)."""
    try:
        if len(name) > _MAX_ZONE or _ZONE.fullmatch(name) is None:
            raise ValueError(name)  # noqa: TRY301 - one text for all
        _load_zone(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(f'"{name[:_MAX_ZONE]}" is not a time zone, such as Europe/Berlin') from error


def check_cron(expression: str, zone: str, now: float) -> None:
    """Refuses a cron expression that does not have five fields, or never comes (``ValueError``)."""
    shown = expression[:MAX_EXPRESSION]
    if len(expression) > MAX_EXPRESSION or _ALLOWED.fullmatch(expression) is None:
        raise ValueError(f'"{shown}" is not a cron expression: minute, hour, day, month, day of the week')
    try:
        if next_instant(Timetable(expression, zone), now) is not None:
            return
    except (CronSimError, AssertionError) as error:
        raise ValueError(f'"{shown}" is not a cron expression: {error}') from error
    raise ValueError(f'"{shown}" does not come within {_YEARS} years')


def next_instant(timetable: Timetable, after: float) -> int | None:
    """Returns the first instant above another one (seconds since 1970), or None."""
    return next(instants(timetable, after), None)


def instants(timetable: Timetable, after: float) -> Iterator[int]:
    """Yields the instants above another one (seconds since 1970), in order, mostly without end."""
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
    """Yields the moments of the wall clock's times in order; some may be equal, or before the beginning."""
    zone = _zone(timetable.zone)
    counts_real_hours = timetable.cron.split()[1].startswith("*")
    wall = (_EPOCH + timedelta(seconds=begin)).astimezone(zone)
    # In the first of two equal hours, the second one is still to come with times before the present one.
    until_shown_again = timedelta(seconds=_seconds(wall.replace(fold=1)) - begin)
    repeated: deque[int] = deque()
    for time in CronSim(timetable.cron, wall.replace(tzinfo=None) - until_shown_again):
        first, second = _first_and_second(time, zone)
        if counts_real_hours:
            if first > second:
                continue
            while repeated and repeated[0] < first:
                yield repeated.popleft()
            if first < second:
                repeated.append(second)
        while first > second:
            time += timedelta(minutes=1)  # noqa: PLW2901 - to the end of what the clock leaves out
            first, second = _first_and_second(time, zone)
        yield first
    yield from repeated


def _first_and_second(wall: datetime, zone: ZoneInfo) -> tuple[int, int]:
    """Returns when a wall clock shows a time. The first moment is after the second if the clock leaves it out."""
    return _seconds(wall.replace(tzinfo=zone)), _seconds(wall.replace(tzinfo=zone, fold=1))


def _seconds(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds())


def _zone(name: str) -> ZoneInfo:
    try:
        return _load_zone(name)
    except KeyError as error:
        raise TimeZoneUnknown(name) from error


_load_zone = lru_cache(maxsize=256)(ZoneInfo)
