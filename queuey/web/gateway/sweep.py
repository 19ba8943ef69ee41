"""What is done now and then in the event loop, by one timer: looking for what is late, signs of life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK = 0.25
"""Interval of the timer, in seconds; other intervals are multiples of it."""


class Sweep:
    """Calls functions at intervals, each by a callback of its own: if one raises, the others are still called."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ticks = 0
        self._calls: list[tuple[int, Callable[[], object]]] = []
        self._timer = loop.call_later(TICK, self._tick)

    def every(self, seconds: float, call: Callable[[], object]) -> None:
        """Calls a function now, and then at this interval in seconds."""
        self._calls.append((round(seconds / TICK), call))
        call()

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK, self._tick)
        self._ticks += 1
        for ticks, call in self._calls:
            if self._ticks % ticks == 0:
                self._loop.call_soon(call)
