"""The executors for threads and tasks, and the loops over messages that child processes use, too.

:func:`run_plain` and :func:`run_async` handle the messages of a run one after another. Their overhead is paid for every
message. So they read the clock once per message, and record only slow messages one by one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from itertools import takewhile
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Protocol

from qdo.errors import HandlerError, TimeLimit
from qdo.worker.failure import Failure, RunResult
from qdo.worker.handlers import Context, Hooks, TaskOf, present_delivery, state_setter
from qdo.worker.runs import Delivery, MessageRun
from queuey.client import Message
from queuey.client.claims.handlers import NothingRan, check_ran


class InThisProcess:
    """Base class of the executors for threads and tasks. All runs share a context that is entered once.

    Args:
        handler: Called with each message.
        context: Factory of its second argument. None passes an empty dict.
        count: Max runs at the same time.
        seconds: Time after which a run ends, even before its last message.
        hooks: Called around each message.
    """

    def __init__(
        self,
        handler: Any,  # noqa: ANN401 - plain or async, as the runner wants it
        context: Context | None,
        count: int,
        seconds: float,
        hooks: Hooks,
    ) -> None:
        self.slots = self._count = count
        self._hanging = 0
        self._handler = handler
        self._factory = context
        self._seconds = seconds
        self._hooks = hooks
        self._entered = AsyncExitStack()
        self._context: Any = None

    async def open(self) -> None:
        self._context = await enter_context(self._factory, self._entered)

    async def close(self) -> None:
        await self._entered.aclose()

    def _count_hanging(self, change: int) -> None:
        self._hanging += change
        self._update_slots()

    def _update_slots(self) -> None:
        self.slots = self._count + self._hanging if self._hanging < self._count else 0

    def _arguments(self, run: MessageRun, place: Delivery) -> tuple[Any, object, MessageRun, Delivery, float, Hooks]:
        return self._handler, self._context, run, place, self._seconds, self._hooks


async def enter_context(factory: Context | None, entered: AsyncExitStack) -> Any:  # noqa: ANN401 - whatever handlers share
    """Calls or awaits the factory; enters the result if it is a context manager, plain or async, else returns it.

    Raises:
        HandlerError: The factory or the context manager failed.
    """
    if factory is None:
        return {}
    try:
        made: Any = factory()
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            return await entered.enter_async_context(made)
        if isinstance(made, AbstractContextManager):
            return entered.enter_context(made)
    except Exception as error:
        raise HandlerError(f"the context cannot be entered: {Failure.of(error)}") from error
    return made


MAX_QUICK_SECONDS = 0.0005
"""Max seconds of a quick message, whose time is not recorded separately."""
_MAX_BUSY_SECONDS = 0.01
"""Max seconds for which a run with an async handler that never waits keeps the event loop busy."""


class MessageHooks(Protocol):
    """The hooks around each message, or their replacement in a child process."""

    around: bool
    """Whether any hook has to be called."""

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - as the hook has them
        """Calls ``before`` or ``after`` with the message and its delivery. Must not raise."""


def run_plain(
    handler: Callable[[Message, Any], Any],
    context: object,
    run: MessageRun,
    place: Delivery,
    seconds: float,
    hooks: MessageHooks,
) -> RunResult:
    """Calls a plain function for one message after another. Blocks.

    The run ends early at the first error, which is the failure of its message, when ``run.pending`` ends, or after
    ``seconds``.
    """
    place.is_asked_to_stop = run.is_asked_to_stop
    present_delivery.set(place)
    token = state_setter.set(run.set_state)
    around = hooks.around
    handled, failure, slow, slow_at = 0, None, [], []
    begun = last = perf_counter()
    until = begun + seconds
    try:
        for message in run.pending:
            if around:
                hooks.call("before", message, place)
            result = handler(message, context)
            if result is not None:
                _keep_result(run, result)
            handled = run.handled = handled + 1
            if around:
                hooks.call("after", message, place)
            now = perf_counter()
            if now - last > MAX_QUICK_SECONDS:
                slow.append(now - last)
                slow_at.append(handled - 1)
            last = now
            if now > until:
                break
    except BaseException as error:  # noqa: BLE001 - every error is a failure of this message
        failure = Failure.of(error)
    finally:
        state_setter.reset(token)
    return RunResult(handled, failure, handled - len(slow), last - begun - sum(slow), tuple(slow), tuple(slow_at))


async def run_async(  # noqa: C901 - a hot loop, in which calls cost time
    handler: Callable[[Message, Any], Awaitable[Any]],
    context: object,
    run: MessageRun,
    place: Delivery,
    seconds: float,
    hooks: MessageHooks,
    limit: float | None = None,
    *,
    interrupts: bool = False,
) -> RunResult:
    """Awaits an async function for one message after another; see :func:`run_plain`.

    When the executor cancels the task (``run.cancelled``), the present message counts as not handled, and the messages
    before it as handled. A cancellation that the handler caused itself is a failure of its message. ``limit`` is the
    max seconds of a call.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - the caller runs in a task
    place.is_asked_to_stop = run.is_asked_to_stop
    present_delivery.set(place)
    state_setter.set(run.set_state)
    around = hooks.around
    handled, failure, slow, slow_at = 0, None, [], []
    begun = last = breath = perf_counter()
    until = begun + seconds
    try:
        for message in run.pending:
            if around:
                hooks.call("before", message, place)
            call = handler(message, context)
            result = await call if limit is None else await await_with_limit(call, limit, "the handler")
            if result is not None:
                _keep_result(run, result)
            if task.cancelling() and not run.cancelled:
                await _end_cancellation(task, run)
            handled = run.handled = handled + 1
            if around:
                hooks.call("after", message, place)
            now = perf_counter()
            if now - last > MAX_QUICK_SECONDS:
                slow.append(now - last)
                slow_at.append(handled - 1)
            last = now
            if now > until:
                break
            if now - breath > _MAX_BUSY_SECONDS:
                await asyncio.sleep(0)
                last = breath = perf_counter()
    except asyncio.CancelledError as error:
        if not run.cancelled:
            failure = Failure.of(error)
    except BaseException as error:  # noqa: BLE001 - as above
        failure = Failure.of(error, interrupts=interrupts)
    return RunResult(
        handled, failure, handled - len(slow), max(0.0, last - begun - sum(slow)), tuple(slow), tuple(slow_at)
    )


async def await_with_limit(call: Awaitable[Any], seconds: float, what: str) -> Any:  # noqa: ANN401 - what it returns
    """Awaits a call. Raises TimeLimit, which names ``what``, if the call takes longer than ``seconds``."""
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            return await call
    except TimeoutError as error:
        if timer.expired():
            raise TimeLimit(f"{what} took longer than {seconds:g} s") from error
        raise


async def _end_cancellation(task: asyncio.Task[Any], run: MessageRun) -> None:
    """Clears a cancellation that a handler requested and survived, so that it does not cancel the next message."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if run.cancelled:
            raise
    while task.cancelling() and not run.cancelled:
        task.uncancel()


def _keep_result(run: MessageRun, result: object) -> None:
    try:
        check_ran(result, "the handler")
    except NothingRan as error:
        raise HandlerError(str(error)) from error
    if run.keeps_results:
        run.set_result(result)


Job = tuple[asyncio.Future[RunResult], MessageRun, Delivery]


class ThreadExecutor(InThisProcess):
    """Runs handlers in a pool of daemon threads, so that a hanging one does not keep the process from ending."""

    def __init__(
        self, handler: Callable[[Message, Any], Any], context: Context | None, count: int, seconds: float, hooks: Hooks
    ) -> None:
        super().__init__(handler, context, count, seconds, hooks)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        future = asyncio.get_running_loop().create_future()
        self._busy += 1
        run.begun = True
        if self._busy > len(self._threads) < self.slots:
            thread = threading.Thread(target=self._run_jobs, name=f"qdo-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((future, run, place))
        return future

    def abandon(self, run: MessageRun) -> bool:  # noqa: ARG002 - whichever it is, it cannot be stopped
        self._count_hanging(1)
        return False

    def give_up(self) -> bool:
        return False

    async def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        await super().close()

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, run, place = job
            ran = contextvars.Context().run(run_plain, *self._arguments(run, place))
            try:
                future.get_loop().call_soon_threadsafe(self._settle, future, ran, run)
            except RuntimeError:
                return  # the loop is closed, so nobody waits for the result

    def _settle(self, future: asyncio.Future[RunResult], ran: RunResult, run: MessageRun) -> None:
        """Records the end of a run, in the loop. An abandoned run no longer counts as hanging."""
        self._busy -= 1
        if run.abandoned is not None:
            self._count_hanging(-1)
        if not future.done():
            future.set_result(ran)


class TaskExecutor(InThisProcess):
    """Runs each run in a task of the event loop.

    Attributes:
        interrupts: Whether Ctrl-C may raise KeyboardInterrupt in a handler, because the worker does not handle SIGINT.
    """

    interrupts = False

    def __init__(self, *shared: Any, limit: float | None) -> None:  # noqa: ANN401 - see there
        super().__init__(*shared)
        self._limit = limit
        self._running: dict[MessageRun, asyncio.Task[RunResult]] = {}

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        running = run_async(*self._arguments(run, place), self._limit, interrupts=self.interrupts)
        task = asyncio.get_running_loop().create_task(running)
        run.begun = True
        self._running[run] = task
        task.add_done_callback(lambda _: self._running.pop(run, None))
        return task

    def abandon(self, run: MessageRun) -> bool:
        """Cancels the run. If it ignores the cancellation, a second call allows an additional run and returns False."""
        run.stop()
        task = self._running.get(run)
        if task is None or not run.cancelled:
            run.cancelled = True
            return task is None or task.cancel()
        self._count_hanging(1)
        task.add_done_callback(lambda _: self._count_hanging(-1))
        return False

    def give_up(self) -> bool:
        for run, task in self._running.items():
            run.cancelled = True
            task.cancel()
        return True


class MixedExecutor(TaskExecutor):
    """Runs async calls in tasks of the event loop, and plain calls in threads.

    Only the message shows which kind of call it is. So a run starts only if a thread is free, and it ends before the
    first message of the other kind.

    Args:
        shared: The positional arguments of :class:`TaskExecutor`.
        limit: Max seconds of an async call.
        threads: Runs plain calls.
        task_of: Returns the task of a message.
    """

    def __init__(self, *shared: Any, limit: float | None, threads: ThreadExecutor, task_of: TaskOf) -> None:  # noqa: ANN401 - see there
        super().__init__(*shared, limit=limit)
        self._threads = threads
        self._entered.push_async_callback(threads.close)
        self._task_of = task_of
        self._update_slots()

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        plain = self._is_plain(run.messages[0])
        run.accept(list(takewhile(lambda message: self._is_plain(message) == plain, run.pending)))
        future = self._threads.start(run, place) if plain else super().start(run, place)
        future.add_done_callback(lambda _: self._update_slots())
        self._update_slots()
        return future

    def abandon(self, run: MessageRun) -> bool:
        stopped = super().abandon(run) if run in self._running else self._threads.abandon(run)
        self._update_slots()
        return stopped

    def _is_plain(self, message: Message) -> bool:
        task = self._task_of(message)
        return task is not None and not task.is_async

    def _update_slots(self) -> None:
        super()._update_slots()
        threads = self._threads.slots
        self.slots = min(self.slots, threads and len(self._running) + threads)
