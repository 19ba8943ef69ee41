"""For how long the service has refused something to a consumer's credential."""

from __future__ import annotations

import asyncio


class Refusals:
    """What the service refuses, from the first refusal to the last one; an answer in between ends it."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[float, float]] = {}

    def note(self, what: str) -> None:
        """The service has refused something."""
        now = asyncio.get_running_loop().time()
        self._times[what] = self._times.get(what, (now, now))[0], now

    def over(self, what: str) -> None:
        """It did not, or nobody asks any more."""
        self._times.pop(what, None)

    @property
    def seconds(self) -> float:
        """The longest time for which anything has been refused."""
        return max((last - first for first, last in self._times.values()), default=0.0)
