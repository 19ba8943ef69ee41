"""How many messages a run has."""

from __future__ import annotations

_FIRST = 16
_WEIGHT = 0.2
"""Ratio of the latest run in the mean, if it was as long as the aim."""


class BatchSize:
    """Learns how long a message takes, and so how many fill a run of ``seconds``.

    Fast handlers get long runs, because then the cost per run matters most. Slow ones get few messages: another handler
    cannot get those of a run, and a partition that waits for its turn waits for all of them.
    """

    def __init__(self, seconds: float, most: int, first: int = _FIRST) -> None:
        self._seconds = seconds
        self._most = most
        self._first = first
        self._mean: float | None = None

    @property
    def messages(self) -> int:
        if self._mean is None:
            return min(self._first, self._most)
        if self._mean * self._most <= self._seconds:
            return self._most
        return max(1, int(self._seconds / self._mean))

    def ran(self, messages: int, seconds: float) -> None:
        if not messages:
            return
        each = seconds / messages
        if self._mean is None:
            self._mean = each
        else:
            weight = min(1.0, max(_WEIGHT * seconds / self._seconds, 0.02))
            self._mean += weight * (each - self._mean)
