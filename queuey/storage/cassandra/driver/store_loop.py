"""The event loop of a store, in whose thread frequent requests are sent and answered.

It is the service's, once that has adopted the store. Otherwise a daemon thread runs one for the store, from the first
call on. States::

    none ──(a call)──► own ──(adopt)──► adopted ──(adopt None)──► none
      └──────────────────(adopt)──────────▲
    any ──(close; in a forked child)──► closed

When the loop changes, the thread of the former one ends what belongs to it before the thread of the next one goes on.
So only one thread at a time makes calls. If the former one is busy for longer than HAND_OVER_TIMEOUT, the next one goes
on without it, and the former ends its part when it gets to it. Calls that were not made yet, and timers, go over to the
next loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from queuey.errors import StoreClosed
from queuey.storage.cassandra.driver.callbacks import Done, Start, begin, called

log = logging.getLogger(__name__)

T = TypeVar("T")

HAND_OVER_TIMEOUT = 5.0
"""Max seconds that the thread of the next loop waits for that of the former one."""


def nothing(*_: object) -> None: ...


class StoreLoop:
    """The event loop of one store, and the way into its thread. All methods may be called in any thread.

    Args:
        enter: Called in the thread of each loop before anything else is. What it returns is called there when the loop
            ceases to be the store's.
    """

    def __init__(
        self,
        enter: Callable[[asyncio.AbstractEventLoop], Callable[[], object]] = lambda _: nothing,
    ) -> None:
        self._enter = enter
        self._leave: dict[asyncio.AbstractEventLoop, Callable[[], object]] = {}
        """What ends the part of each loop that was entered."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end_own: Callable[[], object] = nothing
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = itertools.count()
        self._is_waking = False
        self._is_closed = False
        self._is_ended = False
        """It is closed, and no calls are left."""
        _living.add(self)

    @property
    def is_here(self) -> bool:
        """This is the loop's thread."""
        running = asyncio._get_running_loop()  # noqa: SLF001 - the quick form of get_running_loop
        return running is not None and running is self._loop

    def call(self, call: Callable[..., object], *args: object) -> None:
        """Makes a call in the loop's thread, at once if this is it.

        Raises:
            StoreClosed: The store is closed, or belongs to the parent of this process.
        """
        if self.is_here:
            call(*args)
        else:
            self.soon(call, *args)

    def soon(self, call: Callable[..., object], *args: object) -> None:
        """Makes a call in the loop's next turn; one wake-up serves all that come until then. Raises as :meth:`call`."""
        if self._is_closed and not self.is_here:
            raise StoreClosed("the store is closed")
        self._calls.append((call, args))
        if not self._is_waking:
            self._wake()
        if self._is_ended and self._is_left((call, args)):
            raise StoreClosed("the store is closed")

    def _is_left(self, entry: tuple[Callable[..., object], tuple[Any, ...]]) -> bool:
        """Returns whether a call came too late for the thread that closed the store, and takes it out."""
        try:
            self._calls.remove(entry)
        except ValueError:
            return False
        return True

    async def next_turn(self) -> None:
        """Goes on in the loop's next turn; for long work of a coroutine of :mod:`.callbacks`, in the loop's thread."""
        await called(lambda done: self.soon(done, None, None))

    async def bring_back(self, work: Coroutine[Start, Any, T]) -> T:
        """Awaits a coroutine that may end in any thread; goes on in the loop's thread, in which it must begin."""

        def start(done: Done) -> None:
            def end(result: object, error: object) -> None:
                with suppress(StoreClosed):
                    self.call(done, result, error)

            begin(work, end)

        result: T = await called(start)
        return result

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Makes a call after a time, or when the store is closed; for the loop's thread.

        The loop may change meanwhile.
        """
        number = next(self._numbers)
        self._timers[number] = time.monotonic() + seconds, call
        self._set_timer(number)

    def _set_timer(self, number: int) -> None:
        due, _ = self._timers[number]
        asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self._ring, number)

    def _ring(self, number: int) -> None:
        if self.is_here and number in self._timers:
            _, call = self._timers.pop(number)
            _make(call)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop or self._is_closed:
            return  # It was replaced before it ran.
        self._leave[loop] = self._enter(loop)
        for number in self._timers:
            self._set_timer(number)

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Makes a loop that of the store, in that loop's thread; None ends that, if it is the store's."""
        if self._is_closed or (loop is None and not self.is_here):
            return
        self._replace(loop)
        if loop is not None:
            self._begin(loop)
        if self._calls or self._timers:
            self._wake()

    def close(self) -> None:
        """Makes what calls are left, and ends the loop if it is the store's own."""
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
                return  # Whoever closes it makes the calls that are left.
            self._is_waking = True
            try:
                (self._loop or self._start()).call_soon_threadsafe(self._make_calls)
            except RuntimeError:  # The adopted loop was closed.
                self._is_waking = False  # Should there be no thread for another one, a later call tries again.
                loop = self._start()
                self._is_waking = True  # Before the call, which the other thread may make at once.
                loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        if not self.is_here:
            return  # The loop has changed; the next one makes them.
        self._is_waking = False
        self._make_calls_now()

    def _make_calls_now(self) -> None:
        for _ in range(len(self._calls)):
            call, args = self._calls.popleft()
            _make(call, *args)

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop, self._end_own = _started()
        self._loop.call_soon_threadsafe(self._begin, self._loop)
        return self._loop

    def _replace(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Replaces the loop when the thread of the former one has left it, which this thread waits for."""
        with self._lock:
            former, end_own, self._end_own = self._loop, self._end_own, nothing
            self._loop = loop or former
        if former is not None:
            has_left = threading.Event()

            def leave_and_tell() -> None:
                try:
                    self._leave_loop(former)
                finally:
                    has_left.set()

            with suppress(RuntimeError):  # It may be closed.
                is_over = end_own is nothing and not former.is_running()
                if is_over or asyncio._get_running_loop() is former:  # noqa: SLF001 - as above
                    leave_and_tell()
                else:
                    former.call_soon_threadsafe(leave_and_tell)
                if not has_left.wait(HAND_OVER_TIMEOUT):
                    log.warning("The former event loop of the store is busy; the store goes on without it.")
        with self._lock:
            self._loop, self._is_waking = loop, False
        end_own()

    def _leave_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends a loop's part; if the store is closed, what waits for its turn or its time goes on before that ends."""
        if self._is_closed:
            self._make_calls()
        self._leave.pop(loop, nothing)()
        if self._is_closed:
            for number in list(self._timers):
                self._ring(number)
            while self._calls and self.is_here:
                self._make_calls()

    def begin_in_child(self) -> None:
        """Runs in a forked child, which has none of the parent's threads and must not touch its loop."""
        self._lock = threading.Lock()
        self._loop, self._end_own, self._is_closed, self._is_ended = None, nothing, True, True
        self._calls.clear()
        self._timers.clear()


def _make(call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except Exception:
        log.exception("A call in the event loop of the store has failed.")


def _started() -> tuple[asyncio.AbstractEventLoop, Callable[[], object]]:
    """Runs a loop in a thread of its own; returns it, and what ends it after all calls that were made before."""
    loop = asyncio.new_event_loop()
    ended = loop.create_future()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(asyncio.wait_for(ended, None))

    threading.Thread(target=run, name="queuey-store-loop", daemon=True).start()
    return loop, lambda: loop.call_soon_threadsafe(ended.set_result, None)


_living: WeakSet[StoreLoop] = WeakSet()


def _begin_in_child() -> None:
    for loop in list(_living):
        loop.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
