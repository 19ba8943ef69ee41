"""For how long the service has refused something to a consumer's credential."""

from __future__ import annotations

import asyncio

from qdo.partitions import Subscription

LISTS = "/"
"""Key of refusals to say which queues there are; no queue has such a name."""
EVERYTHING = ""
"""Key of refusals of whole requests."""


class Refusals:
    """Refusals of the service, from the first one to the last one; an answer in between ends it.

    Args:
        wanted: By the consumer.

    Attributes:
        hidden: Queues that were refused and that only a pattern matches. They may be everybody's business but this
            credential's, so no time is kept of them.
    """

    def __init__(self, wanted: Subscription) -> None:
        self.hidden: set[str] = set()
        self._wanted = wanted
        self._times: dict[str, tuple[float, float]] = {}

    def note(self, what: str) -> None:
        if what not in {LISTS, EVERYTHING, *self._wanted.names} and self._wanted.wants(what):
            self.hidden.add(what)
            return
        now = asyncio.get_running_loop().time()
        self._times[what] = self._times.get(what, (now, now))[0], now

    def over(self, what: str) -> None:
        self._times.pop(what, None)

    @property
    def seconds(self) -> float:
        """The longest time for which anything has been refused."""
        return max((last - first for first, last in self._times.values()), default=0.0)
