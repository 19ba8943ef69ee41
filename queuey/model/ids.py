"""Message ids: version-1 UUIDs, their order, and positions between them.

A **position** is the pair ``(ticks, low)``:

* ``ticks`` is the UUID's 60-bit time, 100 ns steps since 1582-10-15 (RFC 9562, section 5.1);
* ``low`` is the UUID's low 8 bytes (clock sequence and node) as a signed 64-bit integer in which the lower seven
  bytes are flipped by 0x80 each.

Compared as plain tuples of integers, positions have exactly the order of Cassandra's ``TimeUUIDType``: by time, then
by the low 8 bytes as *signed* bytes. Every store sorts by them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

Position = tuple[int, int]
"""Where a message stands in the order of its partition; with the partition a ``queuey.model.messages.Location``."""

TICKS_PER_SECOND = 10_000_000
EPOCH_TICKS = 0x01B21DD213814000
"""Number of ticks between 1582-10-15 and 1970-01-01."""

LOW_MIN = -(1 << 63)
LOW_MAX = (1 << 63) - 1
TICKS_MAX = (1 << 60) - 1
FIRST: Position = (0, LOW_MIN)
LAST: Position = (TICKS_MAX, LOW_MAX)

FLIP = 0x0080808080808080
"""Code for XOR with the last 8 bytes of an id (as an integer) to get the ``low`` of its position, and vice versa."""

_MASK = 0xFFFFFFFFFFFFFFFF
_HEX = re.compile(r"[0-9a-fA-F]{32}")
_SECONDS = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,20}))?", re.ASCII)


def now_ticks() -> int:
    return time.time_ns() // 100 + EPOCH_TICKS


class StoreClock:
    """The clock of a store, by which claims, moves, schedules and groups go. Raises StoreUnavailable if it is wrong."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def now_ticks(self) -> int:
        return self._read()

    def now_ms(self) -> int:
        return (self._read() - EPOCH_TICKS) // 10_000


def seconds_to_ticks(seconds: float) -> int:
    return int(seconds * TICKS_PER_SECOND) + EPOCH_TICKS


def ticks_to_seconds(ticks: int) -> float:
    return (ticks - EPOCH_TICKS) / TICKS_PER_SECOND


@lru_cache(1024)
def last_digits(high: int, low: int) -> bytes:
    """Returns the digits of an id after the first eight, which ids made together share; ``high`` is ticks >> 32."""
    return b"%04x1%03x%016x" % (high & 0xFFFF, high >> 16, (low & _MASK) ^ FLIP)


def to_hex(position: Position) -> str:
    ticks, low = position
    return f"{ticks & 0xFFFFFFFF:08x}{(ticks >> 32) & 0xFFFF:04x}1{ticks >> 48:03x}{(low & _MASK) ^ FLIP:016x}"


def timestamp_text(ticks: int) -> str:
    """Returns ticks as seconds since 1970 with exactly seven decimals."""
    ticks -= EPOCH_TICKS
    if ticks < 0:
        return f"-{-ticks // TICKS_PER_SECOND}.{-ticks % TICKS_PER_SECOND:07d}"
    return f"{ticks // TICKS_PER_SECOND}.{ticks % TICKS_PER_SECOND:07d}"


def parse_position(text: str) -> Position:
    """Parses a UUID of any version as a position. Case does not matter, and dashes are optional.

    Raises:
        ValueError: ``text`` is not a UUID.
    """
    digits = text.replace("-", "") if len(text) == 36 else text  # noqa: PLR2004 - a dashed UUID's length
    if _HEX.fullmatch(digits) is None:
        msg = f"{text!r} is not a message id"
        raise ValueError(msg)
    return int(digits[13:16] + digits[8:12] + digits[:8], 16), parse_low(digits[16:])


def parse_low(digits: str) -> int:
    low = int(digits, 16) ^ FLIP
    return low - (1 << 64) if low > LOW_MAX else low


def parse_id(text: str) -> Position:
    """Parses the id of a message: like :func:`parse_position`, but accepts only version 1 of the RFC's variant.

    Raises:
        ValueError: ``text`` is not a version 1 UUID.
    """
    position = parse_position(text)
    digits = text.replace("-", "")
    if digits[12] != "1" or digits[16] not in "89abAB":
        msg = f"{text!r} is not a version 1 UUID"
        raise ValueError(msg)
    return position


def parse_instant(text: str) -> int | None:
    """Parses seconds since 1970 (``123`` or ``123.4567890``) exactly. Returns ticks, or None for other texts.

    Digits after the seventh decimal are ignored. Times beyond those of ids become ``TICKS_MAX``.
    """
    match = _SECONDS.fullmatch(text)
    if match is None:
        return None
    seconds, fraction = match.groups()
    ticks = int(seconds) * TICKS_PER_SECOND + int(((fraction or "") + "0000000")[:7]) + EPOCH_TICKS
    return min(ticks, TICKS_MAX)


def following(position: Position) -> Position:
    ticks, low = position
    if low < LOW_MAX:
        return ticks, low + 1
    return (ticks + 1, LOW_MIN) if ticks < TICKS_MAX else LAST


def preceding(position: Position) -> Position:
    ticks, low = position
    if low > LOW_MIN:
        return ticks, low - 1
    return (ticks - 1, LOW_MAX) if ticks > 0 else FIRST


def random_low() -> int:
    """Returns a ``low`` with a random clock sequence and a random node (multicast bit set, RFC 9562, section 6.10)."""
    raw = int.from_bytes(os.urandom(8), "big")
    raw = (raw & 0x3FFFFFFFFFFFFFFF) | 0x8000000000000000 | (1 << 40)
    low = raw ^ FLIP
    return low - (1 << 64) if low > LOW_MAX else low


# Functions for users of the client, on ids as text. Ids must not be compared as text or as numbers.

EARLIEST = to_hex(FIRST)
"""The lowest possible id."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def order_of(identifier: str) -> tuple[int, int]:
    """Returns a sort key: ids sorted by it have the order of a queue's messages.

    Example:
        >>> from queuey.client import order_of
        >>> first, second = "1d19e1fce14b11f0bfffe2e3d0c45a1f", "0a19e1fce14c11f0bfffe2e3d0c45a1f"
        >>> sorted([second, first], key=order_of) == [first, second]
        True

    Raises:
        ValueError: ``identifier`` is not an id.
    """
    return parse_position(identifier)


def time_of(identifier: str) -> datetime:
    """Returns the time of an id in UTC, truncated to microseconds.

    Example:
        >>> from queuey.client import id_before, time_of
        >>> time_of(id_before(1_700_000_000)).isoformat()
        '2023-11-14T22:13:19.999999+00:00'

    Raises:
        ValueError: ``identifier`` is not an id.
    """
    return _EPOCH + timedelta(microseconds=(parse_position(identifier)[0] - EPOCH_TICKS) // 10)


def id_after(identifier: str) -> str:
    """Returns the next higher id: the position (``since``) from which to continue after a message.

    Example:
        >>> from queuey.client import id_after, order_of
        >>> last = "1d19e1fce14b11f0bfffe2e3d0c45a1f"
        >>> order_of(id_after(last)) > order_of(last)
        True

    Raises:
        ValueError: ``identifier`` is not an id.
    """
    return to_hex(following(parse_position(identifier)))


def id_before(instant: float | datetime) -> str:
    """Returns the highest id before a time: a reader that continues after this id reads everything from that time on.

    Example:
        >>> from datetime import UTC, datetime
        >>> from queuey.client import id_before
        >>> id_before(1_700_000_000) == id_before(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))
        True

    Args:
        instant: Seconds since 1970, or an aware datetime.

    Raises:
        ValueError: The datetime has no time zone, or ids cannot express the time.
    """
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ValueError("the instant has no time zone")
        past = instant - _EPOCH
        ticks = EPOCH_TICKS + ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 10
    else:
        ticks = seconds_to_ticks(instant)
    if not 0 < ticks <= TICKS_MAX:
        raise ValueError("the instant lies outside of what ids can express")
    return to_hex(preceding((ticks, LOW_MIN)))
