"""Calls of a store: coroutines that run in the thread of its loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.storage import bridge
from queuey.storage.cassandra.cluster.store_loop import Calls, StoreLoop, run_concurrently, wait_for_callback
from queuey.storage.deadlines import Deadline, Done
from tests.storage.cassandra.simulated import FaultlessDriver
from tests.waiting import PATIENCE_SECONDS, join, until


@pytest.fixture
def calls() -> Iterator[Calls]:
    opened = Calls(StoreLoop(), Deadline(PATIENCE_SECONDS))
    yield opened
    opened.loop.close()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class CallResults:
    """The results of calls."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, Any]] = []

    def __call__(self, value: object, error: object) -> None:
        self.told.append((value, error))


def answer_at_once(value: object, done: Done) -> None:
    done(value, None)


def answer_from_thread(value: object, done: Done) -> None:
    threading.Thread(target=done, args=(value, None)).start()


def answer_before_return(value: object, done: Done) -> None:
    thread = threading.Thread(target=done, args=(value, None))
    thread.start()
    join(thread)


@pytest.mark.parametrize("answer", [answer_at_once, answer_from_thread, answer_before_return])
def test_each_answer_is_taken_once(calls: Calls, answer: Callable[[object, Done], None]) -> None:
    """A call gets each answer in order, in the loop's thread, and ends once, from whichever thread answers come."""
    count, threads = 3000 if answer is answer_at_once else 300, set[int]()

    async def adding() -> int:
        total = 0
        for number in range(count):
            total += await wait_for_callback(partial(answer, number))
            threads.add(threading.get_ident())
        return total

    ends = CallResults()
    calls.begin(adding(), ends)
    until(lambda: ends.told)
    assert ends.told == [(sum(range(count)), None)]
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


def raise_away(done: Done) -> None:
    raise StoreUnavailable("away")


def report_away(done: Done) -> None:
    done(None, StoreUnavailable("away"))


@pytest.mark.parametrize("fail", [raise_away, report_away])
def test_errors_are_raised_where_it_waits(calls: Calls, fail: Callable[[Done], None]) -> None:
    """An error is raised by the await, whether the request was begun or not; an uncaught one ends the call."""

    async def trying() -> str:
        with pytest.raises(StoreUnavailable):
            await wait_for_callback(fail)
        await wait_for_callback(fail)
        return "never"

    with pytest.raises(StoreUnavailable, match="away"):
        calls.run(trying())


async def await_answer(answer: Callable[[Done], object]) -> Any:  # noqa: ANN401 - as answered
    return await wait_for_callback(answer)


def never_answer(done: Done) -> None:
    pass


@pytest.mark.parametrize(("late", "text"), [("late", "late"), (None, "deadline of 0.05 s")])
def test_whoever_waits_has_a_deadline(calls: Calls, late: str | None, text: str) -> None:
    """A caller that blocks gets the result, or an error when its time is over."""
    assert bridge.run(calls.run_async(await_answer(partial(answer_from_thread, 7)), late)) == 7
    calls.deadline = Deadline(0.05)
    with calls.deadline.running(), pytest.raises(StoreUnavailable, match=text) as caught:
        bridge.run(calls.run_async(await_answer(never_answer), late))
    assert caught.value.outcome == "none"


@pytest.mark.parametrize("notices", [True, False])
def test_a_call_that_is_given_up(calls: Calls, *, notices: bool) -> None:
    """A cancelled call sends no more changes; its outcome tells whether it has sent one. Its callback is not run."""
    ends, waiting, sent = CallResults(), list[Done](), list[str]()

    async def changing() -> None:
        deadline = calls.deadline
        if notices:
            deadline.mark_sent()
        else:
            with deadline.without_marking_sent():
                deadline.mark_sent()
        await wait_for_callback(waiting.append)
        deadline.mark_sent()
        sent.append("a change")

    give_up = calls.begin(changing(), ends)
    until(lambda: waiting)
    assert give_up() == ("unknown" if notices else "none")
    waiting.pop()(None, None)
    until(lambda: not calls._running)
    assert sent == (["a change"] if notices else [])
    assert ends.told == []


def test_calls_know_their_own_time(calls: Calls) -> None:
    """The time of a call is its own, whatever else the loop's thread runs meanwhile."""
    ends, waiting, remaining = CallResults(), list[Done](), list[float]()

    async def waits() -> None:
        await wait_for_callback(waiting.append)
        remaining.append(calls.deadline.time_left())

    for seconds in (PATIENCE_SECONDS, 5.0):
        calls.deadline._seconds = seconds
        calls.begin(waits(), ends)
    until(lambda: len(waiting) == 2)
    for done in waiting:
        done(None, None)
    until(lambda: len(ends.told) == 2)
    assert remaining[0] > 5.0 > remaining[1]


def test_closing(calls: Calls) -> None:
    """Calls that do not end in time end with an error, in doubt if they have sent a change; no calls begin later."""
    ends, waiting = CallResults(), list[Done]()

    async def changing(*, sends: bool) -> str:
        if sends:
            calls.deadline.mark_sent()
        await wait_for_callback(waiting.append)
        return "late"

    for sends in (False, True):
        calls.begin(changing(sends=sends), ends)
    until(lambda: len(waiting) == 2)
    calls.close(0.05)
    outcomes = [error.outcome for _, error in ends.told if isinstance(error, StoreClosed)]
    assert sorted(outcomes) == ["none", "unknown"]
    for done in waiting:
        done(None, None)
    with pytest.raises(StoreClosed):
        calls.begin(await_answer(never_answer), ends)
    with pytest.raises(StoreClosed):
        calls.run(await_answer(never_answer))
    assert len(ends.told) == 2


async def test_the_loops_thread_does_not_wait_for_itself(calls: Calls) -> None:
    """A blocking call in the loop's own thread is refused."""
    calls.loop.adopt(asyncio.get_running_loop())
    with pytest.raises(RuntimeError, match="wait for itself"):
        calls.run(await_answer(never_answer))


async def ask_one_after_another(number: int, counts: Sequence[int], waiting: list[Callable[[], object]]) -> list[int]:
    """Sends a number of requests one after another; appends a function that answers each to a list."""

    def ask(value: int, done: Done) -> None:
        waiting.append(partial(done, value, None))

    return [await wait_for_callback(partial(ask, number * 100 + at)) for at in range(sum(counts))]


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=30), st.integers(1, 9))
def test_results_in_order(plans: list[list[int]], most: int) -> None:
    """Results come in the order of the works, in any order of answers, with a limited number of works at a time."""
    waiting: list[Callable[[], object]] = []
    calls, ends = FaultlessDriver().calls, CallResults()
    works = (ask_one_after_another(number, plan, waiting) for number, plan in enumerate(plans))
    calls.begin(run_concurrently(calls, works, max_concurrent=most), ends)
    while waiting:
        assert len(waiting) <= most
        waiting.pop()()
    assert ends.told == [([[number * 100 + at for at in range(sum(plan))] for number, plan in enumerate(plans)], None)]


def test_one_that_fails_beside_others() -> None:
    """The first error is raised at once, and no more works begin."""
    calls, ends, waiting, begun = FaultlessDriver().calls, CallResults(), list[Done](), list[int]()

    def works() -> Iterator[Any]:
        for number in range(9):
            begun.append(number)
            yield await_answer(waiting.append)

    calls.begin(run_concurrently(calls, works(), max_concurrent=2), ends)
    waiting[0](None, StoreUnavailable("away"))
    [(_, error)] = ends.told
    waiting[1](None, StoreUnavailable("as well"))
    assert str(error) == "away"
    assert begun == [0, 1]
    assert len(ends.told) == 1
