"""Waiting for requests that were made side by side."""

from __future__ import annotations

import itertools
import threading

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver.requests import Done, Rows


class Gathering:
    """The ends of requests that were made side by side, for the thread that waits for all of them.

    Args:
        count: How many there are, at least one.
    """

    def __init__(self, count: int) -> None:
        self._rows: list[Rows] = [[] for _ in range(count)]
        self._errors: list[StoreUnavailable] = []
        self._left = itertools.count(count - 1, -1)
        self._last = threading.Lock()  # Released by the last; a semaphore would be acquired once for each.
        self._last.acquire()

    def taker(self, number: int) -> Done:
        """Returns what takes the end of one of them."""

        def done(rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is not None:
                self._errors.append(error)
            self._rows[number] = rows or []
            if not next(self._left):
                self._last.release()

        return done

    def wait(self) -> tuple[list[Rows], list[StoreUnavailable]]:
        """Waits for all; returns the rows of each in order, and the errors there were."""
        self._last.acquire()
        return self._rows, self._errors
