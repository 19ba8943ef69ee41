"""The worker: takes messages from its source and calls the handler with them until it is stopped.

::

    new ──serve──► working ──stop, StopWorker, a signal, an error──► draining ──► left (final)
                      │  ▲
            suspended │  │ connected again
                      ▼  │
                    halted

Draining: the worker takes no more messages, and the group assigns it no partitions. Each partition is released as soon
as its running messages are finished and committed. Then the worker leaves the group and exits the context. Halted:
running messages are finished, and no message starts. If the session is lost, running messages are not committed, and
the worker continues with its next assignment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from time import monotonic
from typing import TYPE_CHECKING

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import InvalidArgument
from qdo.loops import cancel
from qdo.settings import WorkerSettings
from qdo.worker import handlers
from qdo.worker.claim_source import MAX_UNBEGUN_SECONDS, Claims, ClaimSource
from qdo.worker.dispatcher import Dispatcher
from qdo.worker.executors.in_process import MixedExecutor, TaskExecutor, ThreadExecutor
from qdo.worker.executors.processes import ChildSetup, ProcessExecutor
from qdo.worker.failure import ExitCode, Failure, StopTheWorker
from qdo.worker.handlers import Context, Handler, HasHandler, Hooks, TaskHandler
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.runs import Executor
from qdo.worker.sources import Handling, Source
from queuey.client.claims.handlers import is_coroutine_handler
from queuey.client.forks import DefaultSignals

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

logger = logging.getLogger("qdo.worker")

_GIVING_UP_SECONDS = 2.0
"""Timeout for cancelled tasks and killed processes to end, in seconds."""
_EXIT_CODES = {"asked": ExitCode.ENDED, "message": ExitCode.MESSAGE_FAILED, "error": ExitCode.FAILED}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SAME_SIGNAL_SECONDS = 0.1
"""Max seconds between signals that count as one, because a supervisor may signal the worker and its process group."""


class Worker:
    """Calls a handler with each message that it consumes from partitions or claims.

    ::

        from qdo import AsyncConsumer, StopWorker, Worker
        from queuey.client import AsyncClient

        def handle(message, context):
            print(message.partition, message.body)
            raise StopWorker  # without this line the worker runs until SIGTERM or Ctrl-C

        consumer = AsyncConsumer(AsyncClient(), group="printers", queues=["orders"])
        assert Worker(handle, consumer).run() == 0

    The worker commits the offset before the first unfinished message of a partition. So each message is handled at
    least once: again after a crash, and after failures as the settings specify. Each worker counts attempts by itself.
    But if an attempt crashes its worker, the next worker continues the count, so such a message becomes a dead letter,
    too.

    Args:
        handler: ``handle(message, context)``, plain or async, or :class:`~qdo.Jobs`; or its name, ``module:function``.
            A message is done when the handler returns.
        consumer: The source of messages: an :class:`AsyncConsumer`, not started yet and without ``commit_every``, or
            :class:`Claims`. The worker starts and closes the consumer. The caller closes client and coordinator, but
            :meth:`run` does so itself.
        context: Factory of the handler's second argument, or its name. It returns a value, or a plain or async context
            manager that is entered before the first message and exited after the last. Each process calls it once.
            None passes an empty dict.
        settings: How to handle messages.
        middleware: Objects with hooks; see :class:`qdo.Middleware`.
        registry: Registry for the worker's metrics; None for no metrics.
        process_setup: With processes, called in each before the handler is imported. Processes must be able to import
            it.

    Raises:
        HandlerError: The handler or the context cannot be used.
        InvalidArgument: Settings contradict each other.
    """

    def __init__(
        self,
        handler: Handler | HasHandler | str,
        consumer: AsyncConsumer | Claims,
        *,
        context: Context | str | None = None,
        settings: WorkerSettings | None = None,
        middleware: Iterable[object] = (),
        registry: CollectorRegistry | None = None,
        process_setup: Callable[[], object] | None = None,
    ) -> None:
        self.settings = settings or WorkerSettings()
        self._consumer = consumer
        self.metrics = WorkerMetrics(registry)
        self._changed = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._hooks = Hooks(middleware, lambda _: self.metrics.increment("hook_failures"))
        seconds = _max_run_seconds(self.settings, consumer)
        made = handlers.make_handler(handler)
        self._runner = _make_executor(self.settings, seconds, handler, made, context, self._hooks, process_setup)
        self._handling = handling = Handling(
            made,
            self._runner,
            self.settings,
            self._hooks,
            self.metrics,
            self._stop_requested,
            changed=self._wake,
            end=self._end,
            stop=self._stop_with,
            lag_shown=registry is not None,
        )
        self._source: Source
        if isinstance(consumer, Claims):
            self._source = ClaimSource(consumer, handling)
        else:
            self._source = Dispatcher(consumer, handling)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._stopped_by = "stopping"
        self._drained: float | None = None
        """Deadline for the messages in flight, by the loop's clock. None until the worker drains."""
        self._code = ExitCode.ENDED

    def run(self) -> int:
        """Runs :meth:`serve` in a new event loop. SIGTERM and SIGINT drain the worker; a second signal ends it at once.

        Call it in the main thread. It closes client and coordinator, because they belong to the loop. It does not
        return while an async handler ignores its cancellation; ``qdo work`` ends even then.
        """
        return asyncio.run(self._serve_alone())

    async def _serve_alone(self) -> int:
        try:
            return await self.serve(signals=True)
        finally:
            await self._source.close_all()

    async def serve(self, *, signals: bool = False) -> int:
        """Joins the group and handles messages until it is stopped. Can be called only once.

        When the calling task is cancelled, running handlers are abandoned, and messages handled before are recorded.

        Args:
            signals: Handle SIGTERM and SIGINT: the first signal drains, the second ends the process at once with code
                1, even while a handler blocks the event loop.

        Returns:
            An exit code; see :class:`qdo.worker.failure.ExitCode`.

        Raises:
            HandlerError: The handler or its context cannot be used.
            MissingRights: The credential lacks rights that the settings need.
            QdoError: The worker could not join the group.
            ClientError: The service refused to look up the queues.
        """
        if self._loop is not None:
            raise InvalidArgument("a worker can be started only once")
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._stop_requested.set()
        if isinstance(self._runner, TaskExecutor):
            self._runner.interrupts = not signals and threading.current_thread() is threading.main_thread()
        with _handle_signals(self._on_signal, self._end_process) if signals else nullcontext():
            try:
                await self._runner.open()
                try:
                    await self._join_and_work()
                finally:
                    await self._runner.close()
            finally:
                self.metrics.close()
        return self._code

    @property
    def consumer(self) -> AsyncConsumer:
        """The consumer that is the member of the group.

        Raises:
            InvalidArgument: The worker claims messages and has no consumer.
        """
        if isinstance(self._consumer, Claims):
            raise InvalidArgument("this worker claims messages, so it has no consumer")
        return self._consumer

    @property
    def exit_code(self) -> int:
        """The return value of :meth:`serve`, or its current value while the worker serves."""
        return self._code

    @property
    def time_left(self) -> float:
        """Remaining seconds of ``drain``; 0 unless the worker drains."""
        return 0.0 if self._drained is None or self._loop is None else max(0.0, self._drained - self._loop.time())

    def give_up(self) -> bool:
        """Cancels or kills running handlers without waiting. Returns False if they are threads, which cannot be."""
        return self._runner.give_up()

    def stop(self) -> None:
        """Makes the worker drain and end. Returns at once. May be called at any time and from any thread."""
        loop = self._loop
        if loop is None:
            self._stopping = True
            return
        with suppress(RuntimeError):  # the loop is closed: the worker has ended
            loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._stop_requested.set()
            self._wake()

    def _stop_with(self, code: int) -> None:
        self._code = self._code or code
        self._stop()

    # -- the central loop

    async def _join_and_work(self) -> None:
        joined = False
        try:
            joined = await self._join()
            if joined:
                self._hooks.call("started", self)
                async with self._run_background_tasks():
                    await self._take_until_stopped()
        except BaseException:
            self._code = ExitCode.FAILED
            raise
        finally:
            await self._source.close()
            if joined:
                self._hooks.call("stopped", self)

    async def _join(self) -> bool:
        loop = asyncio.get_running_loop()
        joining, stopping = loop.create_task(self._source.start()), loop.create_task(self._stop_requested.wait())
        try:
            await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                return False
            joining.result()
            return True
        finally:
            await cancel(joining, stopping)

    async def _take_until_stopped(self) -> None:
        patience = 0.0
        try:
            while not self._stopping:
                if not await self._source.take():
                    await self._changed.wait()
                    self._changed.clear()
            patience = self.settings.drain
        finally:
            await self._drain(patience)

    async def _drain(self, patience: float) -> None:
        self._stopping = True
        loop = asyncio.get_running_loop()
        self._drained = loop.time() + patience
        logger.info("%s: running messages are finished, no more are started", self._stopped_by)
        if not await self._source.drain(patience):
            self._code = self._code or ExitCode.UNFINISHED
            patience = _GIVING_UP_SECONDS if self._runner.give_up() else 0.0
            await self._source.wait_until_ended(loop.time() + patience)

    @asynccontextmanager
    async def _run_background_tasks(self) -> AsyncIterator[None]:
        """Runs the source's background tasks during the block. An error in one of them ends the worker."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work) for work in self._source.background_tasks()]
        for task in tasks:
            task.add_done_callback(self._on_background_task_end)
        try:
            yield
        finally:
            await cancel(*tasks)

    def _on_background_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._handling.end_after_error(error)

    # -- what other parts report

    def _wake(self) -> None:
        self._changed.set()
        self._source.wake()

    def _end(self, end: StopTheWorker, failure: Failure) -> None:
        logger.info("ending: %s", "a handler raised StopWorker" if end.why == "asked" else failure)
        self._code = self._code or _EXIT_CODES[end.why]
        self._stop()

    def _on_signal(self, number: int) -> None:
        if not self._stopping:
            self._stopped_by = signal.Signals(number).name
            self._stop()

    def _end_process(self, number: int) -> None:
        try:
            self._runner.give_up()
            logger.warning("%s again: stopping at once", signal.Signals(number).name)
        finally:
            os._exit(ExitCode.FAILED)


@contextmanager
def _handle_signals(on_first: Callable[[int], None], on_second: Callable[[int], None]) -> Iterator[None]:
    """Handles SIGTERM and SIGINT: calls ``on_first`` in the loop at each, and ``on_second`` at a second one.

    ``on_second`` is called at once in the main thread, because a handler may be blocking the loop.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    in_children = DefaultSignals()
    first: float | None = None

    def at_signal(number: int, _frame: object) -> None:
        nonlocal first
        first = first or monotonic()
        if monotonic() - first > _SAME_SIGNAL_SECONDS:
            on_second(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_first, number)
        signal.signal(number, at_signal)
    try:
        yield
    finally:
        in_children.end()
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)


def _max_run_seconds(settings: WorkerSettings, consumer: AsyncConsumer | Claims) -> float:
    """Returns the seconds after which a run ends, even before its last message.

    With a group this is at most the session timeout. So a worker that was suspended longer than its session starts no
    other message of a run when it resumes.
    """
    if isinstance(consumer, Claims):
        return min(settings.slice, MAX_UNBEGUN_SECONDS)
    return min(settings.slice, consumer.coordinator.session_timeout)


def _make_executor(
    settings: WorkerSettings,
    seconds: float,
    source: Handler | HasHandler | str,
    handler: TaskHandler,
    context: Context | str | None,
    hooks: Hooks,
    process_setup: Callable[[], object] | None,
) -> Executor:
    """Returns the executor: processes if the settings have them, else tasks for async handlers and threads for others.

    Mixed handlers get tasks and threads. ``handler`` was made of ``source``, which child processes import by its name.
    Raises InvalidArgument if a plain handler would have a time limit in a thread.
    """
    factory = None if context is None else handlers.load_context(context)
    if settings.processes:
        name = source if isinstance(source, str) else handlers.find_import_name(source, "handler")
        made = factory and (context if isinstance(context, str) else handlers.find_import_name(factory, "context"))
        setup = ChildSetup(list(sys.path), process_setup, name, made, seconds)
        limit = min(settings.stalled_after, settings.time_limit or settings.stalled_after)
        return ProcessExecutor(setup, settings.processes, limit, hooks, handler.task_of)
    if limited := [task.name for task in handler.tasks.values() if task.timeout is not None and not task.is_async]:
        text = "a thread cannot be stopped, so use processes, or make it async"
        raise InvalidArgument(f"plain functions with a timeout: {', '.join(limited)}: {text}")
    call = handlers.wrap_in_span(handler.call, handler)
    if handler.call_plain is not None:
        call_plain = handlers.wrap_in_span(handler.call_plain, handler)
        threads = ThreadExecutor(call_plain, None, settings.threads, seconds, hooks)
        shared = call, factory, settings.tasks, seconds, hooks
        return MixedExecutor(*shared, limit=settings.time_limit, threads=threads, task_of=handler.task_of)
    if is_coroutine_handler(call):
        return TaskExecutor(call, factory, settings.tasks, seconds, hooks, limit=settings.time_limit)
    if settings.time_limit is not None:
        raise InvalidArgument("a thread cannot be stopped: a time limit for a plain handler needs processes")
    return ThreadExecutor(call, factory, settings.threads, seconds, hooks)
