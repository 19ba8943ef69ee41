"""Rate limits of logins and other acts at the console."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from queuey.errors import TooManyRequests
from queuey.web.admission.rates import Buckets, Rate

MAX_COUNTED = 4096
"""Max names with a counter."""


class Bound:
    """A rate that each of many names may have in this process.

    Args:
        rate: Of each.
        text: What a name has too many of, as in ``logins of this key``.
        clock: Monotonic seconds.
    """

    def __init__(self, rate: Rate, text: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._text = text
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets = Buckets(MAX_COUNTED)

    def take(self, name: str) -> None:
        """Counts one.

        Raises:
            TooManyRequests: It is one too many.
        """
        self._look(name, takes=True)

    def check(self, name: str) -> None:
        """Makes sure that one more may be counted. Raises as :meth:`take`."""
        self._look(name, takes=False)

    def _look(self, name: str, *, takes: bool) -> None:
        with self._lock:
            now = self._clock()
            bucket = self._buckets.look(name, self._rate, now)
            if not bucket.wait:
                if takes:
                    self._buckets.take(name, bucket, now)
                return
        error = TooManyRequests(f"Too many {self._text}. Try again after {math.ceil(bucket.wait)} s.")
        error.retry_after = math.ceil(bucket.wait)
        raise error
