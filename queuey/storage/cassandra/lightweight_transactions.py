"""Lightweight transactions, and what to do when one is in doubt.

A transaction whose answer was lost, or that timed out, may have been applied, may be applied by the next transaction,
or may never be. One read does not show which. So the same change is sent again, after a pause, until Cassandra says
that it was applied or refused: after that nothing sent before can take effect any more. Each change therefore writes a
fresh random token (column ``version``) and demands the one it has seen, so that sending it again does no harm, and a
row that shows our own token means that it was applied before::

    send ──applied──────────────────────────────► DONE
     ▲ │ └─refused, the row has our token───────► DONE   (a removal in doubt: there is no row)
     │ ├───refused, nothing in doubt────────────► REFUSED
     │ ├───refused by another, ours in doubt────► UNCLEAR   (ours may have been applied and then changed by another)
     │ ├───error, nothing sent is in doubt──────► StoreUnavailable, outcome none
     │ ├───error, time is over or closing───────► StoreUnavailable, outcome unknown
     └─┴───error, in doubt: a pause

Every compare-and-set goes this way, by :meth:`LightweightTransactions.decide`. One does not: an append to a claim log,
which the calling process repeats itself, because it may have to give up requests meanwhile.

Tables written in this way must be written in no other: a plain write stamped ahead of a later transaction would make
that one say "applied" and change nothing.
"""

from __future__ import annotations

import math
import random
import secrets
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from queuey.errors import Outcome, QueueyError, StoreBusy, StoreClosed, StoreUnavailable
from queuey.storage.cassandra.driver import Driver, InDoubt, Request, Statement
from queuey.storage.cassandra.driver.callbacks import Done, begin, called
from queuey.storage.cassandra.driver.requests import Call
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.deadlines import Deadline

Change = Callable[[], Awaitable[Request]]
"""Returns the request of one attempt."""

MIN_PAUSE, FIRST_MAX_PAUSE, MAX_PAUSE = 0.01, 0.04, 0.5
"""Bounds of the pauses, in seconds: each is drawn evenly, up to a maximum that doubles."""
MIN_TIMEOUT = 0.1
"""Min timeout of one attempt, in seconds."""
STUCK = 5.0
"""Timeout in seconds of waiting for a change: it is in doubt, and waiting longer would block a thread."""
_LOOK_EVERY = 0.1


class ChangeResult(NamedTuple):
    """Cassandra's last word on a change.

    Attributes:
        is_done: It was applied.
        is_unclear: It was in doubt, and the row is another's now: it may have been applied and then changed.
        row: Columns of the row if it was not applied: what its conditions are about, or what was read back. The token's
            column comes last. Empty if there is no row.
    """

    is_done: bool
    is_unclear: bool = False
    row: tuple[Any, ...] = ()

    def require(self, refusal: QueueyError, what: str) -> None:
        """Raises an error unless the change was applied: ``refusal``, or one with outcome ``unknown``."""
        if not self.is_done:
            raise unclear(what) if self.is_unclear else refusal


def new_number() -> int:
    """Returns a random positive number of 62 bits: a token, or a number of a queue."""
    return secrets.randbits(62) or 1


class LightweightTransactions:
    """Sends lightweight transactions until they are decided. All methods may be called from any thread.

    Args:
        driver: Sends requests.
        options: Consistency levels and timeouts.
        boottime: Clock in seconds.
        deadline: That of the calls for which changes are sent.
    """

    def __init__(
        self,
        driver: Driver,
        options: CassandraOptions,
        boottime: Callable[[], float],
        deadline: Deadline | None = None,
    ) -> None:
        self._driver = driver
        self._options = options
        self._boottime = boottime
        self._deadline = deadline or Deadline(math.inf)
        self._turns: WeakValueDictionary[Hashable, _Turn] = WeakValueDictionary()
        self._lock = threading.Lock()
        self.doubts = 0
        """How many answers were in doubt; for metrics, roughly right under threads."""

    def run(
        self,
        statement: Statement,
        values: Sequence[Any],
        token: object = None,
        *,
        further: Sequence[Call] = (),
        read_back: Request | None = None,
    ) -> ChangeResult:
        """Runs a conditional statement, as one with ``further`` ones of its Cassandra partition; see :meth:`decide`."""
        request = self.request(statement, values, further)

        async def change() -> Request:
            return request

        if read_back is not None:
            self._driver.prepare([read_back.statement])
        return self.wait(change, token, read_back)

    def request(self, statement: Statement, values: Sequence[Any], further: Sequence[Call] = ()) -> Request:
        """Returns a conditional request at the levels of the catalogue."""
        levels = self._options.catalogue_write, self._options.catalogue_serial
        return Request(statement, values, *levels, further=further)

    def wait(self, change: Change, token: object = None, read_back: Request | None = None) -> ChangeResult:
        """Runs :meth:`decide` for a caller that blocks."""

        def start(done: Done) -> Callable[[], Outcome]:
            begin(self.decide(change, token, read_back), done)
            return lambda: "unknown"

        self._deadline.left()  # A call that is over sends nothing.
        result: ChangeResult = self._deadline.result(start, "Cassandra did not decide about a change in time")
        return result

    async def decide(self, change: Change, token: object = None, read_back: Request | None = None) -> ChangeResult:
        """Sends a change until it is applied or refused.

        Args:
            change: Makes its request. Sent more than once it must do no harm.
            token: Value of the row's last column once the change is applied; None if it writes no token.
            read_back: Reads the row, its token last, where a refusal does not show it. Without a token the change
                removes the row.

        Raises:
            StoreUnavailable: Nothing was sent that is in doubt; or with outcome ``unknown``: it stayed in doubt for
                ``catalogue_deadline``, or until the end of the call in whose thread this began.
        """
        ends = self._boottime() + self._deadline.left(self._options.catalogue_deadline)
        pause, max_pause, is_doubted = 0.0, FIRST_MAX_PAUSE, False
        while True:
            try:
                if is_doubted:
                    await called(partial(self._pause, pause))
                timeout = max(MIN_TIMEOUT, min(self._options.timeout, ends - self._boottime()))
                is_applied, *row = await self._send(await change(), timeout)
                if not is_applied and read_back is not None and (token is None or row[-1:] != [token]):
                    row = await self._send(read_back, timeout)
            except StoreUnavailable as error:
                if error.outcome == "none" and not is_doubted:
                    raise
                if isinstance(error, StoreClosed):
                    raise StoreClosed(str(error), outcome="unknown") from error
                pause = MIN_PAUSE + random.random() * (max_pause - MIN_PAUSE)  # noqa: S311 - spreads callers, guards nothing
                if self._boottime() + pause > ends:
                    text = f"a change is in doubt: {error}"
                    raise StoreUnavailable(text, outcome="unknown", retry_after=error.retry_after) from error
            else:
                is_gone = is_doubted and read_back is not None and not row
                is_done = is_applied or (is_gone if token is None else row[-1:] == [token])
                return ChangeResult(is_done, is_doubted and not is_done, tuple(row))
            is_doubted = True
            self.doubts += 1
            max_pause = min(2 * max_pause, MAX_PAUSE)

    def _pause(self, seconds: float, done: Done) -> None:
        loop = self._driver.loop
        loop.call(loop.later, seconds, partial(done, None, None))

    async def _send(self, request: Request, seconds: float) -> list[Any]:
        """Sends a request once; returns the first row of the answer, an empty list without one."""
        rows = await called(partial(self._driver.send, request._replace(timeout=seconds)))
        if not rows and not request.statement.reads:
            raise InDoubt("Cassandra did not say whether a change was applied")
        return list(rows[0]) if rows else []

    @contextmanager
    def turn(self, key: Hashable) -> Iterator[None]:
        """Serializes callers of this process that change one thing: transactions that meet hinder each other."""
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
        while not turn.lock.acquire(timeout=self._deadline.left(_LOOK_EVERY)):
            if self._boottime() - turn.began > STUCK:
                raise StoreBusy("another change of this is waiting for Cassandra")
        turn.began = self._boottime()
        try:
            yield
        finally:
            turn.began = math.inf
            turn.lock.release()


class _Turn:
    """Whose turn it is to change one thing: one caller's since ``began``. It is kept as long as somebody uses it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began = math.inf


def unclear(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} was changed by others while a change of ours was in doubt", outcome="unknown")
