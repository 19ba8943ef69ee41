"""Tests of when schedules are due, also when local clocks are changed."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queuey.messages.posts import Draft
from queuey.model.errors import TimeZoneUnknown
from queuey.runtime.due_work import sort_steps
from queuey.schedules.schedule_states import ScheduleDefinition, StoredSchedule, keep_message, list_next_fire_times
from queuey.schedules.timetables import Timetable, check_cron, check_zone, find_next_instant, iterate_instants

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Pacific/Apia"]
DAY = 86_400


def seconds(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def wall_times(timetable: Timetable, after: int, most: int) -> list[str]:
    zone = ZoneInfo(timetable.zone)
    return [
        datetime.fromtimestamp(each, zone).isoformat()[:22] for each in islice(iterate_instants(timetable, after), most)
    ]


BERLIN = "Europe/Berlin"
SPRING, AUTUMN = "2026-03-28T12:00", "2026-10-24T12:00"


@pytest.mark.parametrize(
    ("cron", "zone", "begin", "expected"),
    [
        # The hour from 2 to 3 is skipped.
        ("30 2 * * *", BERLIN, SPRING, ["2026-03-29T03:00:00+02", "2026-03-30T02:30:00+02"]),
        ("*/20 2 * * *", BERLIN, SPRING, ["2026-03-29T03:00:00+02", "2026-03-30T02:00:00+02"]),
        ("0 3 * * *", BERLIN, SPRING, ["2026-03-29T03:00:00+02", "2026-03-30T03:00:00+02"]),
        # It is repeated.
        ("30 2 * * *", BERLIN, AUTUMN, ["2026-10-25T02:30:00+02", "2026-10-26T02:30:00+01"]),
        (
            "*/30 2 * * *",
            BERLIN,
            AUTUMN,
            ["2026-10-25T02:00:00+02", "2026-10-25T02:30:00+02", "2026-10-26T02:00:00+01"],
        ),
        ("0 3 * * *", BERLIN, AUTUMN, ["2026-10-25T03:00:00+01", "2026-10-26T03:00:00+01"]),
        # Real hours.
        (
            "*/30 * * * *",
            BERLIN,
            "2026-03-29T01:10",
            ["2026-03-29T01:30:00+01", "2026-03-29T03:00:00+02", "2026-03-29T03:30:00+02"],
        ),
        (
            "30 * * * *",
            BERLIN,
            "2026-10-25T01:40",
            ["2026-10-25T02:30:00+02", "2026-10-25T02:30:00+01", "2026-10-25T03:30:00+01"],
        ),
        # At midnight, by half an hour, by a whole day, in the south.
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-24T01:00:00+03", "2026-04-25T00:00:00+03"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-04T02:30:00+11", "2026-10-05T02:15:00+11"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00", ["2026-04-05T01:45:00+11", "2026-04-06T01:45:00+10"]),
        ("0 12 30 12 *", "Pacific/Apia", "2011-12-29T12:00", ["2011-12-31T00:00:00+14", "2012-12-30T12:00:00+14"]),
    ],
)
def test_when_clocks_are_changed(cron: str, zone: str, begin: str, expected: list[str]) -> None:
    """A skipped time comes once, at the moment of the change; a repeated one comes the first time."""
    assert wall_times(Timetable(cron, zone), seconds(begin, zone), len(expected)) == expected


def test_usual_days() -> None:
    """Fields mean the same as in cron."""
    begin = seconds("2026-01-01T00:00")
    assert wall_times(Timetable("0 9 * * MON-FRI"), begin, 3) == [
        "2026-01-01T09:00:00+00",
        "2026-01-02T09:00:00+00",
        "2026-01-05T09:00:00+00",
    ]
    assert wall_times(Timetable("0 0 29 2 *"), begin, 2) == ["2028-02-29T00:00:00+00", "2032-02-29T00:00:00+00"]
    assert wall_times(Timetable("0 0 L * *"), begin, 2) == ["2026-01-31T00:00:00+00", "2026-02-28T00:00:00+00"]
    assert wall_times(Timetable("59 23 31 12 *"), begin, 1) == ["2026-12-31T23:59:00+00"]


FIELDS = st.tuples(
    st.sampled_from(["0", "30", "*/15", "7,45", "*", "0-59/20"]),
    st.sampled_from(["*", "*/6", "0", "1", "2", "3", "1-3", "2,14", "23"]),
    st.sampled_from(["*", "1", "15", "L", "*/5"]),
    st.sampled_from(["*", "3,10", "4-11", "DEC"]),
    st.sampled_from(["*", "SUN", "1-5", "0#2"]),
).map(" ".join)
MOMENTS = st.integers(seconds("2010-01-01T00:00"), seconds("2030-01-01T00:00")) | st.builds(
    lambda day, offset: seconds(day) + offset,
    st.sampled_from(
        ["2026-03-29T01:00", "2026-10-25T01:00", "2026-03-08T07:00", "2026-11-01T06:00", "2011-12-30T10:00"]
    ),
    st.integers(-DAY, DAY),
)


@given(cron=FIELDS, zone=st.sampled_from(ZONES), after=MOMENTS)
@example(cron="45 2 * * *", zone=BERLIN, after=seconds("2026-10-25T01:10"))
def test_one_after_another(cron: str, zone: str, after: int) -> None:
    """Instants ascend, and asking for each after the one before gives the same as iterating."""
    timetable = Timetable(cron, zone)
    next_instants = list(islice(iterate_instants(timetable, after), 8))
    assert next_instants == sorted(set(next_instants))
    assert all(each > after for each in next_instants)
    for before, instant in zip([after, *next_instants], next_instants, strict=False):
        assert find_next_instant(timetable, before) == instant
        assert find_next_instant(timetable, instant - 1) == instant
        assert find_next_instant(timetable, instant - 0.5) == instant
        assert find_next_instant(timetable, before + 0.5) == instant or instant == before + 1


@given(every=st.integers(10, 10**6), anchor=st.integers(0, 2 * 10**9), after=MOMENTS | st.integers(0, 1000))
def test_intervals(every: int, anchor: int, after: int) -> None:
    """Intervals are counted from their anchor, also before it."""
    instant = find_next_instant(Timetable(every=every, anchor=anchor), after)
    assert instant is not None
    assert after < instant <= after + every
    assert (instant - anchor) % every == 0


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "1,,2 * * * *",
        "@daily",
        "0 0 30 2 *",
        "0 0 31 4,6 *",
        "² * * * *",
        "* * * * *\n",
        "x * * * *",
        "* * * * 5#6",
        "0 " * 200,
    ],
)
def test_no_cron_expression(cron: str) -> None:
    """An invalid expression, or one that never comes, is refused."""
    with pytest.raises(ValueError, match=r"cron expression|does not come"):
        check_cron(cron, "UTC", 1.7e9)


@given(st.text("0123456789*,-/#LW MONJAN", max_size=40))
def test_any_text(text: str) -> None:
    """Any text is refused as a cron expression, or has a next instant that is soon found."""
    with suppress(ValueError):
        check_cron(text, BERLIN, 1.7e9)
        instant = find_next_instant(Timetable(text, BERLIN), 1.7e9)
        assert instant is not None
        assert instant > 1.7e9


@pytest.mark.parametrize(
    "zone", ["", "Nowhere", "../etc/passwd", "localtime", "Europe", "posix/Europe/Berlin", "A" * 999]
)
def test_no_time_zone(zone: str) -> None:
    """An unknown zone is refused; so is the machine's own, which others do not share."""
    with pytest.raises(ValueError, match="is not a time zone"):
        check_zone(zone)


def test_a_zone_that_is_not_known_any_more() -> None:
    """On a machine without its time zone a schedule shows its next instant. Computing a later one names the zone."""
    timetable = Timetable("0 9 * * *", "Nowhere/Land")
    made = StoredSchedule(1, 0.0, 0.0, ScheduleDefinition("q", timetable, keep_message(Draft("x"))), next=5)
    assert list_next_fire_times(made, 3) == [5]
    with pytest.raises(TimeZoneUnknown, match="'Nowhere/Land'"):
        find_next_instant(timetable, 0.0)


def test_order_of_steps() -> None:
    """An application with many schedules does not delay those of others; its own are fired in order."""
    many = [(number, ("a", f"s{number}")) for number in range(100)]
    others = [(200, ("b", "s")), (201, ("b", "t")), (150, ("c", "s"))]
    ordered = sort_steps([*others, *reversed(many)])
    assert ordered[:5] == [("a", "s0"), ("c", "s"), ("b", "s"), ("a", "s1"), ("b", "t")]
    assert [name for application, name in ordered if application == "a"] == [name for _, (_, name) in many]
