"""How many messages of a partition TTL will take before a consumer group reads them. Pure arithmetic.

The model: the unread messages lie evenly between the age of the oldest and the age of the newest, and each expires when
its age reaches the TTL. The group reads them in order, and the age of the oldest grows steadily: by a second each
second if the group stands still, by less if it is slower than the messages came, not at all if it keeps up. When that
age has reached the TTL, of the messages that expire the share of this growth is lost, and the group reads the others.
"""

from __future__ import annotations

import math

import msgspec

_ROUNDING = 1e-6
"""Max error of rounding, in messages."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Unread messages of a group in a partition.

    Attributes:
        count: Messages.
        oldest: Age of the oldest of them, in seconds.
        newest: Age of the newest of them.
        ttl: Seconds that messages live.
        growth: Seconds by which the age of the oldest grows each second, 1 at most.
        coming: Messages keep coming.
    """

    count: int
    oldest: float
    newest: float
    ttl: float
    growth: float = 1.0
    coming: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.ttl <= 0 or not 0 <= self.newest <= self.oldest:
            raise ValueError("a backlog has no negative count or age, and its oldest is not younger than its newest")
        if self.growth > 1:
            raise ValueError("the age of a message grows by a second each second")


class Forecast(msgspec.Struct, frozen=True):
    """Messages that will expire unread.

    Attributes:
        first: Seconds until the first message expires unread; None: none does in the forecast.
        lost: How many expire unread in the forecast.
    """

    first: float | None = None
    lost: int = 0


def forecast(backlog: Backlog, within: float) -> Forecast:
    """Foretells what a group loses from now on.

    Args:
        backlog: The partition.
        within: Seconds of the forecast.
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
    lost = 1 + math.floor(backlog.growth * (end - first) / between + _ROUNDING)
    return Forecast(first, lost if backlog.coming else min(backlog.count, lost))
