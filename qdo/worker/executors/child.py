"""The child process: ``python -m qdo.worker.executors.child <socket> <pipe>`` handles runs sent by its parent.

The main thread calls the handler. Another thread listens to the parent, so that the child ends at once when the parent
is gone, even in the middle of a message: without the parent, the result could not be recorded.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack
from io import FileIO
from itertools import takewhile
from queue import SimpleQueue
from typing import Any, BinaryIO

from qdo.errors import HandlerError
from qdo.worker.executors.in_process import enter_context, run_async, run_plain
from qdo.worker.executors.processes import (
    ENDED,
    HANDLED,
    READY,
    RESULT,
    STATE,
    UNFIT,
    ChildSetup,
    ChildTask,
    make_frame,
    read_frame,
)
from qdo.worker.failure import RunResult
from qdo.worker.handlers import Handler, load_context, make_handler, wrap_in_span
from qdo.worker.runs import Delivery, MessageRun
from queuey.client.calls.job_calls import JobResult
from queuey.client.claims.handlers import is_coroutine_handler
from queuey.client.forks import DefaultSignals, register_forkable


class ProgressReporter:
    """Sends progress to the parent, but not from processes that a handler forks.

    Only this process has the socket, and the kernel closes it when the process ends. So the parent detects the end of
    the process by the end of the stream.
    """

    around = True

    def __init__(self, line: socket.socket) -> None:
        line.set_inheritable(False)
        self._line = line
        self._kept_open = os.dup(line.fileno())
        self._lock = threading.Lock()
        register_forkable(self)

    def begin_in_child(self) -> None:
        """Stops reporting in a process forked from this one, and closes the socket there."""
        self._line.close()
        os.close(self._kept_open)
        self.send = lambda _: None  # type: ignore[method-assign, assignment] # a fork handles no messages

    def call(self, name: str, *_arguments: object) -> None:
        if name == "after":
            self.send(HANDLED)

    def send(self, data: bytes) -> None:
        with self._lock:
            self._line.sendall(data)


class ChildRun(MessageRun):
    """A run whose states and results are sent to the parent. States that are set after its end are ignored."""

    __slots__ = ("reporter",)

    def __init__(self, task: ChildTask, reporter: ProgressReporter, tokens: BinaryIO) -> None:
        super().__init__(task.messages, task.place.attempt)
        self.accept(task.messages, takewhile(lambda _: tokens.read(1), task.messages))
        self.reporter = reporter
        self.keeps_results = task.keeps_results

    def keep_result(self, result: JobResult | None) -> None:
        if result is not None:
            self.reporter.send(RESULT + make_frame(result))

    def set_state(self, state: bytes) -> None:
        if not self.settled:
            self.reporter.send(STATE + make_frame(state))


class ParentListener:
    """Reads what the parent sends: the setup, then, in a thread, runs and requests to stop."""

    def __init__(self, line: socket.socket, reporter: ProgressReporter, tokens: BinaryIO) -> None:
        self._line = line
        self._reporter = reporter
        self._tokens = tokens
        self._run: MessageRun | None = None
        self.tasks: SimpleQueue[tuple[MessageRun, Delivery] | None] = SimpleQueue()
        self.busy = False

    def receive(self, count: int) -> bytes:
        chunks = []
        while count:
            chunk = self._line.recv(min(count, 1 << 20))
            if not chunk:
                raise EOFError
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    def listen(self) -> None:
        try:
            while True:
                task: ChildTask | int = read_frame(self.receive)
                if not isinstance(task, int):
                    self._run = ChildRun(task, self._reporter, self._tokens)
                    self.busy = True
                    self.tasks.put((self._run, task.place))
                elif self._run is not None:
                    self._run.ask_to_stop(task)
        except (EOFError, OSError):
            if self.busy:
                os._exit(1)
            self.tasks.put(None)


def main(descriptor: int, pipe: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the parent ends this process; programs started here get the defaults
    in_children = DefaultSignals()
    os.set_inheritable(pipe, False)  # noqa: FBT003 - has no name
    with socket.socket(fileno=descriptor) as line, FileIO(pipe) as tokens, asyncio.Runner() as runner:
        reporter = ProgressReporter(line)
        listener = ParentListener(line, reporter, tokens)
        setup: ChildSetup = read_frame(listener.receive)
        entered = AsyncExitStack()
        try:
            handler, context = runner.run(_prepare(setup, entered))
        except HandlerError as error:
            line.sendall(UNFIT + make_frame(str(error)))
            return
        line.sendall(READY)
        threading.Thread(target=listener.listen, daemon=True).start()
        while (job := listener.tasks.get()) is not None:
            ran = run_task(runner, handler, context, *job, setup.seconds, reporter)
            listener.busy = False
            reporter.send(ENDED + make_frame(ran))
        runner.run(entered.aclose())
    in_children.end()


async def _prepare(setup: ChildSetup, entered: AsyncExitStack) -> tuple[Handler, Any]:
    sys.path[:] = setup.path
    if setup.before_import is not None:
        setup.before_import()
    handler = make_handler(setup.handler)
    context = await enter_context(load_context(setup.context) if setup.context else None, entered)
    return wrap_in_span(handler.call, handler), context


def run_task(runner: asyncio.Runner, handler: Any, context: object, run: MessageRun, *rest: Any) -> RunResult:  # noqa: ANN401 - as for run_plain
    arguments: Any = handler, context, run, *rest
    ran = runner.run(run_async(*arguments)) if is_coroutine_handler(handler) else run_plain(*arguments)
    run.settled = True
    return ran


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
