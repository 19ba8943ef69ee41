"""Forecasts how many messages of a partition expire before a consumer group reads them. Pure arithmetic.

The model: the ages of unread messages are evenly distributed between the oldest and the newest, and each message
expires when its age reaches the TTL. The group reads in order, and the age of the oldest unread message grows at a
constant rate: by a second each second if the group does not read, by less if it reads slower than messages came, not at
all if it keeps up. Once that age has reached the TTL, a share of the expiring messages equal to this growth is lost,
and the group reads the others.
"""

from __future__ import annotations

import math

import msgspec

_MAX_ROUNDING_ERROR = 1e-6
"""Max error of rounding, in messages."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Unread messages of a group in a partition.

    Attributes:
        count: Number of messages.
        oldest: Age of the oldest message, in seconds.
        newest: Age of the newest message, in seconds.
        ttl: Lifetime of messages, in seconds.
        growth: Seconds by which the age of the oldest message grows each second, 1 at most.
        coming: True if new messages keep coming.

    Raises:
        ValueError: A value is out of range, or the oldest message is younger than the newest.
    """

    count: int
    oldest: float
    newest: float
    ttl: float
    growth: float = 1.0
    coming: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.ttl <= 0 or not 0 <= self.newest <= self.oldest:
            raise ValueError("a backlog has a negative count or age, or its oldest message is younger than its newest")
        if self.growth > 1:
            raise ValueError("the growth of a backlog is above 1 second each second")


class Forecast(msgspec.Struct, frozen=True):
    """Messages that will expire unread.

    Attributes:
        first: Seconds until the first message expires unread; None if none does within the forecast.
        lost: Number of messages that expire unread within the forecast.
    """

    first: float | None = None
    lost: int = 0


def forecast(backlog: Backlog, within: float) -> Forecast:
    """Forecasts the messages that a group loses from now on; none if it keeps up or they expire later.

    Args:
        backlog: The unread messages.
        within: Time span of the forecast, in seconds.
    """
    if not backlog.count or backlog.growth <= 0:
        return Forecast()
    first = max(0.0, backlog.ttl - backlog.oldest) / backlog.growth
    end = within if backlog.coming else min(within, max(0.0, backlog.ttl - backlog.newest))
    if first > end:
        return Forecast()
    between = (backlog.oldest - backlog.newest) / max(1, backlog.count - 1)
    if not between:
        return Forecast(first, backlog.count)
    lost = 1 + math.floor(backlog.growth * (end - first) / between + _MAX_ROUNDING_ERROR)
    return Forecast(first, lost if backlog.coming else min(backlog.count, lost))
