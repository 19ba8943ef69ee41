"""A rate that all tasks of a write share: each takes its turns from one entry of the store's ledger."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from queuey.ids import TICKS_PER_SECOND
from queuey.storage import Ledger, bridge, exchange


class RateLimit:
    """Paces chunks to a number of rows per second.

    Args:
        ledger: Where turns are given.
        work: Names what is paced.
        rate: Messages a second; 0: no limit.
        sleep: Waits for so many seconds.
    """

    def __init__(self, ledger: Ledger, work: str, rate: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._ledger = ledger
        self._work = work
        self._rate = rate
        self._sleep = sleep

    def chunk(self, most: int) -> int:
        """Returns how many messages should be written at a turn: those of a second, ``most`` at most."""
        return most if not self._rate else max(1, min(most, int(self._rate)))

    def wait(self, count: int) -> None:
        """Waits for the turn of so many messages."""
        if not self._rate:
            return
        span = round(count / self._rate * TICKS_PER_SECOND)
        raw = bridge.run(self._ledger.entry(self._work, 0))
        while True:
            now = bridge.run(self._ledger.now())
            turn = now if raw is None else max(now, int(raw.split()[0]))
            # Two tasks may want the same turn, and each has to see whether it got it.
            wanted = b"%d %s" % (turn + span, secrets.token_hex(8).encode())
            raw = bridge.run(exchange(self._ledger, self._work, 0, wanted, expected=raw))
            if raw == wanted:
                break
        if turn > now:
            self._sleep((turn - now) / TICKS_PER_SECOND)
