"""When a claim is over, and by when it must be answered."""

from __future__ import annotations

import msgspec


class ClaimTiming(msgspec.Struct, frozen=True):
    """Decides by the clock.

    Attributes:
        margin: The largest difference between the clocks of two processes (seconds): S.
    """

    margin: float = 1.0

    def expired(self, now: int) -> int:
        """Returns the expiry (milliseconds since 1970) below which claims are over for others at ``now``."""
        return now - round(self.margin * 1000)

    def left(self, expires: float, now: int) -> float:
        """Returns in how many seconds a claim with this expiry is over for others (not below 0)."""
        return max(0.0, (expires - self.expired(now) + 1) / 1000)

    def answer_within(self, ttl: float) -> float:
        """Returns how many seconds after its expiry was chosen a claim may still be reported to the caller."""
        return ttl - min(self.margin, ttl / 2)
