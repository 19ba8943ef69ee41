"""What becomes of lightweight transactions."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.errors import StoreBusy, StoreClosed, StoreUnavailable
from queuey.storage.cassandra.driver import Statement
from queuey.storage.cassandra.lightweight_transactions import (
    STUCK,
    CheckResult,
    Conclusion,
    LightweightTransactions,
    judge,
    new_number,
)
from queuey.storage.cassandra.options import CassandraOptions
from queuey.storage.deadlines import Deadline
from tests.cassandra.scripted import APPLIED, LOST, REFUSED, Answer, ScriptedDriver

CHANGE = Statement("UPDATE t SET version = ? WHERE k = ? IF version = ?", idempotent=False)
OURS, THEIRS = 7, 8


def cas_of(driver: ScriptedDriver, closing: threading.Event | None = None) -> LightweightTransactions:
    """A Cas that sends to a script, for ten seconds at most."""
    deadline = Deadline(15, driver.clock().boottime)
    return LightweightTransactions(
        driver.driver(), CassandraOptions(), driver.clock(), closing or threading.Event(), deadline
    )


@pytest.mark.parametrize(
    ("script", "conclusion", "sent"),
    [
        ([APPLIED], Conclusion.DONE, 1),
        ([[(False, THEIRS)]], Conclusion.REFUSED, 1),
        ([[(False,)]], Conclusion.REFUSED, 1),
        ([LOST, APPLIED], Conclusion.DONE, 2),
        ([LOST, LOST, LOST, APPLIED], Conclusion.DONE, 4),
        ([LOST, [(False, OURS)]], Conclusion.DONE, 2),
        ([LOST, [(False, THEIRS)]], Conclusion.UNCLEAR, 2),
        ([LOST, [(False,)]], Conclusion.UNCLEAR, 2),
        ([LOST, REFUSED, [(False, OURS)]], Conclusion.DONE, 3),
    ],
)
def test_sent_until_decided(script: list[Answer], conclusion: Conclusion, sent: int) -> None:
    """A change in doubt is sent again, the same, until Cassandra decides; what it says then is what happened."""
    driver = ScriptedDriver(*script)
    outcome = cas_of(driver).run(CHANGE, (OURS, "k", 6))
    assert outcome.conclude(OURS) is conclusion
    assert driver.sent == [(CHANGE, (OURS, "k", 6))] * sent


def test_nothing_written() -> None:
    """An error that certainly wrote nothing is passed on at once, as such."""
    driver = ScriptedDriver(REFUSED)
    with pytest.raises(StoreUnavailable) as raised:
        cas_of(driver).run(CHANGE, (OURS, "k", 6))
    assert raised.value is REFUSED
    assert len(driver.sent) == 1


@pytest.mark.parametrize("script", [[LOST], [LOST, REFUSED]])
def test_doubt_that_stays(script: list[Answer]) -> None:
    """A change in doubt when time is up has an unknown outcome, even if the last attempts wrote nothing."""
    driver = ScriptedDriver(*script, seconds=4.0)
    with pytest.raises(StoreUnavailable) as raised:
        cas_of(driver).run(CHANGE, (OURS, "k", 6))
    assert raised.value.outcome == "unknown"
    assert len(driver.sent) == 3


def test_closing_ends_the_waiting() -> None:
    """A store that is being closed does not wait for a decision, and says that it does not know it."""
    closing = threading.Event()
    closing.set()
    with pytest.raises(StoreClosed) as raised:
        cas_of(ScriptedDriver(LOST), closing).run(CHANGE, (OURS, "k", 6))
    assert raised.value.outcome == "unknown"


def test_closed_in_doubt() -> None:
    """A driver that was closed while a change was in doubt leaves it unknown, not undone."""
    with pytest.raises(StoreClosed) as raised:
        cas_of(ScriptedDriver(LOST, StoreClosed("closed"))).run(CHANGE, (OURS, "k", 6))
    assert raised.value.outcome == "unknown"


@given(st.booleans(), st.sampled_from(["none", "unknown"]), st.floats(-10, 10))
def test_judge(doubted: bool, outcome: str, left: float) -> None:  # noqa: FBT001 - a drawn value
    """An outcome of none is reported only when nothing sent before is in doubt, and doubts end with the deadline."""
    error = StoreUnavailable("x", outcome="none" if outcome == "none" else "unknown")
    final = judge(error, doubted=doubted, left=left)
    if final is None:
        assert doubted or outcome == "unknown"
        assert left > 0
    else:
        assert final.outcome == ("unknown" if doubted or outcome == "unknown" else "none")


def test_verdict_of_a_row_with_keys() -> None:
    """A refused batch shows the row's keys before the token, which is found all the same."""
    assert CheckResult(applied=False, seen=(1, "group", 3, OURS), doubted=True).conclude(OURS) is Conclusion.DONE
    assert CheckResult(applied=False, seen=(OURS, "group", 3, THEIRS)).conclude(OURS) is Conclusion.REFUSED


def test_numbers() -> None:
    """Tokens and queue numbers are positive, fit a bigint, and differ."""
    numbers = {new_number() for _ in range(1000)}
    assert len(numbers) == 1000
    assert all(0 < number < 1 << 62 for number in numbers)


def test_one_after_another() -> None:
    """Of the callers of this process that change one thing, one at a time does."""
    cas = cas_of(ScriptedDriver(APPLIED))
    inside: list[int] = []
    most: list[int] = []

    def change(n: int) -> None:
        with cas.turn(("queue", "a", "b")):
            inside.append(n)
            most.append(len(inside))
            inside.remove(n)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(200)))
    assert set(most) == {1}


def refused_while_held(driver: ScriptedDriver, deadline: Deadline, held: float) -> list[StoreUnavailable]:
    """Waits for a turn that somebody has had for so many seconds; returns the refusal."""
    cas = LightweightTransactions(driver.driver(), CassandraOptions(), driver.clock(), threading.Event(), deadline)
    refused: list[StoreUnavailable] = []

    def wait() -> None:
        try:
            with deadline.running(), cas.turn("key"):
                pass
        except StoreUnavailable as error:
            refused.append(error)

    with cas.turn("key"):
        driver.boottime += held
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(60)
    return refused


def test_nobody_waits_for_a_change_that_is_stuck() -> None:
    """Who would have to wait for a change that takes very long is told so at once, and has changed nothing."""
    driver = ScriptedDriver(APPLIED)
    [error] = refused_while_held(driver, Deadline(15, driver.clock().boottime), STUCK + 0.1)
    assert isinstance(error, StoreBusy)
    assert error.outcome == "none"


def test_a_turn_ends_with_the_call() -> None:
    """Who waits for a turn is told so when his call has no time left."""
    driver = ScriptedDriver(APPLIED)
    [error] = refused_while_held(driver, Deadline(0.3), 0.0)
    assert (type(error), error.outcome) == (StoreUnavailable, "none")


def test_different_things_do_not_wait_for_each_other() -> None:
    """Any number of other things can be changed while one is, and nothing is kept of them afterwards."""
    cas = cas_of(ScriptedDriver(APPLIED))
    with cas.turn("key"):
        for number in range(1000):
            with cas.turn(number):
                pass
    assert not cas._turns
