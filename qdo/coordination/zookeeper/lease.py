"""How long a session is certainly alive, judged here: servers report its end only once they can be reached again."""

from __future__ import annotations

from collections.abc import Callable

from qdo.keepalive.vitals import Vitals, now

BROKEN = 2 / 3
"""Ratio of the timeout: a connection without an answer for so long is broken, which leaves a third for another."""


class SessionLease:
    """The timeout that the servers granted, counted from the latest request that they answered.

    The thread that reads the connection writes it, the event loop reads it; every attribute is set in one step. A
    process that was stopped for longer than the timeout finds its lease lapsed, whichever thread runs first.

    Args:
        timeout: Seconds that were asked for.
        clock: Returns the time in seconds.
        vitals: Another process talks to the servers, and writes there when they answered; None: this one does.
    """

    def __init__(self, timeout: float, clock: Callable[[], float] = now, vitals: Vitals | None = None) -> None:
        self.timeout = timeout
        self.now = clock
        self._vitals = vitals
        self._last: float | None = None
        self._late = False

    def grant(self, timeout: float, asked: float) -> None:
        """Stores the granted timeout; the first call starts the lease.

        Args:
            timeout: Seconds.
            asked: When the session was asked for.
        """
        self.timeout = timeout
        if self._last is None:
            self._last = asked

    def hear(self, asked: float) -> None:
        """Renews the lease for an answer, unless another process does.

        Args:
            asked: When the request was sent: the servers may have heard nothing later.
        """
        if self._last is None or self._vitals is not None:
            return
        if self.silence > self.timeout:
            self._late = True
        self._last = max(self._last, asked)

    @property
    def silence(self) -> float:
        """Seconds since a request that the servers answered; 0 before the session began."""
        heard = self._last if self._vitals is None else self._vitals.last_heard
        return 0.0 if heard is None else self.now() - heard

    @property
    def left(self) -> float:
        """Seconds that the session has left if the servers answer nothing more."""
        return 0.0 if self.lapsed else self.timeout - self.silence

    @property
    def lapsed(self) -> bool:
        """The servers may have ended the session. Once found it stays so."""
        if self.silence > self.timeout or (self._vitals is not None and self._vitals.lapsed):
            self._late = True
        return self._late

    @property
    def broken(self) -> bool:
        """Nothing was answered for so long that there must be something wrong with the connection."""
        return self.silence > self.timeout * BROKEN
