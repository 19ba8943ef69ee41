"""Compares cron expressions with a walk over minutes, around clock changes in all zones of the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.service.schedules.timetables import Timetable, iterate_instants

MINUTE, HOUR, DAY = 60, 3600, 86_400
BEGIN, END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2020, 2038))
Matches = Callable[[datetime], bool]


def last_day(wall: datetime) -> datetime:
    return wall.replace(day=1) + timedelta(days=31) - timedelta(days=(wall.replace(day=1) + timedelta(days=31)).day)


def last_workday(wall: datetime) -> datetime:
    last = last_day(wall)
    return last - timedelta(days=max(0, last.weekday() - 4))


MINUTES: dict[str, Matches] = {
    "*": lambda _: True,
    "0": lambda wall: wall.minute == 0,
    "30": lambda wall: wall.minute == 30,
    "7,45": lambda wall: wall.minute in {7, 45},
    "*/20": lambda wall: wall.minute % 20 == 0,
    "10-50/15": lambda wall: wall.minute in {10, 25, 40},
    "58-59": lambda wall: wall.minute >= 58,
}
HOURS: dict[str, Matches] = {
    "*": lambda _: True,
    "*/2": lambda wall: wall.hour % 2 == 0,
    "*/3": lambda wall: wall.hour % 3 == 0,
    "0": lambda wall: wall.hour == 0,
    "2": lambda wall: wall.hour == 2,
    "1,23": lambda wall: wall.hour in {1, 23},
    "0-3": lambda wall: wall.hour <= 3,
    "0-23": lambda _: True,
    "0-23/2": lambda wall: wall.hour % 2 == 0,
}
DAYS: dict[str, Matches] = {
    "*": lambda _: True,
    "*/2": lambda wall: wall.day % 2 == 1,
    "L": lambda wall: wall.day == last_day(wall).day,
    "LW": lambda wall: wall.day == last_workday(wall).day,
    "1-7,25-31": lambda wall: wall.day <= 7 or wall.day >= 25,
    "29": lambda wall: wall.day == 29,
}
MONTHS: dict[str, Matches] = {
    "*": lambda _: True,
    "MAR,10": lambda wall: wall.month in {3, 10},
    "4-9": lambda wall: 4 <= wall.month <= 9,
    "*/2": lambda wall: wall.month % 2 == 1,
}
WEEKDAYS: dict[str, Matches] = {
    "*": lambda _: True,
    "SUN": lambda wall: wall.weekday() == 6,
    "7": lambda wall: wall.weekday() == 6,
    "1-5": lambda wall: wall.weekday() <= 4,
    "0L": lambda wall: wall.weekday() == 6 and wall.day + 7 > last_day(wall).day,
    "FRI#5": lambda wall: wall.weekday() == 4 and wall.day > 28,
    "SUN#1": lambda wall: wall.weekday() == 6 and wall.day <= 7,
}
Fields = tuple[str, str, str, str, str]
DAILY: list[Fields] = [(minute, hour, "*", "*", "*") for minute, hour in product(MINUTES, HOURS)]
ANY: list[Fields] = list(product(MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS))


class Change(NamedTuple):
    """A change of a zone's clock.

    Attributes:
        instant: The instant of the change, in seconds since 1970.
        before, after: Offset from UTC, in seconds.
    """

    instant: int
    before: int
    after: int


def offset(zone: ZoneInfo, instant: int) -> int:
    return int(datetime.fromtimestamp(instant, zone).utcoffset().total_seconds())  # type: ignore[union-attr]


def changes(zone: ZoneInfo, begin: int = BEGIN, end: int = END) -> Iterator[Change]:
    """Returns all changes of a zone's clock within some time; of two within a day one may be missed."""
    previous = offset(zone, begin)
    for day in range(begin + DAY, end, DAY):
        if (present := offset(zone, day)) != previous:
            low, high = day - DAY, day
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(zone, middle) == previous else (low, middle)
            yield Change(high, previous, present)
            previous = present


def matches(fields: Fields, wall: datetime) -> bool:
    """Returns whether a local time matches; of day and weekday one is enough if neither begins with ``*``."""
    minute, hour, day, month, weekday = fields
    if not (MINUTES[minute](wall) and HOURS[hour](wall) and MONTHS[month](wall)):
        return False
    both = day.startswith("*") or weekday.startswith("*")
    return (all if both else any)((DAYS[day](wall), WEEKDAYS[weekday](wall)))


def minutes_around(zone: ZoneInfo, change: Change) -> Iterator[tuple[int, datetime, list[datetime]]]:
    """Walks over the minutes around a change: each instant, its local time, and local times skipped just before."""
    room = abs(change.after - change.before) + 4 * HOUR
    begin = change.instant - change.instant % MINUTE - room
    last = datetime.fromtimestamp(begin, zone).replace(tzinfo=None, fold=0)
    for instant in range(begin + MINUTE, change.instant + room, MINUTE):
        wall = datetime.fromtimestamp(instant, zone)
        shown = wall.replace(tzinfo=None)
        skipped = [last + timedelta(minutes=each) for each in range(1, int((shown - last).total_seconds()) // MINUTE)]
        yield instant, shown, skipped
        last = shown.replace(fold=0)


Walk = list[tuple[int, datetime, list[datetime]]]


def compare(name: str, change: Change, walk: Walk, fields: Fields) -> None:
    """Compares the instants of an expression, from several beginnings, with those of the walk.

    With any hour, repeated local times count twice and skipped ones not at all; otherwise both count once.
    """
    if fields[1].startswith("*"):
        expected = [instant for instant, shown, _ in walk if matches(fields, shown)]
    else:
        expected = [
            instant
            for instant, shown, skipped in walk
            if (shown.fold == 0 and matches(fields, shown)) or any(matches(fields, each) for each in skipped)
        ]
    cron = " ".join(fields)
    # The start of the walk does not matter: before the change, or within the repeated hour.
    for begin in (walk[0][0] - 1, change.instant - 25 * MINUTE, change.instant + 25 * MINUTE):
        computed = takewhile(lambda instant: instant <= walk[-1][0], iterate_instants(Timetable(cron, name), begin))
        assert list(computed) == [instant for instant in expected if instant > begin], (name, change, cron, begin)


@pytest.mark.parametrize(
    "name", ["Australia/Lord_Howe", "Pacific/Chatham", "Africa/Cairo", "Asia/Beirut", "America/Santiago"]
)
def test_clocks_that_change_by_half_an_hour_or_at_midnight(name: str) -> None:
    """Every form of minutes and hours is right around both changes of a year, by half an hour or at midnight."""
    zone = ZoneInfo(name)
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    year = list(changes(zone, begin, begin + 365 * DAY))
    assert len(year) == 2
    for change in year:
        walk = list(minutes_around(zone, change))
        for fields in DAILY:
            compare(name, change, walk, fields)


@given(st.data())
def test_any_change(data: st.DataObject) -> None:
    """Any expression is right around any change of any zone."""
    name = data.draw(st.sampled_from(sorted(available_timezones())))
    begin = data.draw(st.integers(BEGIN, END - 400 * DAY))
    zone = ZoneInfo(name)
    for change in changes(zone, begin, begin + 400 * DAY):
        compare(name, change, list(minutes_around(zone, change)), data.draw(st.sampled_from(ANY)))


@pytest.mark.needs_histories
@pytest.mark.parametrize("year", range(2020, 2038, 2))
def test_all_changes(year: int) -> None:
    """All changes of all zones: every form of minutes and hours for each kind of change, other fields in turn."""
    begin, end = (int(datetime(each, 1, 1, tzinfo=UTC).timestamp()) for each in (year, year + 2))
    names = sorted(available_timezones())
    zones = {change: name for name in names for change in changes(ZoneInfo(name), begin, end)}
    assert len(zones) > 100
    kinds: set[tuple[int, int, int]] = set()
    for number, (change, name) in enumerate(sorted(zones.items())):
        walk = list(minutes_around(ZoneInfo(name), change))
        kind = (change.instant + change.before) % DAY, change.before % HOUR, change.after - change.before
        for fields in (*(DAILY if kind not in kinds else ()), *ANY[number % 2500 :: 2500]):
            compare(name, change, walk, fields)
        kinds.add(kind)
