"""The event loop of a member in simulated time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any

from tests.sim.world import Process, ProcessLoop, ScheduledCall, silenced


class ReadyCall(ScheduledCall):
    """A call that is made after everything that is ready."""

    loop: MemberLoop

    def run(self) -> None:
        if not self.cancelled():
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

    calls = ReadyCall

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._world = process.world
        self._ready: deque[ReadyCall] = deque()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 - see the base class
        return silenced(NumberedTask(self._world.number(), coro, loop=self, **options))

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> ReadyCall:
        call = ReadyCall(self, callback, args, context)
        self.add(call)
        return call

    call_soon_threadsafe = call_soon

    def add(self, call: ReadyCall) -> None:
        if not self._ready:
            self._world.after(0.0, self._turn)
        self._ready.append(call)

    def call(self, call: ReadyCall) -> None:
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
            with self.running():
                # Callbacks may add to `ready`, and may end the process's life.
                while ready and process.life == self.life:
                    call = ready[0]
                    if not call.cancelled():
                        call.call_back()
                    ready.popleft()
