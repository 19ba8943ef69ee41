"""Tests of lightweight transactions and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import StoreBusy, StoreClosed, StoreUnavailable
from queuey.storage.cassandra.cluster import InDoubt, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.store_loop import StoreLoop, wait_for_callback
from queuey.storage.cassandra.statements.lightweight_transactions import (
    FIRST_MAX_PAUSE,
    MAX_PAUSE,
    MAX_TURN_SECONDS,
    MIN_PAUSE,
    ChangeResult,
    LightweightTransactions,
)
from queuey.storage.deadlines import Deadline, Done
from tests.storage.cassandra.cluster.test_calls import CallResults
from tests.storage.cassandra.simulated import FaultlessDriver

CHANGE = Statement("UPDATE queues SET version = ? WHERE application = ? AND name = ? IF version = ?", idempotent=False)
REMOVE = Statement("DELETE FROM queues WHERE application = ? AND name = ? IF version = ?", idempotent=False)
ROW = Statement("INSERT INTO queues (application, name, version) VALUES (?, ?, ?) IF NOT EXISTS", idempotent=False)
FIND = StatementRequest(
    Statement("SELECT version FROM queues WHERE application = ? AND name = ?"), ("a", "q"), "SERIAL"
)
OUR_VERSION, THEIR_VERSION, OLD_VERSION = 7, 8, 6
LOST, REFUSED = InDoubt("no answer"), StoreUnavailable("no node is up", retry_after=9)
CLOSED = StoreClosed("the store is closed")
DONE, REFUSAL = ChangeResult(is_done=True), ChangeResult(is_done=False)
UNCLEAR = ChangeResult(is_done=False, is_unclear=True)
OURS, THEIRS = ChangeResult(is_done=True, row=(OUR_VERSION,)), ChangeResult(is_done=False, row=(THEIR_VERSION,))
UNCLEAR_THEIRS = ChangeResult(is_done=False, row=(THEIR_VERSION,), is_unclear=True)


class Changing:
    """Transactions of a process, and the row that they change; pauses take no time.

    Args:
        version: The version of the row; None: the row does not exist.
        call: Timeout of a call, in seconds.
        seconds: Seconds that each answer takes.
        seed: Seed of all randomness.
    """

    def __init__(
        self, version: int | None = OLD_VERSION, *, call: float = 15.0, seconds: float = 0.0, seed: int = 1
    ) -> None:
        self.driver = FaultlessDriver(seed=seed)
        if version is not None:
            self.driver.run(ROW, ("a", "q", version))
        self.errors: list[StoreUnavailable] = []
        """The results of the next requests; if `endless`, the last one repeats for ever."""
        self.endless = False
        self.pauses: list[float] = []
        self.seconds = seconds
        self.driver.fail = self._fail
        self.driver.sent.clear()
        boottime = self.driver.clock().boottime
        self.deadline = self.driver.calls.deadline = Deadline(call, boottime)
        self.cas = LightweightTransactions(self.driver, CassandraOptions(), boottime)
        self.driver.loop.later = self._pause  # type: ignore[method-assign]

    def _fail(self, _request: object) -> StoreUnavailable | None:
        """Lets time pass for an answer, and returns its error, or None after the last one."""
        self.driver.advance(self.seconds)
        if not self.errors:
            return None
        return self.errors[0] if self.endless and len(self.errors) == 1 else self.errors.pop(0)

    def _pause(self, seconds: float, call: Callable[[], object]) -> None:
        self.pauses.append(seconds)
        self.driver.advance(seconds)
        call()

    def change(self) -> ChangeResult:
        return self.run(CHANGE, (OUR_VERSION, "a", "q", OLD_VERSION), OUR_VERSION)

    def run(self, *change: Any, read_back: StatementRequest | None = None) -> ChangeResult:  # noqa: ANN401 - see the transactions
        return self.driver.run_to_end(self.cas.run(*change, read_back=read_back))

    def fail(self, *errors: StoreUnavailable) -> StoreUnavailable:
        """Makes a change whose requests fail with these errors, from the last one on always; returns its own error."""
        self.errors, self.endless = [*errors], True
        with pytest.raises(StoreUnavailable) as raised:
            self.change()
        return raised.value


BY_UID = Statement("DELETE FROM queues WHERE application = ? AND name = ? IF uid = ?", idempotent=False)
UPDATED = (CHANGE, (OUR_VERSION, "a", "q", OLD_VERSION), OUR_VERSION)
READ_BACK = (BY_UID, ("a", "q", 5), OUR_VERSION)
"""A change whose refusal does not show the token, so that the row that is read back decides."""
REMOVED = (REMOVE, ("a", "q", OLD_VERSION))
"""A removal, after whose doubt a missing row means that it was applied."""


@pytest.mark.parametrize(
    ("change", "version", "errors", "result"),
    [
        (UPDATED, OLD_VERSION, [], DONE),
        (UPDATED, THEIR_VERSION, [], THEIRS),
        (UPDATED, None, [], REFUSAL),
        (UPDATED, OLD_VERSION, [LOST], DONE),
        (UPDATED, OLD_VERSION, [LOST, LOST, LOST], DONE),
        (UPDATED, OUR_VERSION, [LOST], OURS),
        (UPDATED, OUR_VERSION, [], OURS),
        (UPDATED, THEIR_VERSION, [LOST], UNCLEAR_THEIRS),
        (UPDATED, None, [LOST], UNCLEAR),
        (UPDATED, OUR_VERSION, [LOST, REFUSED], OURS),
        (READ_BACK, THEIR_VERSION, [], THEIRS),
        (READ_BACK, OUR_VERSION, [], OURS),
        (READ_BACK, None, [], REFUSAL),
        (READ_BACK, THEIR_VERSION, [LOST], UNCLEAR_THEIRS),
        (REMOVED, None, [], REFUSAL),
        (REMOVED, None, [LOST], DONE),
        (REMOVED, THEIR_VERSION, [LOST], UNCLEAR_THEIRS),
    ],
)
def test_sent_until_decided(
    change: tuple[Any, ...], version: int | None, errors: Sequence[StoreUnavailable], result: ChangeResult
) -> None:
    """A change in doubt is sent again unchanged until Cassandra decides, and gets that answer."""
    changing = Changing(version)
    changing.errors = [*errors]
    assert changing.run(*change, read_back=None if change is UPDATED else FIND) == result
    assert changing.driver.count([change[0]]) == 1 + len(errors)
    assert changing.cas.doubts == len(changing.pauses) == len(errors)
    assert change is not UPDATED or len(changing.driver.sent) == 1 + len(errors)
    assert change is not READ_BACK or changing.driver.sent[-1].statement == FIND.statement


@given(st.lists(st.sampled_from([LOST, REFUSED]), max_size=4), st.sampled_from([LOST, REFUSED, CLOSED]))
def test_outcome_of_an_error(before: list[StoreUnavailable], last: StoreUnavailable) -> None:
    """The outcome is "none" only if no attempt is in doubt; an attempt that was not sent fails at once."""
    changing = Changing()
    error = changing.fail(*before, last)
    first, *_ = errors = [*before, last]
    assert error.outcome == ("none" if first.outcome == "none" else "unknown")
    if first.outcome == "none":
        assert (error, len(changing.driver.sent)) == (first, 1)
    elif last is CLOSED:
        assert (type(error), len(changing.driver.sent)) == (StoreClosed, len(errors))
    else:
        assert (type(error), error.retry_after) == (StoreUnavailable, last.retry_after)


def test_pauses() -> None:
    """Pauses are drawn evenly up to a bound that doubles, and none is too short for a node in trouble."""
    pauses = [pause for seed in range(20) for pause in pauses_of(Changing(seed=seed))]
    bounds = [min(MAX_PAUSE, FIRST_MAX_PAUSE * 2**number) for number in range(20)]
    assert all(MIN_PAUSE <= pause <= bound for pause, bound in zip(pauses_of(Changing()), bounds, strict=False))
    assert min(pauses) < MAX_PAUSE / 20
    assert max(pauses) > MAX_PAUSE * 0.9


def pauses_of(changing: Changing) -> list[float]:
    changing.fail(LOST)
    return changing.pauses


@pytest.mark.parametrize(("call", "allowed"), [(100.0, CassandraOptions().catalogue_deadline), (3.0, 3.0)])
def test_doubts_end_in_time(call: float, allowed: float) -> None:
    """A change is sent again within its deadline and that of the call; requests have no longer timeouts."""
    changing = Changing(call=call, seconds=0.3)
    began = changing.driver.world.now
    assert changing.fail(LOST).outcome == "unknown"
    lasted = changing.driver.world.now - began
    assert allowed - MAX_PAUSE - 0.3 <= lasted <= allowed + 0.4
    first, *_, last = changing.driver.sent
    assert (first.timeout or 0.0) == pytest.approx(min(allowed, CassandraOptions().timeout), abs=0.01)
    assert (last.timeout or 9.0) <= allowed - lasted + 0.4


def test_answers_that_say_nothing() -> None:
    """An answer without a row leaves the change in doubt."""
    changing = Changing()
    ask = changing.driver.send
    changing.driver.send = lambda request, done: done([], None)  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match="did not say") as raised:
        changing.change()
    assert raised.value.outcome == "unknown"
    changing.driver.send = ask  # type: ignore[method-assign]
    assert changing.change() == DONE


@pytest.mark.parametrize("shown", [(OLD_VERSION,), (None,), ()])
def test_removals_have_no_token(shown: tuple[int | None, ...]) -> None:
    """A removal is applied or refused: neither a row without a version nor a missing row counts as its own."""
    changing = Changing(OLD_VERSION if OLD_VERSION in shown else None)
    if None in shown:
        row = Statement("INSERT INTO queues (application, name, uid) VALUES (?, ?, ?) IF NOT EXISTS", idempotent=False)
        assert changing.run(row, ("a", "q", 5)) == DONE
    assert changing.run(REMOVE, ("a", "q", THEIR_VERSION)) == ChangeResult(is_done=False, row=shown)


@pytest.mark.parametrize(
    ("held", "allowed", "kind"), [(MAX_TURN_SECONDS + 0.1, 15.0, StoreBusy), (0.0, 0.3, StoreUnavailable)]
)
def test_nobody_waits_for_a_change_that_is_stuck(held: float, allowed: float, kind: type[StoreUnavailable]) -> None:
    """A caller that would have to wait very long, or longer than its time, gets an error with the outcome "none"."""
    driver = FaultlessDriver()
    driver.calls.deadline = Deadline(allowed, driver.clock().boottime)
    cas = LightweightTransactions(driver, CassandraOptions(), driver.clock().boottime)
    ends, changing = CallResults(), Inside(cas, driver.loop)
    driver.calls.begin(changing.change("first"), ends)
    driver.advance(held)
    driver.calls.begin(changing.change("second"), ends)
    driver.advance(1.0)
    [(_, error)] = ends.told
    assert (type(error), error.outcome) == (kind, "none")
    changing.go_on()
    assert changing.names == ["first", "first"]
    assert len(cas._turns) == 0


class Inside:
    """Callers that change one thing; each takes as long as the test says.

    Args:
        cas: The transactions, which lock the thing.
        loop: The loop of the callers.
    """

    def __init__(self, cas: LightweightTransactions, loop: StoreLoop) -> None:
        self._cas = cas
        self._loop = loop
        self._waiting: list[Done] = []
        self.names: list[str] = []

    async def change(self, name: str) -> None:
        async with self._cas.turn("key"):
            self.names.append(name)
            await wait_for_callback(self._waiting.append)
            self.names.append(name)

    def go_on(self) -> None:
        self._waiting.pop()(None, None)
