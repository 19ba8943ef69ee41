"""Logs lasting failures of a store: once when a failure begins and once when it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

QUIET_SECONDS = 10.0
"""Min seconds since the last failure until a trouble counts as over. On a full disk small writes succeed in between."""


class Trouble:
    """A lasting failure, with one reason at a time. Thread-safe.

    Args:
        log: The logger.
        thing: Subject of the logged sentences.
        quiet: Seconds without a failure after which it is over.
        clock: Monotonic clock (seconds).
    """

    __slots__ = ("_clock", "_last", "_lock", "_log", "_quiet", "_since", "_thing", "reason")

    def __init__(
        self,
        log: logging.Logger,
        thing: str,
        *,
        quiet: float = QUIET_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._thing = thing
        self._quiet = quiet
        self._clock = clock
        self._lock = threading.Lock()
        self._since = self._last = 0.0
        self.reason: str | None = None
        """Short name of the present failure, or None."""

    def record_failure(self, reason: str, text: object) -> None:
        with self._lock:
            before, self.reason, self._last = self.reason, reason, self._clock()
            if before is None:
                self._since = self._last
        if before != reason:
            self._log.error("%s: %s", self._thing, text)

    def record_success(self) -> None:
        """Records a success, which ends the trouble only if the last failure was long enough ago."""
        with self._lock:
            now = self._clock()
            over = self.reason is not None and now - self._last >= self._quiet
            if over:
                self.reason = None
        if over:
            self._log.warning("%s: works again after %.0f s.", self._thing, now - self._since)
