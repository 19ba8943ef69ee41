"""The loop of the use cases: how other threads reach it, and what happens to errors and cancelled calls."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from queuey.model.errors import StoreClosed
from queuey.runtime.event_loop import MAX_ITEMS_IN_LOOP, MAX_SLICE_SECONDS, REST_RATIO, TURN_MEASUREMENT_INTERVAL, Core
from queuey.storage.deadlines import Deadline, Done, LoopCalls, start_and_wait
from tests.waiting import until_async

AT_THE_END = """
import asyncio, atexit
from queuey.runtime.event_loop import Core
core = Core()
core.run(asyncio.sleep(0))
atexit.register(lambda: core.call_soon(print))
"""


def test_calls_of_threads_and_their_errors() -> None:
    """A call calls back from any thread, at once or later, or fails; blocking work runs in another thread."""
    core, deadline = Core(), Deadline(60)

    def elsewhere(done: Done) -> None:
        threading.Thread(target=done, args=("later", None)).start()

    def failing(done: Done) -> None:
        raise StoreClosed("closed")

    async def all_of_them() -> list[object]:
        results = [
            await start_and_wait(lambda done: done("now", None), deadline),
            await start_and_wait(elsewhere, deadline),
        ]
        results.append(await core.in_thread(threading.get_ident))
        for start in (failing, lambda done: done(None, StoreClosed("ended"))):
            with pytest.raises(StoreClosed):
                await start_and_wait(start, deadline)
        return [*results, threading.get_ident()]

    now, later, other, own = core.run(all_of_them())
    assert (now, later) == ("now", "later")
    assert len({other, own, threading.get_ident()}) == 3


def test_an_interrupted_wake_up_is_repeated() -> None:
    """If a signal handler raises while a thread wakes the loop, no later call keeps waiting."""
    core = Core()
    calls = LoopCalls(core.loop)
    ended = threading.Event()

    class Loop:
        @staticmethod
        def call_soon_threadsafe(*_: object) -> None:
            raise KeyboardInterrupt

    calls.loop = Loop()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        calls(len, "")
    calls.loop = core.loop
    calls(ended.set)
    assert ended.wait(10)


def test_the_loop_does_not_wait_for_itself() -> None:
    """A blocking call in the loop's own thread is an error, not a deadlock."""
    core = Core()

    async def blocking() -> None:
        core.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="wait for itself"):
        core.run(blocking())


def test_the_error_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Any error that ends a task is logged."""
    core = Core()

    async def failing() -> None:
        raise RuntimeError("a mistake")

    async def started() -> None:
        await asyncio.wait([core.spawn(failing())])
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        core.run(started())
    [record] = caplog.records
    assert record.exc_info is not None
    assert "a mistake" in str(record.exc_info[1])


@pytest.mark.needs_programs
def test_a_forked_process_has_a_loop_of_its_own() -> None:
    """A forked process starts its own thread, as that of its parent does not exist there."""
    core = Core()
    core.run(asyncio.sleep(0))
    child = os.fork()
    if not child:
        core.run(asyncio.sleep(0))
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If a thread cannot start, work waits for one, and the log says so."""
    core = Core()
    core.run(asyncio.sleep(0))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def both() -> list[int]:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            first = asyncio.ensure_future(core.in_thread(lambda: 1))
            await asyncio.sleep(0.01)
        assert threading.Thread.start is start
        return [await core.in_thread(lambda: 2), await first]

    with caplog.at_level(logging.ERROR):
        assert core.run(both()) == [2, 1]
    assert "could not start a thread" in caplog.text


@pytest.mark.needs_programs
def test_work_at_the_end_of_the_process_is_dropped() -> None:
    """Work that arrives while the process ends is not an error."""
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], check=True, capture_output=True, text=True, timeout=300)
    assert ended.stderr == ""


async def test_a_loop_that_stands_still() -> None:
    """The server's loop is measured from its registration to its end."""
    core = Core()
    core.adopt(LoopCalls(asyncio.get_running_loop()))
    await until_async(lambda: core.longest_turn > 0)
    time.sleep(0.2)  # noqa: ASYNC251 - it blocks on purpose
    await until_async(lambda: core.longest_turn > 0.2 - 2 * TURN_MEASUREMENT_INTERVAL)
    core.adopt(None)
    assert core.longest_turn >= 0.1


class SlicedCore(Core):
    """A core with a clock that each item moves, which records who did the items, and for how long it rests."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.slices: list[list[int]] = [[]]
        self.threads: set[int] = set()

    def boottime(self) -> float:
        return self.now

    def do(self, item: int) -> None:
        self.now += MAX_SLICE_SECONDS * 0.3
        self.slices[-1].append(item)
        self.threads.add(threading.get_ident())

    async def run_in_pool(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - of the work
        self.slices.append([])
        return await super().run_in_pool(work)


async def test_a_short_list_is_done_in_the_loop() -> None:
    """Few items are done at once, in the loop's thread."""
    core = SlicedCore()
    core.adopt(LoopCalls(asyncio.get_running_loop()))
    await core.for_each(range(3), core.do)
    assert (core.slices, core.threads) == ([[0, 1, 2]], {threading.get_ident()})
    assert await core.compute(MAX_ITEMS_IN_LOOP, threading.get_ident) == threading.get_ident()


async def test_a_long_list_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item is done once and in order; after the first slice in threads, with a rest that grows with each slice."""
    core, rests = SlicedCore(), []
    core.adopt(LoopCalls(asyncio.get_running_loop()))
    sleep = asyncio.sleep

    async def record_rest(seconds: float) -> None:
        rests.append(round(seconds / MAX_SLICE_SECONDS, 3))
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", record_rest)
    await core.for_each(iter(range(10)), core.do)
    assert core.slices == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(core.threads) > 1
    assert rests == [round(4 * 0.3 * REST_RATIO, 3), 0]
    assert await core.compute(MAX_ITEMS_IN_LOOP + 1, threading.get_ident) != threading.get_ident()
