"""Lightweight transactions, and how a transaction in doubt is resolved.

A transaction that timed out, or whose answer was lost, may have been applied, may be applied by the next transaction,
or may never be applied. One read does not show which. So the same change is sent again, after a pause, until Cassandra
reports it as applied or refused. After that, nothing sent before can take effect any more. Each change therefore writes
a new random token (column ``version``) and requires the one it has read. So sending it again does no harm, and a row
with our own token means that the change was applied before::

    send ──applied──────────────────────────────► DONE
     ▲ │ └─refused, the row has our token───────► DONE   (a removal in doubt: the row is gone)
     │ ├───refused, nothing in doubt────────────► REFUSED
     │ ├───refused by another, ours in doubt────► UNCLEAR   (ours may have been applied and then changed by another)
     │ ├───error, nothing sent is in doubt──────► StoreUnavailable, outcome none
     │ ├───error, timed out or closing──────────► StoreUnavailable, outcome unknown
     └─┴───error, in doubt: a pause

Every compare-and-set uses :meth:`LightweightTransactions.decide`, except appends to a claim log. The calling process
repeats those itself, because it may have to give up requests meanwhile.

Rows of these tables must be written by lightweight transactions only. A plain write with a timestamp ahead of a later
transaction would make that transaction report "applied" and change nothing.
"""

from __future__ import annotations

import math
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from queuey.model.errors import QueueyError, StoreBusy, StoreClosed, StoreUnavailable
from queuey.storage.cassandra.cluster import Driver, Encoded, InDoubt, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.store_loop import wait_for_callback
from queuey.storage.cassandra.protocol.requests import Call
from queuey.storage.deadlines import Done


class DocumentStatements:
    """Statements on a table of documents: rows that are compared and set by their column ``version``.

    A row without a version does not exist.

    Args:
        expires: Changes have a TTL; 0 keeps the row.

    Attributes:
        find: Selects the columns, and the version last.
        change: Sets the columns and the version if the row has the expected version; None if the row must not exist.
        remove: Deletes the row if it has the expected version.
    """

    def __init__(self, table: str, key: str, columns: str, *, expires: bool = False) -> None:
        where = "WHERE " + " AND ".join(f"{column} = ?" for column in key.split(", "))
        assignments = ", ".join(f"{column} = ?" for column in (*columns.split(", "), "version"))
        using = " USING TTL ?" if expires else ""
        self.table = table
        self.find = Statement(f"SELECT {columns}, version FROM {table} {where}")
        self.change = Statement(f"UPDATE {table}{using} SET {assignments} {where} IF version = ?", idempotent=False)
        self.remove = Statement(f"DELETE FROM {table} {where} IF version = ?", idempotent=False)


Change = Callable[[], Awaitable[StatementRequest]]

MIN_PAUSE, FIRST_MAX_PAUSE, MAX_PAUSE = 0.01, 0.04, 0.5
"""Bounds of the pauses, in seconds. Each pause is random, up to a maximum that doubles each time."""
MIN_TIMEOUT = 0.1
MAX_TURN_SECONDS = 5.0
"""Max seconds of a change while others wait for it. A longer one is in doubt."""
_WAKE_INTERVAL = 0.1


class ChangeResult(NamedTuple):
    """Cassandra's final answer to a change.

    Attributes:
        is_done: The change was applied.
        is_unclear: The change was in doubt, and the row is now another's: it may have been applied and then changed.
        row: Columns of the row if the change was not applied: the columns in its conditions, or those that were read
            back. The token comes last. Empty if there is no row.
    """

    is_done: bool
    is_unclear: bool = False
    row: tuple[Any, ...] = ()

    def require(self, refusal: QueueyError, what: str) -> None:
        """Raises unless the change was applied: ``refusal``, or an error with outcome ``unknown``."""
        if not self.is_done:
            raise make_unclear_error(what) if self.is_unclear else refusal


def new_number() -> int:
    return secrets.randbits(62) or 1


class LightweightTransactions:
    """Sends lightweight transactions until they are decided. Its coroutines run in the thread of the store's loop.

    ``wait`` blocks another thread until the change is decided.
    """

    def __init__(self, driver: Driver, options: CassandraOptions, boottime: Callable[[], float]) -> None:
        self._driver = driver
        self._options = options
        self._boottime = boottime
        self._turns: dict[Hashable, deque[ChangeTurn]] = {}
        self.doubts = 0

    async def run(
        self,
        statement: Statement,
        values: Sequence[Any],
        token: object = None,
        *,
        further: Sequence[Call] = (),
        read_back: StatementRequest | None = None,
    ) -> ChangeResult:
        request = self.make_request(statement, values, further)

        async def change() -> StatementRequest:
            return request

        return await self.decide(change, token, read_back)

    async def set_document(
        self,
        statements: DocumentStatements,
        key: tuple[Any, ...],
        values: Sequence[Any],
        token: int,
        expected: int | None,
    ) -> ChangeResult:
        """Sets a document and its version ``token`` if it has the version ``expected``.

        ``values`` begin with the TTL if documents expire. If ``expected`` is None, the document must not exist.
        """
        async with self.turn((statements.table, *key)):
            return await self.run(statements.change, (*values, token, *key, expected), token)

    async def remove_document(
        self, statements: DocumentStatements, key: tuple[Any, ...], expected: int
    ) -> ChangeResult:
        read_back = StatementRequest(statements.find, key, self._options.catalogue_serial)
        async with self.turn((statements.table, *key)):
            return await self.run(statements.remove, (*key, expected), read_back=read_back)

    def wait(self, statement: Statement, values: Sequence[Any], token: object = None) -> ChangeResult:
        return self._driver.calls.run(self.run(statement, values, token))

    def make_request(
        self, statement: Statement, values: Sequence[Any], further: Sequence[Call] = ()
    ) -> StatementRequest:
        levels = self._options.catalogue_write, self._options.catalogue_serial
        return StatementRequest(statement, values, *levels, further=further)

    async def decide(
        self, change: Change, token: object = None, read_back: StatementRequest | Encoded | None = None
    ) -> ChangeResult:
        """Sends a change until it is applied or refused.

        Args:
            change: Makes the request. Sending it more than once must do no harm.
            token: Value of the row's last column once the change is applied; None if the change writes no token.
            read_back: Reads the row, its token last, if a refusal does not show it. Without a token, the change removes
                the row.

        Raises:
            StoreUnavailable: Nothing that was sent is in doubt. With outcome ``unknown``, the change stayed in doubt
                for ``catalogue_deadline`` or until the end of the call.
        """
        ends = self._boottime() + self._driver.calls.deadline.time_left(self._options.catalogue_deadline)
        pause, max_pause, is_doubted = 0.0, FIRST_MAX_PAUSE, False
        while True:
            try:
                if is_doubted:
                    await self._driver.loop.sleep(pause)
                timeout = max(MIN_TIMEOUT, min(self._options.timeout, ends - self._boottime()))
                is_applied, *row = await self._send(await change(), timeout)
                if not is_applied and read_back is not None and (token is None or row[-1:] != [token]):
                    row = await self._send(read_back, timeout)
            except StoreUnavailable as error:
                if error.outcome == "none" and not is_doubted:
                    raise
                if isinstance(error, StoreClosed):
                    raise StoreClosed(str(error), outcome="unknown") from error
                pause = MIN_PAUSE + random.random() * (max_pause - MIN_PAUSE)  # noqa: S311 - spreads callers, protects nothing
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

    async def _send(self, request: StatementRequest | Encoded, seconds: float) -> list[Any]:
        rows = await self._driver.ask(request._replace(timeout=seconds))
        if not rows and not request.statement.reads:
            raise InDoubt("Cassandra did not say whether a change was applied")
        return list(rows[0]) if rows else []

    def turn(self, key: Hashable) -> ChangeTurn:
        """Serializes this process's changes of one thing: concurrent transactions slow each other down."""
        return ChangeTurn(self, key)

    async def enter(self, key: Hashable, turn: ChangeTurn) -> None:
        """Waits for the turn, in order of arrival. Raises StoreBusy if the turn before takes too long."""
        waiting = self._turns.setdefault(key, deque())
        waiting.append(turn)
        try:
            while waiting[0] is not turn:
                await wait_for_callback(partial(self._await_wake_up, turn))
                self._check_waiting_time(waiting[0])
        except BaseException:
            self.leave(key, turn)
            raise
        turn.began = self._boottime()

    def _check_waiting_time(self, first: ChangeTurn) -> None:
        self._driver.calls.deadline.time_left()
        if self._boottime() - first.began > MAX_TURN_SECONDS:
            raise StoreBusy("another change of the same row is waiting for Cassandra")

    def _await_wake_up(self, turn: ChangeTurn, done: Done) -> None:
        turn.go_on = partial(done, None, None)
        self._driver.loop.later(_WAKE_INTERVAL, turn.wake)

    def leave(self, key: Hashable, turn: ChangeTurn) -> None:
        waiting = self._turns[key]
        waiting.remove(turn)
        if waiting:
            # In the loop's next turn: otherwise, hundreds that leave at once would nest in each other.
            with suppress(StoreClosed):
                self._driver.loop.soon(waiting[0].wake)
        else:
            del self._turns[key]


class ChangeTurn:
    """A caller's turn to change one thing. It has begun at ``began``."""

    def __init__(self, transactions: LightweightTransactions, key: Hashable) -> None:
        self._transactions = transactions
        self._key = key
        self.began = math.inf
        self.go_on: Callable[[], object] | None = None
        """Called when the turn may have come."""

    def wake(self) -> None:
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            go_on()

    async def __aenter__(self) -> None:
        await self._transactions.enter(self._key, self)

    async def __aexit__(self, *_: object) -> None:
        self._transactions.leave(self._key, self)


def make_unclear_error(what: str) -> StoreUnavailable:
    return StoreUnavailable(f"{what} was changed by others while a change of ours was in doubt", outcome="unknown")
