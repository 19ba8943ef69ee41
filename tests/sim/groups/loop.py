"""The event loop of a member in simulated time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from tests.sim.world import Process, ProcessLoop


class Call:
    """A scheduled call of a loop."""

    __slots__ = ("_cancelled", "_when", "args", "callback", "context", "loop")

    def __init__(
        self,
        loop: MemberLoop,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float = 0.0,
    ) -> None:
        self.loop = loop
        self.callback = callback
        self.args = args
        self.context = context or copy_context()
        self._cancelled = False
        self._when = when

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def due(self) -> None:
        """Runs the call now, after everything that is ready."""
        if not self._cancelled:
            self.loop.call(self)


class NumberedTask(asyncio.Task[Any]):
    """A task with a number as its hash, so that the seed fixes the order in which sets are walked."""

    def __init__(self, number: int, coroutine: Any, **options: Any) -> None:  # noqa: ANN401 - see the base class
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class MemberLoop(ProcessLoop):
    """Calls ready callbacks in the order of their scheduling, as asyncio's loops do.

    All ready callbacks are one event of the world. A pause delays it, and a crash drops it.

    Args:
        process: The process of the loop.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._world = process.world
        self._ready: deque[Call] = deque()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 - see the base class
        task = NumberedTask(self._world.number(), coro, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # its process may have crashed
        return task

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Call:
        call = Call(self, callback, args, context)
        self.add(call)
        return call

    call_soon_threadsafe = call_soon

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Call:
        call = Call(self, callback, args, context, self._world.now + delay)
        self._world.after(max(0.0, delay), call.due)
        return call

    def add(self, call: Call) -> None:
        if not self._ready:
            self._world.after(0.0, self._turn)
        self._ready.append(call)

    def call(self, call: Call) -> None:
        """Runs a call and what it makes ready, after calls that are already ready."""
        self._ready.append(call)
        if len(self._ready) == 1:
            self._turn()

    def _turn(self) -> None:
        """Runs all ready calls, also those added meanwhile. A pause delays them, and a crash drops them."""
        process, ready = self.process, self._ready
        if process.life != self.life:
            ready.clear()
        elif self._world.now < process.paused_until:
            self._world.after(process.paused_until - self._world.now, self._turn)
        else:
            Process.present = process
            asyncio._set_running_loop(self)
            # Callbacks may add to `ready`, and may end the process's life.
            while ready and process.life == self.life:
                call = ready[0]
                if not call.cancelled():
                    call.context.run(call.callback, *call.args)
                ready.popleft()
            asyncio._set_running_loop(None)
