"""Light checks of the clock: a question to two coordinators for all answers to writes that have come.

The answers that come in one turn of the loop share a check, which begins in the next one. It never serves an answer
that came after it began. Several checks may be on their way. States of one::

    asking ──(all are good)──► told
       ├──(no answer in time)──► asking another coordinator in its place
       └──(one is not good, or there is no further coordinator)──► all are asked

Two, because one may be on the very machine that stood still. All of it runs in the thread of the store's loop.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from functools import partial

from queuey.errors import StoreUnavailable
from queuey.ids import EPOCH_TICKS
from queuey.storage.cassandra.clocks.clock_check import ClockCheck
from queuey.storage.cassandra.clocks.intervals import measured
from queuey.storage.cassandra.driver import Driver, Encoded, Rows, Statement

log = logging.getLogger(__name__)

NOW = Statement("SELECT now() FROM system_virtual_schema.keyspaces WHERE keyspace_name = 'system_views'")
"""A row that every role may read and that costs a node little: it is made in memory, not read from a table."""
Told = Callable[[StoreUnavailable | None], object]

_time_at = struct.Struct(">IHH").unpack_from
_FIRST_VALUE = 20
"""Number of bytes before the value in an answer of one row of one column, without a description of it."""


def decode(body: bytes) -> Rows:
    """Returns the row of an answer: the coordinator's time in ticks."""
    low, middle, high = _time_at(body, _FIRST_VALUE)
    return [((high & 0x0FFF) << 48 | middle << 32 | low,)]


class _Check:
    __slots__ = ("left", "nodes", "waiting")

    def __init__(self, waiting: list[Told], judge: ClockCheck) -> None:
        self.waiting = waiting
        self.nodes = iter(judge.fastest)
        """Those that were not asked yet."""
        self.left = max(1, judge.witnesses)
        """Good answers that are still to come; none: it has ended."""


class LightChecks:
    """The checks of one store."""

    def __init__(
        self,
        driver: Driver,
        since_boot: Callable[[], int],
        judge: ClockCheck,
        patience: Callable[[], float],
        ask_all: Callable[[Told], None],
    ) -> None:
        self._driver = driver
        self._since_boot = since_boot
        self._judge = judge
        self._patience = patience
        self._ask_all = ask_all
        self._waiting: list[Told] = []
        """For the check that begins in the next turn."""

    def begin(self, told: Told) -> None:
        self._waiting.append(told)
        if len(self._waiting) == 1:
            self._driver.loop.soon(self._check)

    def tell(self, waiting: Iterable[Told], error: StoreUnavailable | None) -> None:
        for told in waiting:
            try:
                told(error)
            except Exception:
                log.exception("The result of a write could not be delivered.")

    def _check(self) -> None:
        waiting, self._waiting = self._waiting, []
        check = _Check(waiting, self._judge)
        for _ in range(check.left):
            self._ask(check)

    def _ask(self, check: _Check) -> None:
        """Asks the next coordinator; without one the check is not good."""
        node = next(check.nodes, None)
        if node is None:
            self._end(check, good=False)
            return
        request = Encoded(NOW, 0, (b"",), b"", "ONE", decode, timeout=self._patience(), host=node)
        done = partial(self._answered, check, node, self._since_boot())
        try:
            self._driver.send(request, done)
        except Exception as error:
            log.exception("The clock could not be checked.")
            done(None, StoreUnavailable(f"the clock could not be checked: {error}"))

    def _answered(self, check: _Check, node: str, sent: int, rows: Rows | None, error: StoreUnavailable | None) -> None:
        good = False
        try:
            if rows is None or error is not None:
                self._judge.slow(node)
                self._ask(check)
                return
            theirs = (rows[0][0] - EPOCH_TICKS) * 100
            good = self._judge.agrees(node, measured(sent, self._since_boot(), theirs))
        except Exception:
            log.exception("The clock could not be checked.")
        self._end(check, good=good)

    def _end(self, check: _Check, *, good: bool) -> None:
        """Ends the check with the last answer, or with one that is not good."""
        if check.left <= 0:
            return
        check.left = check.left - 1 if good else 0
        if not good:
            self._ask_all(partial(self.tell, check.waiting))
        elif not check.left:
            self.tell(check.waiting, None)
