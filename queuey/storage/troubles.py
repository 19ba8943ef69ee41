"""Failures of a store, each logged once when it begins and once when it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

QUIET = 10.0
"""Min seconds without a failure until a trouble is over: on a full disk small writes succeed between large ones."""


class Trouble:
    """A lasting failure, for one reason at a time. Safe for use by many threads.

    Args:
        log: The logger.
        thing: Subject of the logged sentence.
        quiet: Seconds without a failure after which it is over.
        clock: Seconds.
    """

    __slots__ = ("_clock", "_last", "_lock", "_log", "_quiet", "_since", "_thing", "reason")

    def __init__(
        self, log: logging.Logger, thing: str, *, quiet: float = QUIET, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._thing = thing
        self._quiet = quiet
        self._clock = clock
        self._lock = threading.Lock()
        self._since = self._last = 0.0
        self.reason: str | None = None
        """A word for the failure, None while there is none."""

    def met(self, reason: str, text: object) -> None:
        """Records a failure, and logs it if it is new."""
        with self._lock:
            before, self.reason, self._last = self.reason, reason, self._clock()
            if before is None:
                self._since = self._last
        if before != reason:
            self._log.error("%s: %s", self._thing, text)

    def passed(self) -> None:
        """Records a success, which ends the trouble if the last failure was long enough ago."""
        with self._lock:
            now = self._clock()
            over = self.reason is not None and now - self._last >= self._quiet
            if over:
                self.reason = None
        if over:
            self._log.warning("%s: works again after %.0f s.", self._thing, now - self._since)
