"""The event loop of a store, whose thread sends requests and receives answers, and the coroutines that run there.

Once the service has adopted the store, this is the service's loop. Otherwise a daemon thread runs a loop for the store
alone, from the first call on. States::

    none ──(a call)──► own ──(adopt)──► adopted ──(adopt None)──► none
      └──────────────────(adopt)──────────▲
    any ──(close; in a forked child)──► closed

When the loop changes, the thread of the old loop cleans up before the thread of the new loop goes on. So only one
thread at a time makes calls. If the old loop is busy for longer than HAND_OVER_TIMEOUT, the new one goes on without it,
and the old one cleans up later. Pending calls and timers move to the new loop.

A call of a store is a coroutine (:class:`Calls`), but not a task. Whatever brings an answer runs it up to its next
request, so it needs no turn of the loop of its own::

    calls.begin(page(driver), done)  # done(value, error) is called once, in the loop's thread
    await calls.run_async(page(driver))  # in any thread

    async def page(driver):
        rows = await wait_for_callback(partial(driver.send, request))
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from functools import partial, wraps
from itertools import count
from types import coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakSet

from queuey.model.errors import Outcome, StoreClosed
from queuey.storage import bridge
from queuey.storage.deadlines import NO_CALL, Deadline, Done, Start, StoreCall, start_and_wait

log = logging.getLogger(__name__)

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

HAND_OVER_TIMEOUT = 5.0
"""Max seconds that the new loop's thread waits for the old loop's thread."""


def nothing(*_: object) -> None: ...


class StoreLoop:
    """The event loop of one store, and how to reach its thread. All methods may be called in any thread.

    Args:
        enter: Called in the thread of each loop before any other call. It returns a function that is called in that
            thread when the loop stops being the store's.
        clock: Clock in seconds, for timers.
    """

    def __init__(
        self,
        enter: Callable[[asyncio.AbstractEventLoop], Callable[[], object]] = lambda _: nothing,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._enter = enter
        self._clock = clock
        self._leave: dict[asyncio.AbstractEventLoop, Callable[[], object]] = {}
        """By loop that was entered, the function that cleans up."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end_own: Callable[[], object] = nothing
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = count()
        self._is_waking = False
        self._is_closed = False
        self._is_ended = False
        """The loop is closed, and no calls are pending."""
        self.on_fork: Callable[[], object] = nothing
        """Called in a forked child."""
        _living.add(self)

    @property
    def is_here(self) -> bool:
        running = asyncio._get_running_loop()  # noqa: SLF001 - the quick form of get_running_loop
        return running is not None and running is self._loop

    def call(self, call: Callable[..., object], *args: object) -> None:
        """Makes a call in the loop's thread, at once if this is that thread.

        Raises:
            StoreClosed: The store is closed, or belongs to the parent of this process.
        """
        if self.is_here:
            call(*args)
        else:
            self.soon(call, *args)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Makes a call in the loop's next turn. All calls until then share one wake-up. Raises like :meth:`call`."""
        if self._is_closed and not self.is_here:
            raise StoreClosed("the store is closed")
        self._calls.append((call, args))
        if not self._is_waking:
            self._wake()
        if self._is_ended and self._take_back((call, args)):
            raise StoreClosed("the store is closed")

    def _take_back(self, entry: tuple[Callable[..., object], tuple[Any, ...]]) -> bool:
        try:
            self._calls.remove(entry)
        except ValueError:
            return False
        return True

    async def next_turn(self) -> None:
        """Waits for the loop's next turn. Long work must do so now and then."""
        await wait_for_callback(lambda done: self.soon(done, None, None))

    async def sleep(self, seconds: float) -> None:
        await wait_for_callback(lambda done: self.later(seconds, partial(done, None, None)))

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Makes a call after a time, or when the store is closed. For the loop's thread.

        The loop may change meanwhile.
        """
        number = next(self._numbers)
        self._timers[number] = self._clock() + seconds, call
        self._set_timer(number)

    def _set_timer(self, number: int) -> None:
        due, _ = self._timers[number]
        asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._run_timer, number)

    def _run_timer(self, number: int) -> None:
        if self.is_here and number in self._timers:
            _, call = self._timers.pop(number)
            _make_logged(call)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop or self._is_closed:
            return  # Another loop has replaced this one before it ran.
        self._leave[loop] = self._enter(loop)
        for number in self._timers:
            self._set_timer(number)

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Makes a loop the store's; None releases the present one. Call it in the thread of that loop."""
        if self._is_closed or (loop is None and not self.is_here):
            return
        self._replace(loop)
        if loop is not None:
            self._begin(loop)
        if self._calls or self._timers:
            self._wake()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._replace(None)
            with self._lock:
                self._is_ended = True
            self._make_calls_now()

    def _wake(self) -> None:
        if self.is_here:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._make_calls)
            return
        with self._lock:
            if self._is_closed:
                return  # The thread that closes the loop makes the pending calls.
            self._is_waking = True
            try:
                (self._loop or self._start()).call_soon_threadsafe(self._make_calls)
            except RuntimeError:  # The adopted loop was closed.
                self._is_waking = False  # If no thread can be started, a later call tries again.
                loop = self._start()
                self._is_waking = True  # Set before the call, which the other thread may make at once.
                loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        if not self.is_here:
            return  # The loop has changed; the new one makes the calls.
        self._is_waking = False
        self._make_calls_now()

    def _make_calls_now(self) -> None:
        for _ in range(len(self._calls)):
            call, args = self._calls.popleft()
            _make_logged(call, *args)

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop, self._end_own = _start_loop()
        self._loop.call_soon_threadsafe(self._begin, self._loop)
        return self._loop

    def _replace(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._lock:
            former, end_own, self._end_own = self._loop, self._end_own, nothing
            self._loop = loop or former
        if former is not None:
            has_left = threading.Event()

            def leave() -> None:
                try:
                    self._leave_loop(former)
                finally:
                    has_left.set()

            with suppress(RuntimeError):  # The old loop may be closed.
                is_stopped = end_own is nothing and not former.is_running()
                if is_stopped or asyncio._get_running_loop() is former:  # noqa: SLF001 - as above
                    leave()
                else:
                    former.call_soon_threadsafe(leave)
                if not has_left.wait(HAND_OVER_TIMEOUT):
                    log.warning("The former event loop of the store is busy; the store goes on without it.")
        with self._lock:
            self._loop, self._is_waking = loop, False
        end_own()

    def _leave_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_closed:
            self._make_calls()
        self._leave.pop(loop, nothing)()
        if self._is_closed:
            for number in list(self._timers):
                self._run_timer(number)
            while self._calls and self.is_here:
                self._make_calls()

    def begin_in_child(self) -> None:
        """Closes this loop in a forked child, which has none of the parent's threads and must not touch its loop."""
        self._lock = threading.Lock()
        self._loop, self._end_own, self._is_closed, self._is_ended = None, nothing, True, True
        self._calls.clear()
        self._timers.clear()
        self.on_fork()


def _make_logged(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except Exception:
        log.exception("A call in the event loop of the store has failed.")


def _start_loop() -> tuple[asyncio.AbstractEventLoop, Callable[[], object]]:
    loop = asyncio.new_event_loop()
    ended = loop.create_future()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(asyncio.wait_for(ended, None))

    threading.Thread(target=run, name="queuey-store-loop", daemon=True).start()
    return loop, lambda: loop.call_soon_threadsafe(ended.set_result, None)


@coroutine
def wait_for_callback(start: Start) -> Generator[Start, Any, Any]:
    return (yield start)


class Calls:
    """The calls of a store that are under way."""

    def __init__(self, loop: StoreLoop, deadline: Deadline) -> None:
        self.loop = loop
        self.deadline = deadline
        self._running: set[_Running] = set()
        self.is_closed = False
        loop.on_fork = self._running.clear

    def begin(
        self, work: Coroutine[Start, Any, Any], done: Done, call: StoreCall | None = None
    ) -> Callable[[], Outcome]:
        """Begins a coroutine as a call, by default as part of this thread's call. Returns a function that gives it up.

        Raises:
            StoreClosed: The store is closed; ``done`` is not called.
        """
        call = call or self.deadline.call
        is_part = call is not NO_CALL
        if not is_part:
            call = StoreCall()
            call.ends = self.deadline.next_end()
        running = _Running(self, work, done, call, is_part=is_part)
        self._running.add(running)
        # Checked after adding: close() ends the calls that it finds.
        if self.is_closed and self._remove(running):
            work.close()
            raise StoreClosed("the store is closed")
        try:
            self.loop.call(running.go_on, None, None)
        except StoreClosed:
            if self._remove(running):
                work.close()
                raise
        return call.give_up

    def wait_for_end(
        self, begin: Start, late_message: str | None = None, *, long: bool = False, raise_given_up: bool = False
    ) -> Coroutine[Any, Any, Any]:
        if bridge.thread_state.may_block and self.loop.is_here:
            raise RuntimeError("the loop's thread would wait for itself: await the call instead")
        return start_and_wait(begin, self.deadline, late_message, long=long, raise_given_up=raise_given_up)

    async def run_async(
        self,
        work: Coroutine[Start, Any, T],
        late_message: str | None = None,
        *,
        long: bool = False,
        raise_given_up: bool = False,
    ) -> T:
        """Begins a coroutine as a call, and awaits its result, as :func:`queuey.storage.deadlines.start_and_wait`."""
        call, has_begun = StoreCall() if long and not bridge.thread_state.may_block else None, False

        def begin(done: Done) -> Callable[[], Outcome]:
            nonlocal has_begun
            has_begun = True
            return self.begin(work, done, call)

        try:
            result: T = await self.wait_for_end(begin, late_message, long=long, raise_given_up=raise_given_up)
        finally:
            if not has_begun:
                work.close()
        return result

    def run(self, work: Coroutine[Start, Any, T], *, long: bool = False) -> T:
        """Begins a coroutine like :meth:`run_async`, and blocks until its result. Not for the loop's thread."""
        return bridge.run(self.run_async(work, long=long))

    def end(self, running: _Running, value: object, error: Any) -> None:  # noqa: ANN401 - an error
        if self._remove(running) and (running.is_part or not running.call.is_given_up):
            running.done(value, error)

    def _remove(self, running: _Running) -> bool:
        try:
            self._running.remove(running)
        except KeyError:
            return False
        return True

    def close(self, timeout: float) -> None:
        """Refuses new calls, waits for those under way, and fails the rest with ``StoreClosed``. Idempotent.

        Waits up to ``timeout`` seconds, but not in the loop's thread.
        """
        self.is_closed = True
        ends, pause = self.deadline.clock() + timeout, threading.Event()
        while self._running and not self.loop.is_here and self.deadline.clock() < ends:
            pause.wait(0.02)
        for running in list(self._running):
            is_awaited = running.is_part or not running.call.is_given_up
            outcome = running.call.give_up()
            if self._remove(running) and is_awaited:
                error = StoreClosed("the store was closed before the call ended", outcome=outcome)
                _make_logged(running.done, None, error)


class _Running:
    """A coroutine under way. Calling it delivers the answer that the coroutine awaits."""

    __slots__ = ("_answer", "_calls", "_is_starting", "_work", "call", "done", "is_part")

    def __init__(
        self, calls: Calls, work: Coroutine[Start, Any, Any], done: Done, call: StoreCall, *, is_part: bool
    ) -> None:
        self._calls = calls
        self._work = work
        self._is_starting = False
        self._answer: tuple[Any, Any] | None = None
        """An answer that came while the request was being started."""
        self.done = done
        self.call = call
        self.is_part = is_part
        """Another call waits for this one, even after that call was given up."""

    def __call__(self, value: object, error: Any) -> None:  # noqa: ANN401 - an error
        loop = self._calls.loop
        running = asyncio._get_running_loop()  # noqa: SLF001 - as is_here
        if running is None or running is not loop._loop:  # noqa: SLF001 - as above
            with suppress(StoreClosed):
                loop.soon(self.go_on, value, error)
                return
        self.go_on(value, error)

    def go_on(self, value: object, error: Any) -> None:  # noqa: ANN401 - an error
        if self._is_starting:
            self._answer = value, error
            return
        deadline = self._calls.deadline
        before, deadline.call = deadline.call, self.call
        try:
            while True:
                start = self._work.send(value) if error is None else self._work.throw(error)
                self._answer, self._is_starting = None, True
                try:
                    start(self)
                except Exception as failure:  # noqa: BLE001 - the coroutine gets it
                    self._answer = None, failure
                self._is_starting = False
                if self._answer is None:
                    return
                value, error = self._answer
        except StopIteration as end:
            value, error = end.value, None
        except Exception as failure:  # noqa: BLE001 - passed to the caller
            value, error = None, failure
        finally:
            deadline.call = before
        deadline.call = NO_CALL  # Calls that ``done`` begins are not part of this one, nor of the one around it.
        try:
            self._calls.end(self, value, error)
        finally:
            deadline.call = before


async def run_concurrently(calls: Calls, works: Iterable[Coroutine[Start, Any, T]], *, max_concurrent: int) -> list[T]:
    """Runs coroutines as parts of the current call, ``max_concurrent`` at a time; returns their results in order.

    Raises:
        Exception: The first one that a coroutine raised; others may be under way.
    """
    call, waiting = calls.deadline.call, enumerate(works)
    results: dict[int, T] = {}
    errors: list[Exception] = []

    async def run_in_turn() -> None:
        for index, work in waiting:
            results[index] = await work
            if errors:
                return

    def start(done: Done) -> None:
        missing = count(max_concurrent - 1, -1)

        def ended(_: object, error: Exception | None) -> None:
            if error is not None:
                errors.append(error)
            if not errors and not next(missing):
                done(None, None)
            elif errors == [error]:
                done(None, error)

        for _ in range(max_concurrent):
            calls.begin(run_in_turn(), ended, call)

    await wait_for_callback(start)
    return [results[index] for index in range(len(results))]


def store_call(
    late_message: str | None = None, *, raise_given_up: bool = False
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]
]:
    """Makes a contract's coroutine run as a call, in the loop's thread.

    For the arguments see :meth:`Calls.run_async`.
    """

    def decorate(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        def call(contract: Any, *arguments: P.args, **named: P.kwargs) -> Any:  # noqa: ANN401 - as the coroutine
            calls = contract._driver.calls  # noqa: SLF001 - of all contracts
            return calls.run_async(method(contract, *arguments, **named), late_message, raise_given_up=raise_given_up)

        return cast("Callable[Concatenate[S, P], Coroutine[Any, Any, T]]", wraps(method)(call))

    return decorate


_living: WeakSet[StoreLoop] = WeakSet()


def _begin_in_child() -> None:
    for loop in list(_living):
        loop.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
