"""The ends of requests that were made side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver.requests import Done, Rows

AllDone = Callable[[list[Rows], list[StoreUnavailable]], None]
"""Called once, in any thread, with the rows of each request in order, and the errors there were."""


class Countdown:
    """Waits, without a thread, for the ends of requests that were made side by side."""

    def __init__(self, count: int, done: AllDone) -> None:
        self._rows: list[Rows] = [[] for _ in range(count)]
        self._errors: list[StoreUnavailable] = []
        self._left = itertools.count(count - 1, -1)
        self._done = done

    def taker(self, number: int) -> Done:
        def take(rows: Rows | None, error: StoreUnavailable | None) -> None:
            if error is not None:
                self._errors.append(error)
            self._rows[number] = rows or []
            if not next(self._left):
                self._done(self._rows, self._errors)

        return take
