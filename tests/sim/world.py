"""Simulated time and processes: clocks that differ, slow threads, pauses and crashes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from queuey.runtime.event_loop import Core
from queuey.storage.deadlines import Deadline, Done, Home, LoopCalls, start_and_wait

T = TypeVar("T")
Work = Callable[[], None]
_NO_DEADLINE = Deadline(math.inf)
MAX_TURN_SECONDS = 0.001
"""Max seconds until a loop calls what is ready."""


class World:
    """The true time, and the queue of events.

    Args:
        seed: Seeds all random choices.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._pauses = random.Random(seed).getstate()
        """The state of the ``random`` module, from which the Cassandra store draws its pauses."""
        self.now = 1000.0
        """True seconds since 1970."""
        self.loops: list[ProcessLoop] = []
        """The loops of all processes, including crashed ones."""
        self._events: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, work: Work) -> None:
        """Schedules work ``seconds`` from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), work))

    def number(self) -> int:
        return next(self._numbers)

    def run(self, until: float) -> None:
        """Does all work that is due up to a time, in order. The clock stands at that time afterwards.

        Meanwhile the module :mod:`random` continues this world's own sequence.
        """
        random.setstate(self._pauses)
        while self._events and self._events[0][0] <= until:
            self.now, _, work = heapq.heappop(self._events)
            work()
        self.now = until
        self._pauses = random.getstate()

    def end(self) -> None:
        for loop in self.loops:
            loop.end()

    def random_time(self, mean: float) -> float:
        """Returns an exponentially distributed time: mostly short, rarely very long."""
        return self.rng.expovariate(1 / mean)


class Process:
    """A web process. A crash ends everything that it has begun.

    Args:
        world: The world it runs in.
        offset: Seconds by which its clock is ahead of the true time.

    Attributes:
        present: The process that acted last.
    """

    present: ClassVar[Process | None] = None

    def __init__(self, world: World, offset: float) -> None:
        self.world = world
        self.offset = offset
        self.life = 0
        self.paused_until = 0.0
        self.threads: list[object] = []
        """The threads of all its lives, so that none is garbage-collected."""

    def clock(self) -> float:
        return self.world.now + self.offset

    def soon(self, seconds: float, work: Work, life: int | None = None) -> None:
        """Schedules work if the process still lives then. A pause delays it.

        Args:
            seconds: Delay in true time.
            work: The function to call.
            life: The life that has begun this; None: the present one.
        """
        if life is None:
            life = self.life

        def run() -> None:
            if self.life != life:
                return
            if self.world.now < self.paused_until:
                self.world.after(self.paused_until - self.world.now, run)
                return
            Process.present = self
            work()

        self.world.after(seconds, run)

    def pause(self, seconds: float) -> None:
        """Pauses from now for ``seconds``; a longer pause goes on."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)

    def crash(self) -> None:
        self.life += 1
        for loop in self.world.loops:
            loop.end(self)


class ScheduledCall:
    """A scheduled call. It is skipped if cancelled or after a crash of the process, and delayed by a pause."""

    __slots__ = ("_args", "_callback", "_context", "_was_cancelled", "at", "loop")

    def __init__(
        self, loop: ProcessLoop, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.loop = loop
        self._callback = callback
        self._args = args
        self._context = context or copy_context()
        self._was_cancelled = False
        self.at = 0.0

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        self._was_cancelled = True

    def cancelled(self) -> bool:
        return self._was_cancelled

    def run(self) -> None:
        loop = self.loop
        process = loop.process
        if self._was_cancelled or process.life != loop.life:
            return
        if process.world.now < process.paused_until:
            process.world.after(process.paused_until - process.world.now, self.run)
            return
        Process.present = process
        with loop.running():
            self.call_back()

    def call_back(self) -> None:
        self._context.run(self._callback, *self._args)


class _Running:
    """Makes a loop the running loop of the thread in a block."""

    __slots__ = ("_before", "_loop")

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._before)


def silenced(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Returns a task that may be destroyed while it is pending, because its process has crashed."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class _Coroutine(Coroutine[Any, Any, Any]):
    """A coroutine that is closed at the end of a loop if it has not begun. Otherwise Python would warn.

    Args:
        coroutine: The wrapped coroutine.
        at_end: Functions to call at the end of the loop.
    """

    __slots__ = ("_at_end", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at_end: dict[Callable[[], object], None]) -> None:
        self._coroutine = coroutine
        self._at_end = at_end
        at_end[coroutine.close] = None

    def send(self, value: Any) -> Any:  # noqa: ANN401
        self._at_end.pop(self._coroutine.close, None)
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401
        self._at_end.pop(self._coroutine.close, None)
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:  # noqa: ANN401
        return self._coroutine.__await__()


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one life of a process, in simulated time. Ready callbacks are called in random order.

    After a crash nothing is called any more, so every task stops where it is and runs no ``finally``.

    Args:
        process: The loop's process.

    Attributes:
        life: The life of the process.
        at_end: Functions to call at the end.
    """

    calls = ScheduledCall

    def __init__(self, process: Process) -> None:
        self.process = process
        self.life = process.life
        self.at_end: dict[Callable[[], object], None] = {}
        self._ended = False
        process.world.loops.append(self)

    def end(self, process: Process | None = None) -> None:
        """Ends the loop, unless ``process`` is given and is another one."""
        if process in {None, self.process}:
            self._ended = True
            for end in self.at_end:
                end()
            self.at_end.clear()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        """Returns False: work for the loop's thread is then done at once."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Does nothing: errors after a crash of the process do not matter."""

    def time(self) -> float:
        return self.process.world.now

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 - see the base class
        """Starts a coroutine; after the end of the loop it only closes it."""
        if self._ended:  # the garbage collector notified a waiter
            coro.close()
            return cast("asyncio.Task[Any]", self.create_future())
        return silenced(asyncio.Task(_Coroutine(coro, self.at_end), loop=self, **options))

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Any:  # noqa: ANN401
        """Calls back after a tiny random delay. Does nothing after the end of the loop."""
        if self._ended:  # the collector's timing does not depend on the seed, so this must not draw a random number
            return self.calls(self, callback, args, context)
        return self.call_later(self.process.world.rng.random() * MAX_TURN_SECONDS, callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Any:  # noqa: ANN401
        return self.call_later(when - self.time(), callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> Any:  # noqa: ANN401
        call = self.calls(self, callback, args, context)
        call.at = self.time() + delay
        self.process.world.after(max(0.0, delay), call.run)
        return call

    def running(self) -> AbstractContextManager[None]:
        return _Running(self)


class SimulatedCore(Core):
    """The core of one life of a simulated process.

    Args:
        process: The core's process.
        delay: Mean seconds until a thread does its work, and again until it reports.
    """

    loops: Callable[[Process], ProcessLoop] = ProcessLoop

    def __init__(self, process: Process, delay: float) -> None:
        self._process = process
        self._delay = delay
        self._loop = self.loops(process)
        self._told = LoopCalls(self._loop)
        self._home = Home(self._told, self.run_in_pool)
        self._home.register()
        self.rng = process.world.rng

    @property
    def calls(self) -> LoopCalls:
        return self._told

    @property
    def loop(self) -> ProcessLoop:
        return self._loop

    def boottime(self) -> float:
        return self._process.world.now

    async def run_in_pool(self, work: Callable[[], T]) -> T:
        """Does the work at one instant after a random delay."""
        process, life = self._process, self._process.life

        def start(done: Done) -> None:
            """Does the work after a random delay, and answers after another. A crash in between loses the answer."""

            def run() -> None:
                try:
                    result, failure = work(), None
                except Exception as error:  # noqa: BLE001 - it is passed to the caller
                    result, failure = None, error
                process.soon(process.world.random_time(self._delay), partial(_tell, done, result, failure), life)

            process.soon(process.world.random_time(self._delay), run, life)

        result: T = await start_and_wait(start, _NO_DEADLINE)
        return result


def _tell(done: Done, value: object, error: Exception | None) -> None:
    done(value, error)


def raise_error(_value: object, error: Exception | None) -> None:
    if error is not None:
        raise error


def begin(core: Core, call: Coroutine[Any, Any, Any], done: Done = lambda _value, _error: None) -> Callable[[], None]:
    """Starts a call in a simulated process and passes its end to ``done``. Returns a function that cancels it."""
    assert isinstance(core, SimulatedCore)

    def ended(task: asyncio.Task[Any]) -> None:
        """Passes on the result or the error of the call.

        A call that was cancelled before it began passes on nothing.
        """
        if task.cancelled():  # before it had begun
            return
        if (error := task.exception()) is not None:
            done(None, cast("Exception", error))
        else:
            done(task.result(), None)  # bounded: it has ended

    def give_up() -> None:
        task.cancel()

    with core.loop.running():
        task = core.loop.create_task(call)
    task.add_done_callback(ended)
    return give_up
