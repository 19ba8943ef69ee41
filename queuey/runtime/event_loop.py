"""The event loop that use cases run in, and the ways into it from other threads.

A service uses the server's loop after :meth:`Core.adopt`. Before that, and for callers without a server, it uses a
loop that a background thread runs for the whole process.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from queuey.storage import bridge
from queuey.storage.deadlines import Deadline, Done, Home, LoopCalls, start_and_wait

S = TypeVar("S")
T = TypeVar("T")
THREAD_COUNT = 8
TURN_MEASUREMENT_INTERVAL = 0.02
"""Interval in seconds between measurements of the loop; they cost an idle worker up to 0.4 % of a core."""
MIN_LONG_TURN_REPORT_SECONDS = 60.0
"""Min time in seconds for which a long turn is reported; at most twice as long."""
MAX_ITEMS_IN_LOOP = 256
"""Max items, such as queues, that one turn of the loop handles; more are handled in a thread."""
MAX_SLICE_SECONDS, REST_RATIO = 0.001, 3
"""Max seconds that long work runs at a time, and how many times as long it then rests."""
_NO_DEADLINE = Deadline(math.inf)
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_logger = logging.getLogger(__name__)


class Requester(Protocol):
    """A request with a share of its server's threads."""

    async def in_thread(self, work: Callable[[], T], *, computes: bool) -> T:
        """Runs work in a thread of the request's share."""


class Core:
    """An event loop, threads for blocking work, a clock, and random numbers. Simulations have their own.

    Attributes:
        requester: The request whose coroutine runs in the loop right now, if any. It is set for each step of the
            coroutine. A context variable would not do: background tasks and timers would inherit it.
    """

    requester: Requester | None = None
    boottime: Callable[[], float] = staticmethod(partial(time.clock_gettime, _BOOTTIME))
    """Returns seconds of a clock that continues while the machine is suspended."""

    def __init__(self) -> None:
        self.rng: random.Random = random.SystemRandom()
        self._calls: LoopCalls | None = None
        self._home: Home | None = None
        self._longest_turns = [0.0, 0.0]
        """Longest turns of the last period and of this one, in seconds."""
        self._period_ends = 0.0
        self._pool = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="queuey-block")

    def adopt(self, calls: LoopCalls | None) -> None:
        """Runs all use cases on the server's loop from now on.

        Call it before the first use case, and with None when the loop has stopped.
        """
        self._calls = calls
        if self._home is not None:
            self._home.unregister()
        self._home = None if calls is None else Home(calls, self.run_in_pool)
        if calls is not None and self._home is not None:
            self._home.register()
            calls(self._measure_turn, calls, time.monotonic())

    def _measure_turn(self, calls: LoopCalls, due: float) -> None:
        if calls is self._calls:
            now = time.monotonic()
            if now >= self._period_ends:
                self._longest_turns = [self._longest_turns[1], 0.0]
                self._period_ends = now + MIN_LONG_TURN_REPORT_SECONDS
            self._longest_turns[1] = max(self._longest_turns[1], now - due)
            calls.loop.call_later(TURN_MEASUREMENT_INTERVAL, self._measure_turn, calls, now + TURN_MEASUREMENT_INTERVAL)

    @property
    def longest_turn(self) -> float:
        """Longest recent turn of the server's loop in seconds, too low by up to ``TURN_MEASUREMENT_INTERVAL``."""
        return max(self._longest_turns)

    @property
    def calls(self) -> LoopCalls:
        return self._calls or _shared_calls()

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.calls(call, *args)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.calls.loop

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Runs work that computes or reads much in a thread, or here if the bridge runs this coroutine.

        As :meth:`queuey.web.requests.Request.in_thread`, for use cases, which do not have the request.

        Raises:
            TooManyRequests, StoreUnavailable: ``work`` raised it, or the request's share had no thread in time.
        """
        return work() if bridge.thread_state.may_block else await self.run_in_pool(work)

    async def run_in_pool(self, work: Callable[[], T]) -> T:
        """Runs work in a thread: of the calling request's share, or else of this core.

        It counts as computing, so that one caller leaves others the interpreter and a reading connection of the store.
        Tasks that a request has started do not count as the request.
        """
        if self.requester is not None:
            return await self.requester.in_thread(work, computes=True)

        def start(done: Done) -> None:
            try:
                self._pool.submit(_run_and_report, work, done)
            except RuntimeError as error:
                if "shutdown" in str(error):
                    _run_without_pool(work, done)
                else:  # The pool has the work, and another of its threads does it.
                    _logger.error("could not start a thread")  # noqa: TRY400 - the message is enough

        result: T = await start_and_wait(start, _NO_DEADLINE)
        return result

    async def read_in_thread(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine that awaits only the store in one thread, because it reads or counts much.

        Its store calls share one deadline.
        """
        return await self.in_thread(lambda: bridge.run(work(), as_one=True))

    async def compute(self, items: int, work: Callable[[], T]) -> T:
        """Runs work on a number of items: few in the loop, more in a thread (:meth:`in_thread`)."""
        return work() if items <= MAX_ITEMS_IN_LOOP else await self.in_thread(work)

    async def for_each(self, items: Iterable[S], act: Callable[[S], object]) -> None:
        """Calls a function for each item, where callers choose how many there are.

        A short list is done at once. The rest of a longer one is done in threads (:meth:`in_thread`), with a rest after
        each slice: a thread that computes delays the loop, because both need the interpreter.
        """
        remaining, clock = iter(items), self.boottime

        def run_slice() -> float:
            """Returns the seconds of the slice if items may be left, else 0."""
            began = clock()
            for item in remaining:
                act(item)
                if (took := clock() - began) > MAX_SLICE_SECONDS:
                    return took
            return 0.0

        took = run_slice()
        while took:
            took = await self.in_thread(run_slice)
            await asyncio.sleep(REST_RATIO * took)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end and returns its result; blocks.

        Raises:
            RuntimeError: The caller is the loop's thread, which would wait for itself.
        """
        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001 - faster than get_running_loop
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
        """Starts a task in the loop's thread and logs its error. The caller must keep a reference to the task."""
        task = self.calls.loop.create_task(work)
        task.add_done_callback(_log_failure)
        return task


def _shared_calls() -> LoopCalls:
    """Returns the calls of this process's own loop, which is started in a daemon thread when first needed."""
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


def _run_without_pool(work: Callable[[], Any], done: Done) -> None:
    """Runs work once the main thread and the pools have ended: in a thread, or here if no thread can start any more."""
    try:
        threading.Thread(target=_run_and_report, args=(work, done), daemon=True).start()
    except RuntimeError:
        _run_and_report(work, done)


def _run_and_report(work: Callable[[], Any], done: Done) -> None:
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - the caller gets it
        done(None, error)
    else:
        done(result, None)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("a background task failed", exc_info=error)
