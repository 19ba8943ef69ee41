"""How long a session is certainly alive, judged here: servers report its end only once they can be reached again."""

from __future__ import annotations

from collections.abc import Callable

from qdo.keepalive.vitals import Vitals, now

BROKEN = 2 / 3
"""Of the timeout: after so long without an answer a connection counts as broken, which leaves a third for another."""


class SessionLease:
    """What the servers granted, and when they were last heard.

    The thread that reads the connection writes it, the event loop reads it; every attribute is set in one step. A
    process that was stopped for longer than the timeout finds its lease lapsed, whichever thread runs first: the
    answer that arrived before the stop and is read after it does not renew it.

    Args:
        timeout: Seconds that were asked for.
        clock: Returns the time in seconds.
        vitals: Another process hears the servers, and writes it there; None: this one does.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = now, vitals: Vitals | None = None) -> None:
        self.timeout = timeout
        self._clock = clock
        self._vitals = vitals
        self._last: float | None = None
        self._late = False

    def grant(self, timeout: float) -> None:
        """Takes down what the servers agreed to; the first time the lease begins."""
        self.timeout = timeout
        if self._heard is None:
            self._last = self._clock()

    def hear(self) -> None:
        """Takes down that the servers answered, unless another process does."""
        if self._heard is None or self._vitals is not None:
            return
        instant = self._clock()
        if instant - self._heard > self.timeout:
            self._late = True
        self._last = instant

    @property
    def _heard(self) -> float | None:
        return self._last if self._vitals is None else self._vitals.last_heard

    @property
    def silence(self) -> float:
        """Seconds since the servers were last heard; 0 before the session began."""
        heard = self._heard
        return 0.0 if heard is None else self._clock() - heard

    @property
    def left(self) -> float:
        """Seconds that the session has left if the servers are heard no more."""
        return 0.0 if self.lapsed else self.timeout - self.silence

    @property
    def lapsed(self) -> bool:
        """The servers were not heard for so long that they may have ended the session. Once found it stays so."""
        if self.silence > self.timeout or (self._vitals is not None and self._vitals.lapsed):
            self._late = True
        return self._late

    @property
    def broken(self) -> bool:
        """The servers were not heard for so long that there must be something wrong with the connection."""
        return self.silence > self.timeout * BROKEN
