"""The order of messages, for programs that keep ids: do not compare ids as text or as numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queuey import ids

EARLIEST = ids.to_hex(ids.FIRST)
"""The lowest id there can be."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def order_of(identifier: str) -> tuple[int, int]:
    """Returns a key that sorts ids as queues do.

    Example:
        >>> from queuey.client import order_of
        >>> first, second = "1d19e1fce14b11f0bfffe2e3d0c45a1f", "0a19e1fce14c11f0bfffe2e3d0c45a1f"
        >>> sorted([second, first], key=order_of) == [first, second]
        True

    Raises:
        ValueError: It is not an id.
    """
    return ids.parse_position(identifier)


def time_of(identifier: str) -> datetime:
    """Returns an id's time in UTC, cut to microseconds.

    Example:
        >>> from queuey.client import id_before, time_of
        >>> time_of(id_before(1_700_000_000)).isoformat()
        '2023-11-14T22:13:19.999999+00:00'

    Raises:
        ValueError: It is not an id.
    """
    return _EPOCH + timedelta(microseconds=(ids.parse_position(identifier)[0] - ids.EPOCH_TICKS) // 10)


def id_after(identifier: str) -> str:
    """Returns the next higher id: the position (``since``) at which to continue after a message.

    Example:
        >>> from queuey.client import id_after, order_of
        >>> last = "1d19e1fce14b11f0bfffe2e3d0c45a1f"
        >>> order_of(id_after(last)) > order_of(last)
        True

    Raises:
        ValueError: It is not an id.
    """
    return ids.to_hex(ids.following(ids.parse_position(identifier)))


def id_before(instant: float | datetime) -> str:
    """Returns the highest id below a time: a reader that continues after it reads everything from that time on.

    Example:
        >>> from datetime import UTC, datetime
        >>> from queuey.client import id_before
        >>> id_before(1_700_000_000) == id_before(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC))
        True

    Args:
        instant: Seconds since 1970, or an aware datetime.

    Raises:
        ValueError: A datetime without a time zone, or a time that no id can have.
    """
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise ValueError("the instant has no time zone")
        past = instant - _EPOCH
        ticks = ids.EPOCH_TICKS + ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 10
    else:
        ticks = ids.seconds_to_ticks(instant)
    if not 0 < ticks <= ids.TICKS_MAX:
        raise ValueError("the instant lies outside of what ids can express")
    return ids.to_hex(ids.preceding((ticks, ids.LOW_MIN)))
