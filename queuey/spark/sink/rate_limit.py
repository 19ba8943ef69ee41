"""A rate limit that all tasks of a write share through one entry of the store's ledger."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from queuey.model.ids import TICKS_PER_SECOND
from queuey.storage import Ledger, bridge, exchange


class RateLimit:
    """Paces chunks to a number of rows per second.

    Args:
        ledger: The ledger that tasks share.
        work: Name of the ledger entry.
        rate: Messages a second; 0 means no limit.
        sleep: Sleeps for the given seconds.
    """

    def __init__(self, ledger: Ledger, work: str, rate: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._ledger = ledger
        self._work = work
        self._rate = rate
        self._sleep = sleep

    def chunk_size(self, max_messages: int) -> int:
        return max_messages if not self._rate else max(1, min(max_messages, int(self._rate)))

    def reserve_time(self, count: int) -> None:
        """Reserves time for a number of messages behind the reservations of all tasks, and sleeps until it begins."""
        if not self._rate:
            return
        span = round(count / self._rate * TICKS_PER_SECOND)
        raw = bridge.run(self._ledger.entry(self._work, 0))
        while True:
            now = bridge.run(self._ledger.now())
            start = now if raw is None else max(now, int(raw.split()[0]))
            # Two tasks may reserve the same time. The random part shows which of them succeeded.
            value = b"%d %s" % (start + span, secrets.token_hex(8).encode())
            raw = bridge.run(exchange(self._ledger, self._work, 0, value, expected=raw))
            if raw == value:
                break
        if start > now:
            self._sleep((start - now) / TICKS_PER_SECOND)
