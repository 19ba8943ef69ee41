"""The event loop of a member in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from tests.sim.world import Process, ProcessLoop


class Call:
    """Something that a loop is to call."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_life", "_loop")

    def __init__(
        self, loop: MemberLoop, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._loop = loop
        self._life = loop.life
        self._callback = callback
        self._args = args
        self._context = context or copy_context()
        self._cancelled = False

    def cancel(self) -> None:
        """Takes it back."""
        self._cancelled = True

    def cancelled(self) -> bool:
        """Returns whether it was taken back."""
        return self._cancelled

    def __call__(self) -> None:
        """Calls it, unless its process has crashed; a pause puts it off."""
        process = self._loop.process
        if self._cancelled or process.life != self._life:
            return
        if process.world.now < process.paused_until:
            process.world.at(process.paused_until - process.world.now, self)
            return
        Process.present = process
        asyncio._set_running_loop(self._loop)
        self._context.run(self._callback, *self._args)
        asyncio._set_running_loop(None)


class MemberLoop(ProcessLoop):
    """Calls what is ready in the order in which that was asked for, as asyncio's loops do.

    Args:
        process: Whose loop this is.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.process = process
        self.life = process.life

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 - see the base class
        """See the base class."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # of a process that has crashed
        return task

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Call:
        """See the base class."""
        call = Call(self, callback, args, context)
        self.process.world.at(0.0, call)
        return call

    call_soon_threadsafe = call_soon

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Call:
        """See the base class."""
        call = Call(self, callback, args, context)
        self.process.world.at(max(0.0, delay), call)
        return call
