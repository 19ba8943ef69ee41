"""The event loop that use cases run in, and the ways into it from other threads.

A service has one loop: the server's, once :meth:`Core.adopt` has named it; until then, and for callers without a
server, one that a thread of its own runs for the whole process. Drivers of stores call back in threads of their own:
:meth:`Core.ended` awaits such a call.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from queuey.errors import Outcome, StoreUnavailable

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]
"""Called once, with a result or an error, in any thread."""
Start = Callable[[Done], object]
"""Starts some work, given what to call at its end."""
THREADS = 8
"""For calls that block."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_logger = logging.getLogger(__name__)


class GivenUp(StoreUnavailable):
    """The caller did not wait for the end: it has cancelled the call.

    Args:
        outcome: Whether it may have changed something.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the store did not answer in time", outcome=outcome)


class LoopCalls:
    """Calls that threads hand over to an event loop; one wake-up serves all that come until then."""

    __slots__ = ("_calls", "_waking", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._waking = False

    def __call__(self, call: Callable[..., None], *args: object) -> None:
        """Makes a call in the loop's thread."""
        self._calls.append((call, args))
        if not self._waking:
            self._waking = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:
                _logger.debug("The event loop has ended; a call was dropped.")

    def _drain(self) -> None:
        self._waking = False
        calls = self._calls
        while calls:
            call, args = calls.popleft()
            call(*args)


class Call:
    """A coroutine that is awaited by a request, and ends soon when that gives up, by whatever task it is run.

    Args:
        work: The coroutine. It is given up by cancelling what it awaits, so that must be its own.

    Attributes:
        used: Seconds that it has run, without those that it waited.
    """

    __slots__ = ("_gone", "_waits_for", "_work", "used")

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._waits_for: asyncio.Future[Any] | None = None
        self._gone = False
        self.used = 0.0

    def give_up(self) -> None:
        """Has it end with :class:`GivenUp`, unless it has ended."""
        self._gone = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        """Runs it; returns its result.

        Raises:
            GivenUp: The request has given it up.
        """
        error: BaseException | None = None
        while True:
            began = time.monotonic()
            try:
                self._waits_for = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                return end.value
            except asyncio.CancelledError:
                if self._gone:
                    raise GivenUp("unknown") from None
                raise
            finally:
                self.used += time.monotonic() - began
            error = None
            try:
                yield self._waits_for
            except BaseException as thrown:  # noqa: BLE001 - the coroutine gets it
                error = thrown
            self._waits_for = None


class Core:
    """An event loop, threads for what blocks, a clock, and chance. Simulations have their own.

    Attributes:
        chance: Random numbers.
    """

    def __init__(self) -> None:
        self.chance: random.Random = random.SystemRandom()
        self._calls: LoopCalls | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="queuey-block")

    def adopt(self, calls: LoopCalls | None) -> None:
        """Has everything run in a server's loop from now on, before anything has begun; None: the loop has ended."""
        self._calls = calls

    @property
    def tell(self) -> Callable[..., None]:
        """What makes a call in the loop's thread, from any thread."""
        return self._calls or _process_calls()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return (self._calls or _process_calls()).loop

    def boottime(self) -> float:
        """Returns seconds on a clock that goes on while the machine sleeps."""
        return time.clock_gettime(_BOOTTIME)

    async def ended(self, start: Start, otherwise: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - of the work
        """Starts some work and waits until it calls back.

        Args:
            start: Begins it, given what to call at its end.
            otherwise: Is done in a thread if ``start`` returns False, which says that nothing was begun.

        Raises:
            Exception: The one that it calls back with, or that ``start`` raises.
        """
        loop = self.loop
        future = loop.create_future()

        def done(value: object, error: Exception | None) -> None:
            if asyncio._get_running_loop() is loop:  # noqa: SLF001 - the quick form of get_running_loop
                _settle(future, value, error)
            else:
                self.tell(_settle, future, value, error)

        try:
            begun = start(done)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            _settle(future, None, error)
        else:
            if begun is False and otherwise is not None:
                return await self.in_thread(otherwise)
        return await future

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Does work that may take long in a thread; returns its result or raises its error."""

        def start(done: Done) -> None:
            try:
                self._pool.submit(_do, work, done)
            except RuntimeError:
                note_missing()

        result: T = await self.ended(start)
        return result

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a call to its end, for a caller that may block; not from the loop's thread.

        Raises:
            RuntimeError: This is the loop's thread, which would wait for itself.
        """
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001 - the quick form of get_running_loop
            work.close()
            raise RuntimeError("the loop's thread would wait for itself")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begins a task; from the loop's thread. The error that it ends with is logged. The caller keeps the task."""
        task = self.loop.create_task(work)
        task.add_done_callback(_log_failure)
        return task


def _process_calls() -> LoopCalls:
    """Returns the way into the loop that a thread runs for the whole process; starts it the first time."""
    global _calls  # noqa: PLW0603 - one for the process
    with _starting:
        if _calls is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="queuey-core", daemon=True).start()
            _calls = LoopCalls(loop)
        return _calls


def _forget_process_calls() -> None:
    """A forked process has none of the threads of the one before."""
    global _calls, _starting
    _calls, _starting = None, threading.Lock()


_calls: LoopCalls | None = None
_starting = threading.Lock()
os.register_at_fork(after_in_child=_forget_process_calls)


def note_missing() -> None:
    """Notes that a thread could not be started; the work waits for one. It also happens when the process is ending."""
    if threading.main_thread().is_alive():
        _logger.error("no thread could be started")


def _settle(future: asyncio.Future[Any], value: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _do(work: Callable[[], Any], done: Done) -> None:
    """Does some work and calls back with its result."""
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - the caller gets it
        done(None, error)
    else:
        done(result, None)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("a task has failed", exc_info=error)
