"""The event loop that use cases run in, and the ways into it from other threads.

A service has one loop: the server's, once :meth:`Core.adopt` has named it; until then, and for callers without a
server, one that a thread of its own runs for the whole process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from queuey.storage.calls import Deadline, Done, GivenUp, Home, LoopCalls, blocks, ended

T = TypeVar("T")
THREADS = 8
"""Number of threads for blocking calls."""
TURN_INTERVAL = 0.02
"""Interval of the timer that measures turns of the loop, in seconds; it costs an idle worker up to 0.4 % of a core."""
TURN_PERIOD = 60.0
"""Min age of a turn that is forgotten, in seconds; the max is twice as long."""
_NO_DEADLINE = Deadline(math.inf)
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_logger = logging.getLogger(__name__)


class Requester(Protocol):
    """A request, which has a share of the threads of its server."""

    @property
    def can_be_given_up(self) -> bool:
        """False while it waits for what has a limit of its own."""

    async def in_pool(self, work: Callable[[], T]) -> T:
        """Runs blocking work in a thread that counts for the request."""


class Call:
    """A running coroutine that a request awaits and can give up.

    Args:
        core: Its loop.
        requester: The request.
        work: The coroutine. Giving up cancels what it awaits, so that must be its own.
        waits_for: What it awaits.
        used: Seconds that it has run, without waiting.
    """

    __slots__ = ("_began", "_core", "_gone", "_requester", "_used", "_waits_for", "_work")

    def __init__(
        self,
        core: Core,
        requester: Requester | None,
        work: Coroutine[Any, Any, Any],
        waits_for: asyncio.Future[Any] | None,
        used: float,
    ) -> None:
        self._core = core
        self._requester = requester
        self._work = work
        self._waits_for = waits_for
        self._gone = False
        self._used = used
        self._began: float | None = None

    def take_used(self) -> float:
        """Returns the seconds that it has run since the last time, without waiting."""
        used, self._used = self._used, 0.0
        if self._began is not None:
            now = time.monotonic()
            used += now - self._began
            self._began = now
        return used

    def give_up(self) -> None:
        """Ends it with :class:`GivenUp`, unless it has ended, or its requester waits for what has its own limit."""
        if self._requester is not None and not self._requester.can_be_given_up:
            return
        self._gone = True
        if self._waits_for is not None:
            self._waits_for.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        """Runs the coroutine to its end; raises ``GivenUp`` if the request has given it up."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            error: BaseException | None = None
            try:
                yield self._waits_for
            except BaseException as thrown:  # noqa: BLE001 - the coroutine gets it
                error = thrown
                if isinstance(thrown, asyncio.CancelledError) and not self._gone:
                    cancelled = thrown
            self._waits_for = None
            self._began = time.monotonic()
            self._core.requester = self._requester
            try:
                self._waits_for = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as end:
                if cancelled is None:
                    return end.value
                raise cancelled from None
            except asyncio.CancelledError:
                if cancelled is None and self._gone:
                    raise GivenUp("unknown") from None
                raise
            except Exception:
                if cancelled is None:
                    raise
                raise cancelled from None
            finally:
                error = None  # It has this frame: a cycle would keep the request's body.
                self._core.requester = None
                self._used += time.monotonic() - self._began
                self._began = None


class Core:
    """An event loop, threads for blocking work, a clock, and random numbers. Simulations have their own.

    Attributes:
        requester: The request whose coroutine runs in the loop at this moment, if any. The server sets it for each step
            of the coroutine, and not in a context, which tasks and timers of the background would inherit.
    """

    requester: Requester | None = None

    def __init__(self) -> None:
        self.chance: random.Random = random.SystemRandom()
        self._calls: LoopCalls | None = None
        self._home: Home | None = None
        self._longest_turns = [0.0, 0.0]
        """In the last period and in this one, in seconds."""
        self._period_ends = 0.0
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="queuey-block")

    def adopt(self, calls: LoopCalls | None) -> None:
        """Runs all use cases on the server's loop from now on. Call it before the first; with None at the end."""
        self._calls = calls
        if self._home is not None:
            self._home.leave()
        self._home = None if calls is None else Home(calls, self.in_thread)
        if calls is not None and self._home is not None:
            self._home.settle()
            calls(self._measure_turn, calls, time.monotonic())

    def _measure_turn(self, calls: LoopCalls, due: float) -> None:
        """Measures how late this call is, again and again, as long as the loop is the server's."""
        if calls is self._calls:
            now = time.monotonic()
            if now >= self._period_ends:
                self._longest_turns = [self._longest_turns[1], 0.0]
                self._period_ends = now + TURN_PERIOD
            self._longest_turns[1] = max(self._longest_turns[1], now - due)
            calls.loop.call_later(TURN_INTERVAL, self._measure_turn, calls, now + TURN_INTERVAL)

    @property
    def longest_turn(self) -> float:
        """The longest recent turn of the server's loop, in seconds; it may have been longer by ``TURN_INTERVAL``."""
        return max(self._longest_turns)

    @property
    def calls(self) -> LoopCalls:
        """Way into the loop's thread, from any thread."""
        return self._calls or _process_calls()

    def tell(self, call: Callable[..., object], *args: object) -> None:
        """Makes a call in the loop's thread; from any thread."""
        self.calls(call, *args)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.calls.loop

    def boottime(self) -> float:
        """Returns seconds on a clock that goes on while the machine sleeps."""
        return time.clock_gettime(_BOOTTIME)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs blocking work in a thread: one of the request's share if a request calls this, else one of its own.

        Tasks that a request has started, and coroutines that are run for a thread, are not the request's.

        Raises:
            TooManyRequests, StoreUnavailable: As ``work`` does, or the share of the request had no thread in time.
        """
        if blocks():
            return work()
        if self.requester is not None:
            return await self.requester.in_pool(work)

        def start(done: Done) -> None:
            try:
                self._pool.submit(_do, work, done)
            except RuntimeError:
                note_missing()

        result: T = await ended(start, _NO_DEADLINE)
        return result

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a call to its end; not from the loop's thread.

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
        """Starts a task, from the loop's thread, and logs its error. The caller keeps the task."""
        task = self.calls.loop.create_task(work)
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
    """Runs after a fork: the child has none of the parent's threads."""
    global _calls, _starting
    _calls, _starting = None, threading.Lock()


_calls: LoopCalls | None = None
_starting = threading.Lock()
os.register_at_fork(after_in_child=_forget_process_calls)


def note_missing() -> None:
    """Logs that a thread could not be started; the work waits for one. It also happens when the process is ending."""
    if threading.main_thread().is_alive():
        _logger.error("no thread could be started")


def _do(work: Callable[[], Any], done: Done) -> None:
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - the caller gets it
        done(None, error)
    else:
        done(result, None)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("a task has failed", exc_info=error)
