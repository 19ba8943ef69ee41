"""Positions and durations as people write them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import time_parsing
from queuey.terminal import times
from tests.replacing import replace_in

NOW = 1_700_000_000.5
ID = "39d94ce9e4a711f1ae954333c99db4f5"


@pytest.mark.parametrize(
    "text", [ID, ID.upper(), "39d94ce9-e4a7-11f1-ae95-4333c99db4f5", f"1:{ID},12:{ID}", "1517363399", "1517363399.65"]
)
def test_api_forms_pass_unchanged(text: str) -> None:
    """Forms that the API understands are passed on unchanged."""
    assert time_parsing.parse_point(text, NOW) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "1700000000.500000"),
        ("-1h", "1699996400.500000"),
        ("-1h30m", "1699994600.500000"),
        ("-1w", "1699395200.500000"),
        ("+250ms", "1700000000.750000"),
        ("2018-01-31T01:49:59Z", "1517363399.000000"),
        ("2018-01-31T02:49:59+01:00", "1517363399.000000"),
    ],
)
def test_human_forms(text: str, expected: str) -> None:
    """Relative and ISO 8601 positions become seconds since 1970."""
    assert time_parsing.parse_point(text, NOW) == expected


def test_local_time_is_meant_without_a_zone() -> None:
    """A date and time without a zone is in the machine's zone."""
    local = datetime(2024, 5, 6, 7, 8, 9).astimezone()
    assert time_parsing.parse_point("2024-05-06T07:08:09", NOW) == f"{int(local.timestamp())}.000000"


@pytest.mark.parametrize(
    ("zone", "text", "expected"),
    [
        *[("Europe/Berlin", f"2026-03-29T{t}", "2026-03-29T03:00+02:00") for t in ("02:00", "02:30:30.5", "02:59:59")],
        ("Europe/Berlin", "2026-03-29T01:59:59", "2026-03-29T01:59:59+01:00"),
        ("Europe/Berlin", "2026-03-29T03:00:01", "2026-03-29T03:00:01+02:00"),
        ("Europe/Berlin", "2026-10-25T02:30", "2026-10-25T02:30+02:00"),
        ("Australia/Lord_Howe", "2026-10-04T02:15", "2026-10-04T02:30+11:00"),
        ("Africa/Cairo", "2026-04-24T00:30", "2026-04-24T01:00+03:00"),
    ],
)
def test_when_clocks_are_changed(monkeypatch: pytest.MonkeyPatch, zone: str, text: str, expected: str) -> None:
    """A skipped local time is the moment of the change, and a repeated one the first, as in cron."""
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", zone)
            time.tzset()
            assert time_parsing.parse_point(text, NOW) == f"{int(datetime.fromisoformat(expected).timestamp())}.000000"
    finally:
        time.tzset()


@given(st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_iso_keeps_microseconds(moment: datetime) -> None:
    """An ISO instant is not rounded."""
    seconds, _, micros = time_parsing.parse_point(moment.isoformat(), NOW).partition(".")
    assert datetime.fromtimestamp(int(seconds), UTC) + timedelta(microseconds=int(micros)) == moment


@pytest.mark.parametrize(
    "text",
    [
        *("", "abc", "1h", "-", "-1x", "1e9", f"1:{ID[:-1]}", "-99999d", "1969-12-31T00:00:00Z"),
        *("9999-12-31T23:59-05:00", "0001-01-01T00:00+05:00", "+" + "9" * 400 + "w", "+999999999w"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """An invalid position gets an error with the valid forms, or with what is wrong."""
    with pytest.raises(ValueError, match=r"Accepted|1970"):
        time_parsing.parse_point(text, NOW)


def test_the_present_moment_to_be_due() -> None:
    """A time that is now, or in the present second, is not in the past, however it was rounded."""
    for now in (NOW, NOW + 4e-7, NOW + 0.4):
        for text in ("now", "+0s", str(int(now))):
            with replace_in(times, time, SimpleNamespace(time=partial(float, now))):
                assert times.due_at(text) == pytest.approx(now, abs=1)
    with (
        replace_in(times, time, SimpleNamespace(time=partial(float, NOW))),
        pytest.raises(typer.BadParameter, match="ago"),
    ):
        times.due_at(str(int(NOW) - 1))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("1.5", 1.5), ("30m", 1800.0), ("1h30m", 5400.0), ("500ms", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number of seconds, or parts with units."""
    assert time_parsing.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1 h", "-1h", "1h30", "inf"])
def test_bad_durations_are_refused(text: str) -> None:
    """An invalid duration is refused, not guessed."""
    with pytest.raises(ValueError, match="length of time"):
        time_parsing.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.25 s"), (12, "12 s"), (180, "3 min"), (18_000, "5 h"), (259_200, "3 d"), (0, "0 s")]
)
def test_lengths_for_people(seconds: float, text: str) -> None:
    """A duration is written in the unit in which it is a small number."""
    assert time_parsing.format_duration(seconds) == text
