"""How long the service has refused what a consumer asks for."""

from __future__ import annotations

import asyncio

from qdo.partitions import Subscription

LIST_REFUSAL_KEY = "/"
"""Key of refusals to list queues; not a valid queue name."""
REQUEST_REFUSAL_KEY = ""
"""Key of refusals of whole requests."""


class Refusals:
    """Refusals of the service by queue, each from the first to the last one. A successful answer ends them.

    Args:
        subscription: The consumer's subscription.

    Attributes:
        hidden: Refused queues that only a pattern matches. They may be meant for other credentials, so their refusals
            are not timed.
        seconds: The longest time between the first and the last refusal of one queue; 0 without refusals.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.hidden: set[str] = set()
        self._wanted = subscription
        self._times: dict[str, tuple[float, float]] = {}

    def record(self, what: str) -> None:
        """Records a refusal. A queue that only matches a pattern is hidden instead."""
        if what not in {LIST_REFUSAL_KEY, REQUEST_REFUSAL_KEY, *self._wanted.names} and self._wanted.matches_name(what):
            self.hidden.add(what)
            return
        now = asyncio.get_running_loop().time()
        self._times[what] = self._times.get(what, (now, now))[0], now

    def end_refusal(self, what: str) -> None:
        self._times.pop(what, None)

    @property
    def seconds(self) -> float:
        return max((last - first for first, last in self._times.values()), default=0.0)
