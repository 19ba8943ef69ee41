"""The order of messages, for programs that keep ids: ids compare neither as text nor as numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from queuey import ids

EARLIEST = ids.to_hex(ids.FIRST)
"""The lowest id there can be."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def order_of(identifier: str) -> tuple[int, int]:
    """Returns a key that sorts ids as queues do.

    Raises:
        ValueError: It is no id.
    """
    return ids.parse_position(identifier)


def time_of(identifier: str) -> datetime:
    """Returns an id's time in UTC, cut to microseconds.

    Raises:
        ValueError: It is no id.
    """
    return _EPOCH + timedelta(microseconds=(ids.parse_position(identifier)[0] - ids.EPOCH_TICKS) // 10)


def id_after(identifier: str) -> str:
    """Returns the lowest id above one: where to go on (``since``) after a message.

    Raises:
        ValueError: It is no id.
    """
    return ids.to_hex(ids.following(ids.parse_position(identifier)))


def id_before(instant: float | datetime) -> str:
    """Returns the highest id below an instant: whoever goes on after it reads everything from then on.

    Args:
        instant: Seconds since 1970, or an aware datetime.

    Raises:
        ValueError: A datetime without a time zone, or an instant that no id can have.
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
