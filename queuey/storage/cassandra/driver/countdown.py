"""Waiting for requests that were made side by side."""

from __future__ import annotations

import itertools
import threading

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver.requests import Done, Rows
from queuey.storage.deadlines import Deadline

MOST = 128
"""Requests that one call has on the way at a time, so that a call with very many does not hold up other calls."""


class Countdown:
    """The ends of requests that are made side by side, for the thread that makes them and waits for all of them.

    Args:
        count: How many there are, at least one.
        deadline: Ends the waiting.
        most: How many may be on the way at a time.
    """

    def __init__(self, count: int, deadline: Deadline, most: int = MOST) -> None:
        self._rows: list[Rows] = [[] for _ in range(count)]
        self._errors: list[StoreUnavailable] = []
        self._left = itertools.count(count - 1, -1)
        self._deadline = deadline
        self._last = threading.Lock()  # Released by the last; a semaphore would be acquired once for each.
        self._last.acquire()
        self._room = threading.Semaphore(most) if count > most else None

    def taker(self, number: int) -> Done:
        """Returns what takes the end of one of them, when it may be sent.

        Raises:
            StoreUnavailable: The call has no time left; the remaining requests must not be made.
        """
        room = self._room
        if room is not None:
            self._deadline.wait(room.acquire)

        def done(rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is not None:
                self._errors.append(error)
            self._rows[number] = rows or []
            if room is not None:
                room.release()
            if not next(self._left):
                self._last.release()

        return done

    def wait(self) -> tuple[list[Rows], list[StoreUnavailable]]:
        """Waits for all; returns the rows of each in order, and the errors there were.

        Raises:
            StoreUnavailable: The call has no time left.
        """
        self._deadline.wait(self._last.acquire)
        return self._rows, self._errors
