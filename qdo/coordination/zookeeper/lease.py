"""How long a session is surely alive, judged here: the servers tell of its end only once they can be reached again."""

from __future__ import annotations

import time
from collections.abc import Callable

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts while the machine sleeps too, and cannot be set."""
BROKEN = 2 / 3
"""Of the timeout: after so long without an answer a connection counts as broken, which leaves a third for another."""


def now() -> float:
    """Returns seconds since the machine was started."""
    return time.clock_gettime(CLOCK)


class Lease:
    """What the servers granted, and when they were last heard.

    The thread that reads the connection writes it, the event loop reads it; every attribute is set in one step. A
    process that was stopped for longer than the timeout finds its lease lapsed, whichever thread runs first: the
    answer that arrived before the stop and is read after it does not renew it.

    Args:
        timeout: Seconds that were asked for.
        clock: Returns the time in seconds.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = now) -> None:
        self.timeout = timeout
        self._clock = clock
        self._heard: float | None = None
        self._lapsed = False

    def grant(self, timeout: float) -> None:
        """Takes down what the servers agreed to; the first time the lease begins."""
        self.timeout = timeout
        if self._heard is None:
            self._heard = self._clock()

    def hear(self) -> None:
        """Takes down that the servers answered."""
        if self._heard is None:
            return
        instant = self._clock()
        if instant - self._heard > self.timeout:
            self._lapsed = True
        self._heard = instant

    @property
    def silence(self) -> float:
        """Seconds since the servers were last heard; 0 before the session began."""
        return 0.0 if self._heard is None else self._clock() - self._heard

    @property
    def left(self) -> float:
        """Seconds that the session has left if the servers are heard no more."""
        return 0.0 if self._lapsed else self.timeout - self.silence

    @property
    def lapsed(self) -> bool:
        """The servers were not heard for so long that they may have ended the session."""
        return self._lapsed or self.silence > self.timeout

    @property
    def broken(self) -> bool:
        """The servers were not heard for so long that there must be something wrong with the connection."""
        return self.silence > self.timeout * BROKEN
