"""The event loops of a simulated process, and the threads for its blocking work.

A process runs coroutines on its loops. Work that the service leaves to threads calls the store and waits. It gets a
real thread, which runs only while the world stands still, and stands still itself while it waits. So two threads are
interleaved only where they wait. After a crash of their process they end where they are.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from queuey.model.errors import Outcome, StoreUnavailable
from queuey.storage.bridge import thread_state
from queuey.storage.cassandra.cluster.store_loop import Calls, StoreLoop
from queuey.storage.deadlines import Start, StoreCall
from tests.sim.world import Process, ProcessLoop, SimulatedCore

T = TypeVar("T")


class SimulatedLoop(StoreLoop):
    """The loop of a process's store. Work for other threads is done at once.

    Args:
        process: The process that it belongs to.
        enter: See the base class.
    """

    def __init__(self, process: Process, enter: Callable[[asyncio.AbstractEventLoop], Callable[[], object]]) -> None:
        super().__init__(enter, clock=lambda: process.world.now)
        self._process = process

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = self._loop = ProcessLoop(self._process)  # type: ignore[abstract]  # much of it is not needed
        with loop.running():
            self._begin(loop)
        return loop


class _CrashedError(BaseException):
    """The process of this thread has crashed."""


class BlockingThread(threading.Thread, Generic[T]):
    """A thread that does one piece of work of a process.

    Args:
        loop: The loop of the process.
        work: The function to call.
    """

    def __init__(self, loop: ProcessLoop, work: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._loop = loop
        self._work = work
        self._end: Future[T] = Future()
        self._waits: SimpleQueue[tuple[asyncio.Future[Any], float] | None] = SimpleQueue()
        """The awaited future with its timeout in seconds, or None at the end of the thread."""
        self._turns: SimpleQueue[None] = SimpleQueue()
        self._has_crashed = False

    def run(self) -> None:
        try:
            self._end.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - `run_to_end` raises it
            self._end.set_exception(error)
        self._waits.put(None)

    async def run_to_end(self) -> T:
        """Runs the work to its end. Whenever it would block, waits here for what it needs and lets it go on."""
        self._loop.at_end[self.close] = None
        self.start()
        while (wait := self._waits.get()) is not None:
            awaited, seconds = wait
            await asyncio.wait([awaited], timeout=seconds)
            self._turns.put(None)
        self._loop.at_end.pop(self.close, None)
        return self._end.result()  # bounded: it has ended

    def await_result(self, begin: Start, seconds: float, late: str | None) -> Any:  # noqa: ANN401 - as begun
        """Replaces :meth:`Deadline.await_result` in this thread: returns what ``begin`` calls back with, or raises.

        Raises StoreUnavailable with ``late`` after ``seconds`` seconds, and then gives the call up.
        """
        end = self._loop.create_future()
        give_up = begin(lambda *answer: end.set_result(answer))
        self._stand_still(end, seconds)
        if not end.done():
            outcome: Outcome = give_up() if callable(give_up) else "unknown"
            raise StoreUnavailable(late or "the call took too long", outcome=outcome)
        value, error = end.result()  # bounded: it is done
        if error is not None:
            raise error
        return value

    def pause(self, seconds: float) -> None:
        self._stand_still(self._loop.create_future(), seconds)

    def _stand_still(self, awaited: asyncio.Future[Any], seconds: float) -> None:
        """Blocks until the loop lets it go on. Raises an error if the process has crashed."""
        if not self._has_crashed:
            self._waits.put((awaited, seconds))
            self._turns.get()  # bounded: by the end of the history
        if self._has_crashed:
            raise _CrashedError

    def close(self) -> None:
        """Ends the thread where it stands, as after a crash, and waits for that."""
        self._has_crashed = True
        self._turns.put(None)
        self.join()  # bounded: it raises where it stands


def present_thread() -> BlockingThread[Any]:
    thread = threading.current_thread()
    assert isinstance(thread, BlockingThread), "an event loop, or the test, would wait"
    return thread


class SimulatedCalls(Calls):
    def close_new(self) -> None:
        """Closes coroutines that have not begun. Otherwise Python would warn."""
        for running in self._running:
            work = running._work
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()

    async def wait_for_end(
        self, begin: Start, late: str | None = None, *, long: bool = False, raise_given_up: bool = False
    ) -> Any:  # noqa: ANN401 - as begun
        if not thread_state.may_block:
            return await super().wait_for_end(begin, late, long=long, raise_given_up=raise_given_up)
        with self.deadline.running(StoreCall() if long else None):
            return present_thread().await_result(begin, self.deadline.time_left(), late)


class ThreadedCore(SimulatedCore):
    """A core whose threads may wait for the store."""

    async def run_in_pool(self, work: Callable[[], T]) -> T:
        """Runs work in a thread. It goes on if its caller leaves."""
        thread = BlockingThread(self.loop, work)
        return await asyncio.shield(self.loop.create_task(thread.run_to_end()))
