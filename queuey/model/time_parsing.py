"""Parsing and formatting of times and durations as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_ID = re.compile(r"[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,20})?", re.ASCII)
_RELATIVE = re.compile(r"([+-])((?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d|w))+)", re.ASCII)
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d|w))+|[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DURATION_PART_PATTERN = re.compile(r"([0-9.]+)(ms|s|m|h|d|w)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

ACCEPTED_FORMS = (
    "an id, a cursor, seconds since 1970, ISO 8601 (local time unless it names a zone), or relative: -1h, -2d12h"
)


def parse_point(text: str, now: float) -> str:
    """Translates a position in time to a form that the API accepts: ids, seconds and cursors stay as they are.

    Args:
        text: One of ``ACCEPTED_FORMS``, or ``now``.
        now: The present time (seconds since 1970), to which relative positions refer.

    Raises:
        ValueError: The text has none of these forms, or is before 1970.
    """
    text = text.strip()
    if _ID.fullmatch(text) or _SECONDS.fullmatch(text) or _is_cursor(text):
        return text
    if text == "now":
        return _format_seconds(round(now * 1_000_000))
    relative = _RELATIVE.fullmatch(text)
    try:
        if relative is not None:
            distance = parse_duration(relative[2])
            since_1970 = timedelta(seconds=now - distance if relative[1] == "-" else now + distance)
        else:
            moment = datetime.fromisoformat(text)
            while moment.timestamp() > moment.replace(fold=1).timestamp():  # The local clock skips this time.
                moment = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
            since_1970 = moment.astimezone(UTC) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a position in time. Accepted: {ACCEPTED_FORMS}.") from error
    return _format_seconds(since_1970 // timedelta(microseconds=1))


def parse_zoned(text: str) -> str:
    """Translates ISO 8601 with a zone to seconds since 1970, as :func:`parse_point` does.

    Raises:
        ValueError: The text has another form or no zone, or is before 1970.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: write 2026-12-01T09:30:00Z or 2026-12-01T10:30:00+01:00.")
    return _format_seconds((moment - _EPOCH) // timedelta(microseconds=1))


def parse_duration(text: str) -> float:
    """Parses a duration: seconds (``90``), or numbers with units (``1h30m``, ``2d``, ``500ms``).

    Raises:
        ValueError: The text is not a duration.
    """
    if _DURATION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a length of time. Accepted: seconds, or such as 30m, 1h30m, 2d.")
    steps = _DURATION_PART_PATTERN.findall(text)
    return sum(float(number) * _UNITS[unit] for number, unit in steps) if steps else float(text)


_MAX_AHEAD_SECONDS = 60.0


def format_duration(seconds: float) -> str:
    for unit, size in (("d", 172_800), ("h", 7200), ("min", 120)):
        if seconds >= size:
            return f"{seconds / (_UNITS['d'] if unit == 'd' else _UNITS[unit[0]]):.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.3g} s"  # noqa: PLR2004 - one digit is not enough below


def format_instant(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_warning(ahead: float) -> str | None:
    """Returns a warning if new ids are more than a minute ahead of the clock, else None."""
    if ahead <= _MAX_AHEAD_SECONDS:
        return None
    return (
        f"The clock was ahead, or is behind now: new ids are {format_duration(ahead)} ahead of it, so delayed messages "
        'come that much later, and messages live longer. See "The clock" in the operations guide.'
    )


def _is_cursor(text: str) -> bool:
    parts = [part.partition(":") for part in text.split(",")]
    return all(number.isdecimal() and _ID.fullmatch(name) for number, _, name in parts)


def _format_seconds(microseconds: int) -> str:
    if microseconds < 0:
        raise ValueError(f"{microseconds / 1_000_000:.6f} is before 1970, where no messages exist. Use 0 or later.")
    return f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"
