"""When a claim is over, and by when it must be answered."""

from __future__ import annotations

from collections.abc import Callable

LATEST_END = 46_800_000
"""Max milliseconds until the end of any claim that is made now: the longest lasts 12 hours, and clocks differ by less
than one. A claim that ends later was made while the clock was ahead, and is over."""


class ClaimTiming:
    """Decides by the clock.

    Args:
        margin: The largest difference between the clocks of two processes (seconds): S. It may change.
    """

    __slots__ = ("_margin",)

    def __init__(self, margin: float | Callable[[], float] = 1.0) -> None:
        self._margin = margin

    @property
    def margin(self) -> float:
        margin = self._margin
        return margin() if callable(margin) else margin

    def expired(self, now: int) -> int:
        """Returns the expiry (milliseconds since 1970) below which claims are over for other processes at ``now``."""
        return now - round(self.margin * 1000)

    def left(self, expires: float, now: int) -> float:
        """Returns the seconds until a claim with this expiry is over for other processes, at least 0."""
        return max(0.0, (expires - self.expired(now) + 1) / 1000)

    def answer_within(self, ttl: float) -> float:
        """Returns the seconds, from the choice of its expiry, for which a claim may still be answered."""
        return ttl - min(self.margin, ttl / 2)
