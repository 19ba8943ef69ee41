"""The event loop of a store, in whose thread frequent requests are sent and answered.

It is the service's, once that has adopted the store. Otherwise a daemon thread runs one for the store, from the first
call on. States::

    none ──(a call)──► own ──(adopt)──► adopted ──(adopt None)──► none
      └──────────────────(adopt)──────────▲
    any ──(close; in a forked child)──► closed

When the loop changes, the thread of the former one ends what belongs to it before the thread of the next one goes on.
So only one thread at a time makes calls. Those that were not made yet are made in the next loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from queuey.errors import StoreClosed

log = logging.getLogger(__name__)

HAND_OVER_TIMEOUT = 5.0
"""Max seconds that the thread of the next loop waits for that of the former one."""


class StoreLoop:
    """The event loop of one store, and the way into its thread. All methods may be called in any thread.

    Args:
        enter: Called in the thread of each loop before anything else is.
        leave: Called in the thread of each loop when it ceases to be the store's.
    """

    def __init__(
        self,
        enter: Callable[[asyncio.AbstractEventLoop], object] = lambda _: None,
        leave: Callable[[], object] = lambda: None,
    ) -> None:
        self._enter = enter
        self._leave = leave
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end_own: Callable[[], object] = lambda: None
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_waking = False
        self._is_closed = False
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
        self._calls.append((call, args))
        if not self._is_waking:
            self._wake()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Makes a call after a time; for the loop's thread. If the loop changes, it may not be made."""
        asyncio.get_running_loop().call_later(seconds, call)

    def adopt(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Makes a loop that of the store, in that loop's thread; None ends that, if it is the store's."""
        if loop is None:
            if self.is_here:
                self._leave()
                self._change(None)
        elif not self._is_closed:
            former, end_former = self._change(loop)
            self._await_leaving(former, self._leave)
            end_former()
            self._enter(loop)
        if self._calls and not self._is_closed:
            self._wake()

    def close(self) -> None:
        """Makes what calls are left, and ends the loop if it is the store's own."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._await_leaving(self._loop, self._finish)
            _, end_own = self._change(None)
            end_own()

    def _wake(self) -> None:
        running = asyncio._get_running_loop()  # noqa: SLF001 - as above
        if running is not None and running is self._loop:
            self._is_waking = True
            running.call_soon(self._make_calls)
            return
        with self._lock:
            if self._is_closed:
                raise StoreClosed("the store is closed")
            self._is_waking = True
            try:
                (self._loop or self._start()).call_soon_threadsafe(self._make_calls)
            except RuntimeError:  # The adopted loop was closed.
                self._start().call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        if not self.is_here:
            return  # The loop has changed; the next one makes them.
        self._is_waking = False
        for _ in range(len(self._calls)):
            call, args = self._calls.popleft()
            try:
                call(*args)
            except Exception:
                log.exception("A call in the event loop of the store has failed.")

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop, self._end_own = _started()
        self._loop.call_soon_threadsafe(self._enter, self._loop)
        return self._loop

    def _change(
        self, loop: asyncio.AbstractEventLoop | None
    ) -> tuple[asyncio.AbstractEventLoop | None, Callable[[], object]]:
        """Replaces the loop; returns the former one, and what ends its thread."""
        with self._lock:
            former, end_own = self._loop, self._end_own
            self._loop, self._end_own, self._is_waking = loop, lambda: None, False
        return former, end_own

    def _await_leaving(self, former: asyncio.AbstractEventLoop | None, leave: Callable[[], object]) -> None:
        """Makes a call in the thread of the former loop, and waits for its end."""
        if former is None:
            return
        if asyncio._get_running_loop() is former or not former.is_running():  # noqa: SLF001 - as above
            with suppress(RuntimeError):  # It may be closed.
                leave()
            return
        has_left = threading.Event()

        def leave_and_tell() -> None:
            try:
                leave()
            finally:
                has_left.set()

        with suppress(RuntimeError):
            former.call_soon_threadsafe(leave_and_tell)
            if not has_left.wait(HAND_OVER_TIMEOUT):
                log.warning("The former event loop of the store is busy; the store goes on without it.")

    def _finish(self) -> None:
        self._make_calls()
        self._leave()
        while self._calls and self.is_here:
            self._make_calls()

    def begin_in_child(self) -> None:
        """Runs in a forked child, which has none of the parent's threads and must not touch its loop."""
        self._lock = threading.Lock()
        self._loop, self._end_own, self._is_closed = None, lambda: None, True
        self._calls.clear()


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
    for one in list(_living):
        one.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
