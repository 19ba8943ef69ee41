"""Coroutines that go on in whichever thread an answer comes in."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver.callbacks import Done, begin, called, side_by_side, wait
from queuey.storage.deadlines import Deadline


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
    thread.join(60)


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


async def asking(number: int, counts: Sequence[int], waiting: list[Callable[[], None]]) -> list[int]:
    """Asks so many things, one after another; what answers each of them is put into a list."""

    def ask(value: int, done: Done) -> None:
        waiting.append(partial(done, value, None))

    return [await called(partial(ask, number * 100 + at)) for at in range(sum(counts))]


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=30), st.integers(1, 9), st.integers(1, 10))
def test_results_in_order(plans: list[list[int]], running: int, held: int) -> None:
    """Results come in the order of the tasks, whatever is answered first, and no more of them wait than may."""
    waiting: list[Callable[[], None]] = []
    begun: list[int] = []
    over = threading.Event()

    def answer() -> None:
        while not over.wait(0.0001):
            while waiting:
                waiting.pop()()

    def tasks() -> Iterator[Any]:
        for number, plan in enumerate(plans):
            begun.append(number)
            yield asking(number, plan, waiting)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        found: list[Any] = []
        for result in side_by_side(tasks(), most_running=running, most_held=held):
            assert len(begun) - len(found) <= held + 1
            found.append(result)
    finally:
        over.set()
        thread.join(60)
    assert found == [[number * 100 + at for at in range(sum(plan))] for number, plan in enumerate(plans)]
