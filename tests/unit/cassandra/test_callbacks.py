"""Coroutines that go on in whichever thread an answer comes in."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.driver import Driver, Request, Rows
from queuey.storage.cassandra.driver.callbacks import Done, begin, called, side_by_side, wait
from queuey.storage.deadlines import Deadline
from tests.cassandra.scripted import AnsweringDriver, ScriptedDriver


def now(value: object, done: Done) -> None:
    """Answers before it returns."""
    done(value, None)


def elsewhere(value: object, done: Done) -> None:
    """Answers from another thread."""
    threading.Thread(target=done, args=(value, None)).start()


def early(value: object, done: Done) -> None:
    """Answers from another thread before it returns."""
    thread = threading.Thread(target=done, args=(value, None))
    thread.start()
    thread.join()


@pytest.mark.parametrize("answer", [now, elsewhere, early])
def test_each_answer_is_taken_once(answer: Callable[[object, Done], None]) -> None:
    """However soon answers come, a coroutine has each of them in order, and ends once; many make it no deeper."""

    async def adding() -> int:
        return sum([await called(partial(answer, number)) for number in range(3000 if answer is now else 300)])

    ends: list[tuple[Any, Any]] = []
    over = threading.Event()

    def done(*end: Any) -> None:  # noqa: ANN401 - value and error
        ends.append(end)
        over.set()

    begin(adding(), done)
    assert over.wait(60)
    assert ends == [(sum(range(3000 if answer is now else 300)), None)]


def raised(done: Done) -> None:
    """Does not begin."""
    raise StoreUnavailable("away")


def told(done: Done) -> None:
    """Ends badly."""
    done(None, StoreUnavailable("away"))


@pytest.mark.parametrize("fail", [raised, told])
def test_errors_are_raised_where_it_waits(fail: Callable[[Done], None]) -> None:
    """An error is one of the await, whether the call was begun or not; what is not caught is told at the end."""

    async def trying() -> str:
        with pytest.raises(StoreUnavailable):
            await called(fail)
        await called(fail)
        return "never"

    ends: list[tuple[Any, Any]] = []
    begin(trying(), lambda *end: ends.append(end))
    [(value, error)] = ends
    assert (value, str(error)) == (None, "away")


def test_whoever_waits_has_a_deadline() -> None:
    """A caller that blocks gets the result, or an error when its time is over."""

    async def asking(answer: Callable[[Done], None]) -> object:
        return await called(answer)

    assert wait(Deadline(math.inf), asking(partial(elsewhere, 7)), "late") == 7
    deadline = Deadline(0.05)
    with deadline.running(), pytest.raises(StoreUnavailable, match="late") as caught:
        wait(deadline, asking(lambda _done: None), "late")
    assert caught.value.outcome == "none"


def numbered(number: int) -> Request:
    """A request with a number."""
    return Request(message_codec.COUNT[0], (number,))


class Later(AnsweringDriver):
    """Answers with a request's number, from a thread of its own, the latest of what has come meanwhile first."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: SimpleQueue[tuple[Any, Done] | None] = SimpleQueue()
        self._answering = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._answering.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._asked.put(None)
        self._answering.join()

    def send(self, request: Any, done: Done) -> None:  # noqa: ANN401 - of any kind
        """Leaves it to the thread."""
        self._asked.put((request, done))

    def _run(self) -> None:
        while (first := self._asked.get()) is not None:
            waiting = [first]
            while not self._asked.empty() and (further := self._asked.get()) is not None:
                waiting.append(further)
            for request, done in reversed(waiting):
                done([*request.values], None)


async def asking(driver: Driver, number: int, counts: Sequence[int]) -> list[Rows]:
    """Asks so many things, round by round; gives all answers."""
    found: list[Rows] = []
    for count in counts:
        found += await driver.ask_all([numbered(number * 100 + at) for at in range(count)])
    return found


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=30), st.integers(1, 9))
def test_results_in_order(plans: list[list[int]], flying: int) -> None:
    """Results come in the order of the tasks, whatever is answered first; each task gets its own answers in order."""
    with Later() as later:
        tasks = (asking(later, number, plan) for number, plan in enumerate(plans))
        found = list(side_by_side(tasks, most_running=flying))
    assert found == [
        [[number * 100 + at] for count in plan for at in range(count)] for number, plan in enumerate(plans)
    ]


def test_an_error_that_is_caught_and_one_that_is_not() -> None:
    """A task is told of an error and may go on; if it does not, the caller is told."""

    class Down(AnsweringDriver):
        """Answers only what has a number above 0."""

        def answer(self, request: Request) -> list[Any]:
            """Answers or fails."""
            if not request.values[0]:
                raise StoreUnavailable("down")
            return [*request.values]

    driver = Down()

    async def catching() -> str:
        try:
            await driver.ask_all([numbered(0), numbered(1)])
        except StoreUnavailable as error:
            return str(error)
        return "nothing happened"

    async def letting_go() -> str:
        await driver.ask_all([numbered(0)])
        return "nothing happened"

    assert list(side_by_side([catching()])) == ["down"]
    with pytest.raises(StoreUnavailable, match="down"):
        list(side_by_side([catching(), letting_go()]))


def test_few_results_wait() -> None:
    """Behind a task that takes long others go on, but no more of them than may wait."""
    started: list[int] = []
    slow = ScriptedDriver()

    async def task(number: int) -> int:
        started.append(number)
        if not number:
            await slow.ask_all([numbered(0)])
        elif number == 9:
            slow.begun[0]([], None)
        return number

    tasks = (task(number) for number in range(30))
    assert list(side_by_side(tasks, most_held=10)) == list(range(30))
    assert started == list(range(30))
