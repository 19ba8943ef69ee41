"""The lag of a stream: messages that remain after its planned batch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from queuey.model import ids
from queuey.model.errors import QueueyError
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Lag, Queue
from queuey.storage import Store, bridge

REQUEST_INTERVAL = 10.0
"""Interval between two requests to the store, in seconds."""


class StreamLag:
    """Measures the lag of a stream.

    Queries the store only while messages remain, and at most every ``REQUEST_INTERVAL`` seconds. Between requests, and
    after a failed one, it repeats the last result.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requested_at: float | None = None
        self._last = Lag(0, exact=True, seconds=0.0)

    def measure(self, store: Store, batch_ends: Mapping[Queue, Mapping[int, Position]]) -> dict[str, Any]:
        """Returns the number of remaining messages, whether it is exact, and the age of the oldest one in seconds.

        Args:
            store: The store of the queues.
            batch_ends: Queue -> partition -> end of the batch, for partitions that may have messages above it.
        """
        now = self._clock()
        if not batch_ends:
            self._requested_at, self._last = None, Lag(0, exact=True, seconds=0.0)
        elif self._requested_at is None or now >= self._requested_at + REQUEST_INTERVAL:
            self._requested_at = now
            # If the queue has changed or the store does not answer, the next batch raises the error.
            with contextlib.suppress(QueueyError):
                self._last = _measure_total(store, batch_ends)
        return {"messages": self._last.count, "exact": self._last.exact, "seconds": round(self._last.seconds, 3)}


def _measure_total(store: Store, batch_ends: Mapping[Queue, Mapping[int, Position]]) -> Lag:
    lags = [
        lag
        for queue, ends in batch_ends.items()
        for lag in bridge.run(
            store.messages.lag(
                queue, [(number, None if end == FIRST else ids.preceding(end)) for number, end in ends.items()]
            )
        )
    ]
    return Lag(sum(lag.count for lag in lags), all(lag.exact for lag in lags), max(lag.seconds for lag in lags))
