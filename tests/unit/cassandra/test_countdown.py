"""Requests side by side: how many of them, and who waits for them."""

from __future__ import annotations

import threading

import pytest

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import Request, Statement
from queuey.storage.deadlines import Deadline
from tests.cassandra.scripted import AnsweringDriver, ScriptedDriver

READ, WRITE = Statement("SELECT a FROM b"), Statement("INSERT INTO b (a) VALUES (?)")


def test_answers_come_in_the_order_of_the_requests() -> None:
    """Whichever is answered first, rows are those of their requests; so are errors."""
    driver, error = ScriptedDriver(), StoreUnavailable("no")
    told: list[object] = []
    driver.send_all([Request(READ)] * 3, lambda *ends: told.extend(ends))
    driver.begun[2]([("c",)], None)
    driver.begun[0]([("a",)], None)
    assert not told
    driver.begun[1](None, error)
    assert told == [[[("a",)], [], [("c",)]], [error]]


def test_no_more_are_on_the_way_than_was_said() -> None:
    """A further request is sent when one before it has been answered."""
    driver = ScriptedDriver()
    gathering = threading.Thread(target=driver.gather, args=([Request(READ)] * 5,), kwargs={"most": 2})
    gathering.start()
    while gathering.is_alive():
        waiting = [*driver.begun]
        assert len(waiting) <= 2
        for done in waiting:
            driver.begun.remove(done)
            done([], None)
    assert len(driver.sent) == 5


@pytest.mark.parametrize("number", [1, 3])
def test_answers_that_never_come_are_waited_for_until_the_deadline(number: int) -> None:
    """A call does not wait for an answer, or to send a request, for longer than it may."""
    driver = ScriptedDriver()
    driver._deadline = Deadline(0.05)
    with driver._deadline.running(), pytest.raises(StoreUnavailable) as late:
        driver.gather([Request(WRITE)] * number, most=1)
    assert late.value.outcome == "unknown"
    assert len(driver.sent) == 1


def test_writes_of_which_some_were_made_are_in_doubt() -> None:
    """However certain it is that the others were not; of reads nothing is in doubt."""

    class Half(AnsweringDriver):
        """Fails what has values."""

        def answer(self, request: Request) -> list[object]:
            """Answers or fails."""
            if request.values:
                raise StoreUnavailable("no")
            return []

    driver = Half()
    for statement, outcome in ((WRITE, "unknown"), (READ, "none")):
        with pytest.raises(StoreUnavailable) as failed:
            driver.gather([Request(statement), Request(statement, (1,))])
        assert failed.value.outcome == outcome
    with pytest.raises(StoreUnavailable) as failed:
        driver.run(WRITE, (1,))
    assert failed.value.outcome == "none"
