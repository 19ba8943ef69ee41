"""Messages that a stream has left to read after the batch that it has planned."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from queuey import ids
from queuey.errors import QueueyError
from queuey.ids import FIRST, Position
from queuey.messages import Lag, Queue
from queuey.storage import Store, bridge

REQUEST_INTERVAL = 10.0
"""Interval between two requests to the store, in seconds."""


class StreamLag:
    """How far a stream is behind; the store is asked only while there is something left, and not for each batch.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: float | None = None
        self._known = Lag(0, exact=True, seconds=0.0)

    def after(self, store: Store, left: Mapping[Queue, Mapping[int, Position]]) -> dict[str, Any]:
        """Returns the messages that are left, whether they were counted or estimated, and the age of the oldest (s).

        Args:
            store: Of the queues.
            left: By queue and partition, where the batch ends, if there may be messages between that and the horizon.
        """
        now = self._clock()
        if not left:
            self._asked, self._known = None, Lag(0, exact=True, seconds=0.0)
        elif self._asked is None or now >= self._asked + REQUEST_INTERVAL:
            self._asked = now
            # The queue may have changed, or the store does not answer: the next batch will tell.
            with contextlib.suppress(QueueyError):
                self._known = _total(store, left)
        return {"messages": self._known.count, "exact": self._known.exact, "seconds": round(self._known.seconds, 3)}


def _total(store: Store, left: Mapping[Queue, Mapping[int, Position]]) -> Lag:
    found = [
        lag
        for queue, ends in left.items()
        for lag in bridge.run(
            store.messages.lag(
                queue, [(number, None if end == FIRST else ids.preceding(end)) for number, end in ends.items()]
            )
        )
    ]
    return Lag(sum(one.count for one in found), all(one.exact for one in found), max(one.seconds for one in found))
