"""Lightweight transactions, and what to do when one is in doubt.

A transaction whose answer was lost, or that timed out, may have been applied, may be applied by the next transaction,
or may never be. One read does not show which. So the same statement is sent again until Cassandra says that it was
applied or refused: after that nothing sent before can take effect any more. Each change therefore writes a fresh random
token (column ``version``) and demands the one it has seen, so that sending it again does no harm, and a refusal that
shows our own token means that it was applied before::

    send ──applied──────────────────────────────► DONE
     ▲ │ └─refused, shows our token─────────────► DONE
     │ ├───refused, nothing in doubt────────────► REFUSED
     │ ├───refused by another, ours in doubt────► UNCLEAR   (ours may have been applied and then changed by another)
     │ ├───error, nothing sent is in doubt──────► StoreUnavailable, outcome none
     │ ├───error, deadline over or closing──────► StoreUnavailable, outcome unknown
     └─┴───error, in doubt: a pause

Tables written in this way must be written in no other: a plain write stamped ahead of a later transaction would make
that one say "applied" and change nothing.
"""

from __future__ import annotations

import enum
import math
import random
import secrets
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from queuey.errors import StoreBusy, StoreClosed, StoreUnavailable
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.driver import Driver, Rows, Statement
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.deadlines import Deadline

Call = tuple[Statement, Sequence[Any]]

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5
STUCK = 5.0
"""Timeout in seconds of waiting for a change: it is in doubt, and waiting longer would block a thread."""
_LOOK_EVERY = 0.1


class Conclusion(enum.Enum):
    """The result of a change that carries a token."""

    DONE = "done"
    REFUSED = "refused"
    UNCLEAR = "unclear"


class CheckResult(NamedTuple):
    """Cassandra's last word on a lightweight transaction.

    Attributes:
        applied: The last time it was sent it was applied.
        seen: The columns that the conditions are about, as they were found; empty if there is no row. The token's
            column comes last.
        doubted: It was sent before without an answer.
    """

    applied: bool
    seen: tuple[Any, ...] = ()
    doubted: bool = False

    def conclude(self, token: int) -> Conclusion:
        if self.applied or (self.seen and self.seen[-1] == token):
            return Conclusion.DONE
        return Conclusion.UNCLEAR if self.doubted else Conclusion.REFUSED


def new_number() -> int:
    """Returns a random positive number of 62 bits: a token, or a number of a queue."""
    return secrets.randbits(62) or 1


def read_outcome(rows: Rows, *, doubted: bool) -> CheckResult:
    first = rows[0]
    return CheckResult(bool(first[0]), tuple(first[1:]), doubted)


def judge(error: StoreUnavailable, *, doubted: bool, left: float) -> StoreUnavailable | None:
    """Returns what to raise for the error of a transaction, None to send it again within ``left`` seconds."""
    if not doubted and error.outcome == "none":
        return error
    if isinstance(error, StoreClosed):
        return StoreClosed(str(error), outcome="unknown")
    if left <= 0:
        return StoreUnavailable(f"a change is in doubt: {error}", outcome="unknown", retry_after=error.retry_after)
    return None


class LightweightTransactions:
    """Sends lightweight transactions until they are decided. All methods may be called from any thread."""

    def __init__(
        self, driver: Driver, options: CassandraOptions, clock: Clock, closing: threading.Event, deadline: Deadline
    ) -> None:
        self._driver = driver
        self._options = options
        self._clock = clock
        self._closing = closing
        self._deadline = deadline
        self._turns: dict[Hashable, _Turn] = {}
        self._lock = threading.Lock()
        self.doubts = 0
        """How many answers were in doubt; for metrics, roughly right under threads."""

    def run(self, statement: Statement, values: Sequence[Any]) -> CheckResult:
        """Runs one conditional statement."""
        return self.settle(lambda timeout: self.send(statement, values, timeout))

    def batch(self, calls: Sequence[Call]) -> CheckResult:
        """Runs statements of one Cassandra partition as one, of which one has a condition; raises like :meth:`run`."""
        (statement, values), *further = calls
        return self.settle(lambda timeout: self.send(statement, values, timeout, further))

    def send(self, statement: Statement, values: Sequence[Any], timeout: float, further: Sequence[Call] = ()) -> Rows:
        return self._driver.run(
            statement,
            values,
            self._options.catalogue_write,
            serial=self._options.catalogue_serial,
            timeout=timeout,
            further=further,
        )

    def settle(self, send: Callable[[float], Rows]) -> CheckResult:
        """Sends something until it is decided; raises like :meth:`run`.

        Args:
            send: Sends it and returns the answer, given its timeout in seconds. What it sends must do no harm when it
                is applied more than once.
        """
        until = self._clock.boottime() + self._deadline.left(self._options.catalogue_deadline)
        pause = FIRST_PAUSE
        doubted = False
        while True:
            left = until - self._clock.boottime()
            try:
                return read_outcome(send(max(0.1, min(self._options.timeout, left))), doubted=doubted)
            except StoreUnavailable as error:
                final = judge(error, doubted=doubted, left=until - self._clock.boottime())
                if final is not None:
                    raise final from error
            doubted = True
            self.doubts += 1
            if self._closing.wait(pause * (0.5 + random.random())):  # noqa: S311 - spreads callers, guards nothing
                raise StoreClosed("the store is closing; a change is in doubt", outcome="unknown")
            pause = min(2 * pause, LONGEST_PAUSE)

    @contextmanager
    def turn(self, key: Hashable) -> Iterator[None]:
        """Serializes callers of this process that change one thing: transactions that meet hinder each other."""
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.users += 1
        try:
            while not turn.lock.acquire(timeout=self._deadline.left(_LOOK_EVERY)):
                if self._clock.boottime() - turn.began > STUCK:
                    raise StoreBusy("another change of this is waiting for Cassandra")
            turn.began = self._clock.boottime()
            try:
                yield
            finally:
                turn.began = math.inf
                turn.lock.release()
        finally:
            with self._lock:
                turn.users -= 1
                if not turn.users:
                    del self._turns[key]


class _Turn:
    """Whose turn it is to change one thing: ``users`` want to, and one of them may since ``began``."""

    __slots__ = ("began", "lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.began = math.inf


def unclear(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} was changed by others while a change of ours was in doubt", outcome="unknown")
