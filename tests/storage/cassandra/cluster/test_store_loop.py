"""Tests of a store's loop, its own or an adopted one, and of the calls that cross to it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from queuey.model.errors import StoreClosed
from queuey.storage.cassandra.cluster.store_loop import StoreLoop
from tests.waiting import PATIENCE_SECONDS, until, until_async


class Entered:
    """A loop, and the threads in which it was entered and left."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.loop = StoreLoop(self._enter)

    def _enter(self, _: asyncio.AbstractEventLoop) -> Callable[[], None]:
        self._note("enter")
        return lambda: self._note("leave")

    def _note(self, event: str) -> None:
        self.events.append((event, threading.get_ident()))

    def thread(self) -> int:
        threads: list[int] = []
        self.loop.call(lambda: threads.append(threading.get_ident()))
        until(lambda: threads)
        return threads[0]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def entered() -> Iterator[Entered]:
    """A loop that was not used yet."""
    opened = Entered()
    yield opened
    opened.loop.close()


def test_a_loop_of_its_own_begins_with_the_first_call(entered: Entered) -> None:
    """The store's own loop starts before the first call, makes all calls in order, and ends when it is closed."""
    assert entered.events == []
    own = entered.thread()
    assert own != threading.get_ident()
    assert entered.events == [("enter", own)]
    made: list[int] = []
    for number in range(100):
        entered.loop.soon(made.append, number)
    entered.loop.close()
    assert made == [*range(100)]
    assert entered.events == [("enter", own), ("leave", own)]
    until(lambda: own not in {thread.ident for thread in threading.enumerate()})
    with pytest.raises(StoreClosed):
        entered.loop.call(made.append, 100)


async def test_a_loop_that_is_adopted(entered: Entered) -> None:
    """The own loop ends its running call before the adopted one starts, which makes the remaining calls."""
    own, here = await asyncio.to_thread(entered.thread), threading.get_ident()
    made: list[tuple[str, int]] = []
    begun, goes_on = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        entered.loop.soon(lambda: made.append(("left", threading.get_ident())))
        goes_on.wait(PATIENCE_SECONDS)
        made.append(("busy", threading.get_ident()))

    entered.loop.call(busy)
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    threading.Timer(0.01, goes_on.set).start()
    entered.loop.adopt(asyncio.get_running_loop())
    assert entered.events == [("enter", own), ("leave", own), ("enter", here)]
    assert made == [("busy", own)]
    await asyncio.sleep(0)
    assert made == [("busy", own), ("left", here)]
    entered.loop.call(made.append, ("at once", here))
    assert len(made) == 3


async def test_timers_go_over_to_the_next_loop(entered: Entered) -> None:
    """A timer fires once, in the loop that the store has by then."""
    rung: list[int] = []
    entered.loop.call(entered.loop.later, 0.5, lambda: rung.append(threading.get_ident()))
    own = await asyncio.to_thread(entered.thread)
    entered.loop.adopt(asyncio.get_running_loop())
    await until_async(lambda: rung)
    assert rung == [threading.get_ident()] != [own]
    entered.loop.later(0.05, lambda: rung.append(threading.get_ident()))
    entered.loop.adopt(None)
    await asyncio.to_thread(until, lambda: len(rung) == 2)
    assert rung[1] == await asyncio.to_thread(entered.thread)


def test_timers_of_a_store_that_is_closed(entered: Entered) -> None:
    """On close all timers fire at once, also after a failing one, and see that the store is closed."""
    rung: list[int] = []
    own = entered.thread()
    for call in (lambda: 1 // 0, lambda: rung.append(threading.get_ident())):
        entered.loop.call(entered.loop.later, 1000.0, call)
    entered.loop.close()
    assert rung == [own]


def test_an_adopted_loop_that_was_closed(entered: Entered) -> None:
    """If the adopted loop was closed without being released, calls run in the store's own loop."""

    async def adopt() -> None:
        entered.loop.adopt(asyncio.get_running_loop())

    asyncio.run(adopt())
    assert entered.thread() != threading.get_ident()


def test_a_call_that_fails_harms_no_other(entered: Entered, caplog: pytest.LogCaptureFixture) -> None:
    """A call that fails is logged, and the others are made."""
    entered.loop.soon(lambda: 1 // 0)
    assert entered.thread()
    assert "has failed" in caplog.text


@pytest.mark.needs_programs
def test_a_forked_child_uses_nothing_of_its_parents_loop(entered: Entered) -> None:
    """In a forked child calls are refused at once, closing does nothing, and the parent's loop continues."""
    own = entered.thread()

    def child() -> int:
        try:
            entered.loop.call(lambda: None)
        except StoreClosed:
            entered.loop.close()
            entered.loop.adopt(None)
            return 0
        return 1

    assert _in_child(child) == 0
    assert entered.thread() == own
    assert [event for event, _ in entered.events] == ["enter"]


def _in_child(work: Callable[[], int]) -> int:
    child = os.fork()
    if not child:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
