"""``qdo work``: runs a worker, logs to standard error, and ends the process even if handlers hang.

A supervisor can then restart it. The timer of :mod:`faulthandler` ends a blocked process, because it does not need the
interpreter's lock. A process has only one such timer. It pauses while the machine sleeps, but not while a signal has
stopped the process.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import typer
from msgspec import structs

from qdo.cli import settings as table
from qdo.cli.opening import make_coordinator, open_client
from qdo.cli.options import with_settings
from qdo.cli.selection import suggest_similar
from qdo.cli.settings import WorkSettings
from qdo.errors import HandlerError, InvalidArgument, QdoError
from qdo.loops import cancel
from queuey.client import ClientError, enable_tracing
from queuey.client.lookup import find_queues
from queuey.runtime.logs import LineFormatter
from queuey.terminal import output

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from qdo.consumer.consumer import AsyncConsumer
    from qdo.group.protocol import Coordinator
    from qdo.worker.claim_source import Claims
    from qdo.worker.worker import Worker
    from queuey.client import AsyncClient

log = logging.getLogger("qdo.cli")


@with_settings(*table.table(), shows=False)
def work(settings: WorkSettings) -> None:
    """Handle the messages of queues: share their partitions with the other workers of a group, or claim the messages.

    SIGTERM and Ctrl-C finish the running messages; a second signal ends the process at once. Exit codes: 0 stopped,
    1 failed, 2 wrong usage, 3 a message failed and on_failure is stop, 4 handlers did not return in time.
    """
    configure_logs(settings.log_level, settings.log)
    print_whole_lines()
    if settings.trace:
        enable_tracing()
    # Like python -m: modules of the working directory can be imported.
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a string
    serving = _serve(settings)
    with asyncio.Runner() as runner:
        try:
            code = runner.run(serving)
        except (SystemExit, KeyboardInterrupt):
            if inspect.getcoroutinestate(serving) == inspect.CORO_CLOSED:
                raise
            log.critical("a task started by a handler ended the event loop, so the worker ends", exc_info=True)
            os._exit(1)  # like a crash: if the partition were released, it would only end the next worker, too
    raise typer.Exit(code)


async def _serve(settings: WorkSettings) -> int:
    from qdo.worker.failure import ExitCode

    settings = _with_queues_of_jobs(settings)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(settings, notice=None))
        coordinator = None if settings.claim else make_coordinator(settings, client)
        if coordinator is not None:
            stack.push_async_callback(coordinator.close)
        session = 0.0 if coordinator is None else coordinator.session_timeout
        hangs_after = max(settings.worker.stalled_after, session)
        with _serve_metrics(settings.metrics) as registry:
            worker = _make_worker(settings, _make_source(settings, client, coordinator), registry)
            watching = asyncio.create_task(_stop_without_queue(worker, client, settings))
            try:
                end_at_once_on_signals()
                async with end_process_if_blocked(hangs_after):
                    code = await worker.serve(signals=True)
                return ExitCode.FAILED if watching.done() and watching.result() else code
            except HandlerError as error:
                # The handler was found and callable, so the error may be temporary: a supervisor should retry.
                output.print_note(f"qdo: {error}")
                return ExitCode.FAILED
            finally:
                watching.cancel()


async def _stop_without_queue(worker: Worker, client: AsyncClient, settings: WorkSettings) -> bool:
    """Stops the worker, prints a note and returns True if none of its queues exists after ``wait_for_queue``.

    Hidden queues count as existing. After an error of the service it waits as long again. With a pattern, or if
    ``wait_for_queue`` is 0, it returns False at once.
    """
    if settings.pattern or not settings.wait_for_queue:
        return False
    while True:
        await asyncio.sleep(settings.wait_for_queue)
        with suppress(ClientError):
            named = await find_queues(client, settings.queue)
            break
    if named.found or named.hidden:
        return False
    missing, hint = ", ".join(settings.queue), await suggest_similar(client, settings.queue)
    output.print_note(
        f"qdo: there is no queue {missing}, after {settings.wait_for_queue:g} s{hint} "
        "Create it with queuey queue create, or wait longer with --wait-for-queue"
    )
    worker.stop()
    return True


def _with_queues_of_jobs(settings: WorkSettings) -> WorkSettings:
    from qdo.tasks import Jobs

    handler = _load_handler(settings.handler, settings.context)
    if not isinstance(handler, Jobs):
        return settings
    return structs.replace(settings, claim=True, queue=settings.queue or handler.queues)


def _load_handler(handler: str | None, context: str | None) -> object:
    from qdo.worker import handlers

    try:
        objects = [handlers.import_by_name(name) for name in (handler, context) if name is not None]
        return objects[0] if handler is not None else None
    finally:
        enable_logs()


def _make_source(
    settings: WorkSettings, client: AsyncClient, coordinator: Coordinator | None
) -> AsyncConsumer | Claims:
    from qdo.consumer.consumer import AsyncConsumer
    from qdo.worker.claim_source import Claims

    if coordinator is not None:
        if not settings.queue and not settings.pattern:
            raise InvalidArgument("the queues are missing: --queue or --pattern")
        return AsyncConsumer(
            client,
            coordinator,
            queues=settings.queue,
            patterns=settings.pattern,
            member=settings.name,
            settings=settings.consumer,
        )
    consumer, worker = settings.consumer, settings.worker
    for_groups: dict[str, object] = {
        "group": settings.group,
        "pattern": settings.pattern,
        "name": settings.name,
        "by": worker.by,
    }
    for_groups |= {"grace": consumer.grace, "mirror": consumer.mirror, "dead_queue": worker.dead_queue}
    for name, value in for_groups.items():
        if value:
            raise InvalidArgument(f"--{name.replace('_', '-')} needs a group, and --claim works without one")
    if not settings.queue:
        raise InvalidArgument("the queues to claim from are missing: --queue")
    return Claims(client, settings.queue, ttl=settings.claim_ttl)


def _make_worker(settings: WorkSettings, source: AsyncConsumer | Claims, registry: CollectorRegistry | None) -> Worker:
    from qdo.worker.worker import Worker

    if settings.handler is None:
        raise InvalidArgument("the handler is missing: qdo work module:function")
    modules = settings.handler, settings.context
    return Worker(
        settings.handler,
        source,
        context=settings.context,
        settings=settings.worker,
        registry=registry,
        middleware=[ProcessEnder()],
        process_setup=partial(
            _set_up_child,
            settings.log_level,
            settings.log,
            settings.worker.stalled_after,
            modules,
            trace=settings.trace,
        ),
    )


def _set_up_child(
    log_level: str, log_form: str, stalled_after: float, modules: tuple[str, str | None], *, trace: bool
) -> None:
    configure_logs(log_level, log_form)
    print_whole_lines()
    if trace:
        enable_tracing()
    end_child_if_blocked(stalled_after)
    _load_handler(*modules)


@contextmanager
def _serve_metrics(address: str | None) -> Iterator[CollectorRegistry | None]:
    if address is None:
        yield None
        return
    from prometheus_client import ProcessCollector, start_http_server
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry=registry)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise QdoError(f"metrics cannot be served on {address!r}: {reason}. Give another address") from error
    try:
        log.info("Metrics are at http://%s:%d/metrics", host, server.server_port)
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


CHATTY_LOGGERS = ("httpx2", "httpcore2", "kazoo")
"""Libraries that log every request; only their warnings are logged."""


OUR_LOGGERS = ("qdo", "queuey")


def enable_logs() -> None:
    """Enables our loggers again, because ``logging.config`` disables existing loggers by default."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in OUR_LOGGERS:
            logging.getLogger(name).disabled = False


def configure_logs(level: str, form: str) -> None:
    """Replaces all handlers of the root logger by one to standard error; :data:`CHATTY_LOGGERS` only log warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


class WholeLines(io.TextIOWrapper):
    """Standard output of handlers, in which lines of several threads and processes are not mixed.

    A line is written at once when it ends, when its thread flushes, and when it has :data:`MAX_LINE` characters.
    """

    MAX_LINE = 4096

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
        self._stream = stream  # Without a reference, the stream would be collected and close the buffer.
        self._begun: dict[int, str] = {}

    def write(self, text: str) -> int:
        """Writes complete lines only. Keeps the rest of the thread's text until its line ends or is too long."""
        me = threading.get_ident()
        lines, newline, rest = (self._begun.pop(me, "") + text).rpartition("\n")
        if rest and len(rest) < self.MAX_LINE:
            self._begun[me], rest = rest, ""
        super().write(lines + newline + rest)
        return len(text)

    def flush(self) -> None:
        """Writes the begun line of the thread; in the main thread, those of all threads."""
        # The main thread flushes last, at the end of the process, so it writes the lines of all threads.
        is_main = threading.current_thread() is threading.main_thread()
        for thread in list(self._begun) if is_main else [threading.get_ident()]:
            super().write(self._begun.pop(thread, ""))
        super().flush()


def print_whole_lines() -> None:
    """Makes the output of handlers appear line by line, also in a pipe."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = WholeLines(sys.stdout)


_MAX_TIMER_INTERVAL = 1.0
"""Max seconds between two resets of the timer."""
_STANDARD_ERROR = 2
_MIN_END_TIMEOUT = 1.0
"""Min seconds that tasks, threads and the handlers' context have to end after the worker, even if ``drain`` is over."""


@asynccontextmanager
async def end_process_if_blocked(seconds: float) -> AsyncIterator[None]:
    """Ends the process with code 1 and prints its stacks if the event loop is blocked for ``seconds``."""

    async def postpone() -> None:
        while True:
            interval = _set_timer(seconds)
            await asyncio.sleep(interval)

    postponing = asyncio.create_task(postpone())
    try:
        yield
    finally:
        await cancel(postponing)
        faulthandler.cancel_dump_traceback_later()


def end_child_if_blocked(seconds: float) -> None:
    """Ends a child process if its interpreter is blocked for ``seconds`` and no parent is left to kill it."""

    def postpone() -> None:
        while True:
            time.sleep(_set_timer(seconds))

    threading.Thread(target=postpone, name="qdo-blocked", daemon=True).start()


def _set_timer(seconds: float) -> float:
    """Restarts the timer that ends the process after ``seconds``; returns when to call this again, in seconds."""
    interval = min(_MAX_TIMER_INTERVAL, seconds / 10)
    # Two intervals later, so that the session ends first and the log shows the reason.
    faulthandler.dump_traceback_later(seconds + 2 * interval, exit=True, file=_STANDARD_ERROR)
    return interval


class ProcessEnder:
    """Middleware that ends the process in time even if a handler's tasks or threads outlast the worker."""

    def stopped(self, worker: Worker) -> None:
        """Starts a timer that ends the process when the time for draining is over."""
        # Tasks and threads get the rest of the time for draining.
        timer = threading.Timer(max(_MIN_END_TIMEOUT, worker.time_left), self._end_process, [worker, sys.exc_info()[1]])
        timer.daemon = True
        timer.start()

    @staticmethod
    def _end_process(worker: Worker, error: BaseException | None) -> None:
        try:
            worker.give_up()
            if error is not None:
                log.critical("the worker ends because of an error: %s", error)
            log.warning("tasks or threads started by handlers are still running: the process ends without them")
            sys.stdout.flush()
        finally:
            os._exit(worker.exit_code)


def end_at_once_on_signals() -> None:
    """Makes SIGTERM and SIGINT end the process at once, until the worker handles these signals."""
    from qdo.worker.failure import ExitCode

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(ExitCode.FAILED))
