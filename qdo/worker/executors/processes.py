"""Runs handlers in child processes, which compute in parallel and can be killed if they take too long.

A child leads a process group. The group is killed before the child is reaped, because until then its id cannot be
reused.

**The protocol** between a worker and a child, over a socket that only they have. The parent sends frames: first a
``ChildSetup``, then a ``ChildTask`` for each run. During a run it may send the index of a message, whose handler is
asked to stop. The child first answers ``READY``, or ``UNFIT`` and a frame with the reason. For each run it sends
``STATE`` and a frame whenever the handler sets a state, ``RESULT`` and a frame if a message has a result, then
``HANDLED`` for the message, and at the end ``ENDED`` and a frame with a ``RunResult``. So the parent always knows which
message is being handled, even if the child dies.

Beside the socket there is a pipe with a byte for each message of a run that has not begun. The child reads one before
it begins a message. The parent reads all that are left to end the run after the present message: this needs no answer
of the child, in which a handler may keep the interpreter busy for long.

Frames hold pickles, because both ends are the same program of the same user, and no other process has the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import FileIO
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple, cast

from qdo.errors import HandlerError, TimeLimit
from qdo.loops import cancel, start_task
from qdo.worker.failure import Failure, RunResult
from qdo.worker.handlers import Hooks, TaskOf
from qdo.worker.runs import Delivery, MessageRun
from queuey.client import Message, RetryPolicy

READY = b"r"
UNFIT = b"x"
HANDLED = b"."
STATE = b"#"
RESULT = b"$"
ENDED = b"="
LENGTH = struct.Struct("!I")


class ChildSetup(NamedTuple):
    """The setup of a child.

    Attributes:
        path: Module search path.
        before_import: Called before the handler is imported.
        handler: The name of the handler, ``module:function``.
        context: The name of the context factory, ``module:factory``, or None.
        seconds: Time after which a run ends, even before its last message.
    """

    path: list[str]
    before_import: Callable[[], object] | None
    handler: str
    context: str | None
    seconds: float


class ChildTask(NamedTuple):
    messages: tuple[Message, ...]
    place: Delivery
    keeps_results: bool = False


def make_frame(value: object) -> bytes:
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL) if value is not None else b""
    return LENGTH.pack(len(data)) + data


def load_frame(data: bytes) -> Any:  # noqa: ANN401 - any pickled value
    return pickle.loads(data) if data else None  # noqa: S301 - see the module


def read_frame(read: Callable[[int], bytes]) -> Any:  # noqa: ANN401 - any pickled value
    (length,) = LENGTH.unpack(read(LENGTH.size))
    return load_frame(read(length) if length else b"")


logger = logging.getLogger("qdo.worker")

_LEAVE_SECONDS = 5.0
"""Timeout for a child to exit its context before it is killed, in seconds."""
_CANCEL_SECONDS = 5.0
"""Timeout for a cancelled async task to end before its child is killed, in seconds."""
_MAX_RUN_MESSAGES = 10_000
"""Max messages that a child gets at a time, so that the pipe has room for their bytes."""
_PAUSES = RetryPolicy(base=0.5, cap=30.0)
"""Pauses between attempts to start a child."""


class Crashed(Exception):
    """A child process died while it handled a message."""


class Tokens:
    """The pipe with a byte for each message that has not begun. Iterating over it takes the bytes."""

    def __init__(self) -> None:
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        self.reader, self._writer = FileIO(reader), FileIO(writer, "w")

    def put(self, count: int) -> None:
        self.reader.read(_MAX_RUN_MESSAGES)
        self._writer.write(bytes(count))

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(partial(self.reader.read, 1), None)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


class ChildProcess:
    """A child process in its parent.

    Args:
        setup: The setup of the child.
        limit_of: Returns the max seconds of the present message of a run, and the task or handler for errors.

    Attributes:
        dead: Whether the child was killed.
        tokens: The messages of its run that have not begun.
        gone: Whether the child was killed, was not started, or has closed its end of the socket.
    """

    def __init__(self, setup: ChildSetup, limit_of: Callable[[MessageRun], tuple[float, str]]) -> None:
        self.dead = False
        self._setup = setup
        self._find_limit = limit_of
        self._process: subprocess.Popen[bytes] | None = None
        self.tokens = Tokens()
        self._reader = asyncio.StreamReader()
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """Starts the child and waits until it has imported the handler and entered the context.

        Raises:
            HandlerError: The child could not import the handler or enter the context, or it ended.
        """
        ours, theirs = socket.socketpair()
        try:
            await self._start_and_greet(ours, theirs)
        except BaseException:
            self._drop_line(ours)
            await self.kill()
            raise

    async def _start_and_greet(self, ours: socket.socket, theirs: socket.socket) -> None:
        try:
            with theirs:
                self._process = _spawn(theirs, self.tokens.reader)
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            self._writer.write(make_frame(self._setup))
            if await self._reader.readexactly(1) == READY:
                return
            answer, _ = await self._finish_reading_frame(b"")
            reason = str(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            reason = f"a process for the handler {self._setup.handler} {await self._describe_end()} while it started"
        raise HandlerError(reason)

    async def run(self, messages: Sequence[Message], place: Delivery, run: MessageRun) -> RunResult:
        """Sends messages to the child and waits for the result.

        If the child dies or has to be killed, the message that it was handling has failed. If the messages cannot be
        pickled, only the first is sent; alone, such a message has failed.
        """
        assert self._writer is not None  # noqa: S101 - it was started
        writer = self._writer
        before = run.handled
        run.notify_stop = lambda number: writer.write(make_frame(number - before))
        try:
            task = make_frame(ChildTask(tuple(messages), place, run.keeps_results))
        except Exception as error:  # noqa: BLE001 - a message that cannot be pickled fails like any other
            run.notify_stop = None
            if len(messages) > 1:
                run.accept(messages[:1], self.tokens)
                return await self.run(run.accepted, place, run)
            return RunResult(0, Failure.of(error))
        try:
            self.tokens.put(len(messages))
            writer.write(task)
            for number in run.to_stop:
                run.notify_stop(number)
            ran = await self._read_result(run)
        except TimeoutError:
            await self.kill()
            seconds, what = self._find_limit(run)
            failure = Failure.of(TimeLimit(f"{what} took longer than {seconds:g} s and was killed"))
            return RunResult(run.handled - before, failure)
        except (asyncio.IncompleteReadError, ConnectionError):
            failure = Failure.of(Crashed(f"the handler's process {await self._describe_end()}"))
            return RunResult(run.handled - before, failure)
        finally:
            run.notify_stop = None
        return ran

    async def _read_result(self, run: MessageRun) -> RunResult:
        """Reads progress, states and results until the run ends. The time limit begins anew with each message."""
        received = b""
        while True:
            async with asyncio.timeout(self._find_limit(run)[0]):
                while not received.startswith(HANDLED):
                    if received.startswith(ENDED):
                        ran, _ = await self._finish_reading_frame(received[1:])
                        return cast("RunResult", ran)
                    if received.startswith(STATE):
                        state, received = await self._finish_reading_frame(received[1:])
                        run.set_state(state)
                    elif received.startswith(RESULT):
                        result, received = await self._finish_reading_frame(received[1:])
                        run.keep_result(result)
                    elif not (received := await self._reader.read(4096)):
                        raise ConnectionResetError
            handled = len(received) - len(received.lstrip(HANDLED))
            run.handled, received = run.handled + handled, received[handled:]

    @property
    def gone(self) -> bool:
        return self.dead or self._process is None or self._reader.at_eof()

    def kill_group(self) -> None:
        """Kills the child's process group. Does nothing if called again: the group's id may be reused by then."""
        killed, self.dead = self.dead, True
        if self._process is not None and not killed:
            with contextlib.suppress(OSError):  # Some systems raise if all processes of the group have ended.
                os.killpg(self._process.pid, signal.SIGKILL)

    async def kill(self) -> int:
        self.kill_group()
        try:
            code = 0 if self._process is None else await asyncio.to_thread(self._process.wait)
            if self._writer is not None:
                self._writer.close()
                with contextlib.suppress(ConnectionError):
                    await self._writer.wait_closed()
        finally:
            self.tokens.close()  # Also if the wait is cancelled: the collector would complain of the pipe.
        return code

    async def close(self) -> None:
        if self._writer is not None:
            try:
                async with asyncio.timeout(_LEAVE_SECONDS):
                    self._writer.write_eof()
                    await self._reader.read()
            except TimeoutError:
                logger.warning("a handler's process did not leave its context in %g s and is killed", _LEAVE_SECONDS)
            except OSError:
                pass  # The child has ended.
        await self.kill()

    async def _finish_reading_frame(self, begun: bytes) -> tuple[Any, bytes]:
        size = LENGTH.size
        begun += await self._reader.readexactly(max(0, size - len(begun)))
        end = size + LENGTH.unpack(begun[:size])[0]
        begun += await self._reader.readexactly(max(0, end - len(begun)))
        return load_frame(begun[size:end]), begun[end:]

    async def _describe_end(self) -> str:
        code = await self.kill()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def _drop_line(self, ours: socket.socket) -> None:
        """Closes the socket without waiting, so that it is closed even if the wait for the child is cancelled."""
        if self._writer is None:
            ours.close()
        else:
            self._writer.close()


class ProcessExecutor:
    """Runs handlers in a fixed number of children, and replaces children that die.

    With hooks each message is sent separately, until the first failure. If one child cannot start when the executor
    opens, all are ended.

    Args:
        setup: The setup of each child.
        number: Number of children.
        limit: Max seconds of one message. The timeout of its task applies as well.
        hooks: Called around each message.
        task_of: Returns the task of a message.
    """

    def __init__(self, setup: ChildSetup, number: int, limit: float, hooks: Hooks, task_of: TaskOf) -> None:
        self.slots = number
        self._setup = setup
        self._limit = limit
        self._task_of = task_of
        self._hooks = hooks
        self._children: set[ChildProcess] = set()
        self._idle: asyncio.Queue[ChildProcess] = asyncio.Queue()
        self._running: set[asyncio.Task[RunResult]] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._given_up = False

    async def open(self) -> None:
        begun = [asyncio.create_task(self._add_child()) for _ in range(self.slots)]
        try:
            await asyncio.gather(*begun)
        except BaseException:
            await cancel(*begun)
            await self.close()
            raise

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        return start_task(self._run(run, place), self._running)

    def abandon(self, run: MessageRun) -> bool:  # noqa: ARG002 - the limit is the same for all
        return True

    def give_up(self) -> bool:
        self._given_up = True
        for child in self._children:
            child.kill_group()
        return True

    async def close(self) -> None:
        await cancel(*self._running, *self._replacing)
        await asyncio.gather(*(child.close() for child in self._children))
        self._children.clear()

    async def _run(self, run: MessageRun, place: Delivery) -> RunResult:
        """Runs messages in the first idle child that is alive, and replaces dead ones.

        After :meth:`give_up` the failure of a killed child does not count.
        """
        while (child := await self._idle.get()).gone:
            await child.kill()
            self._drop_dead(child, "a handler's process ended while it was idle")
        run.begun = True
        if self._hooks.around:
            ran = await self._run_one_by_one(child, run, place)
        else:
            run.accept(tuple(run.pending)[:_MAX_RUN_MESSAGES], child.tokens)
            try:
                ran = await child.run(run.accepted, place, run)
            finally:
                run.accept(run.messages, ())
        if not child.dead:
            self._idle.put_nowait(child)
            return ran
        self._drop_dead(child, ran.failure.text if ran.failure else "a handler's process is gone")
        run.cancelled = self._given_up
        return ran._replace(failure=None) if self._given_up else ran

    def _drop_dead(self, child: ChildProcess, why: str) -> None:
        self._children.discard(child)
        if not self._given_up:
            logger.warning("%s; another is started", why)
            start_task(self._replace(), self._replacing)

    async def _run_one_by_one(self, child: ChildProcess, run: MessageRun, place: Delivery) -> RunResult:
        total = RunResult(0)
        until = perf_counter() + self._setup.seconds
        for message in run.pending:
            if child.dead or perf_counter() > until:
                break
            self._hooks.call("before", message, place)
            ran = await child.run((message,), place, run)
            if ran.handled:
                self._hooks.call("after", message, place)
            total = total.combine(ran)
            if ran.failure is not None:
                break
        return total

    async def _replace(self) -> None:
        for failures in count(1):
            try:
                await self._add_child()
            except (HandlerError, OSError) as error:
                pause = _PAUSES.pause(failures, 1.0)
                logger.error("a handler's process could not be replaced, next attempt in %g s: %s", pause, error)  # noqa: TRY400 - the message is enough
                await asyncio.sleep(pause)
            else:
                return

    def _find_limit(self, run: MessageRun) -> tuple[float, str]:
        task = self._task_of(run.messages[run.handled]) if run.handled < len(run.messages) else None
        if task is None or task.timeout is None:
            return self._limit, "the handler"
        return min(self._limit, task.timeout + _CANCEL_SECONDS * task.is_async), f"task {task.name}"

    async def _add_child(self) -> None:
        child = ChildProcess(self._setup, self._find_limit)
        await child.start()
        self._children.add(child)
        self._idle.put_nowait(child)


def _spawn(theirs: socket.socket, tokens: FileIO) -> subprocess.Popen[bytes]:
    descriptors = theirs.fileno(), tokens.fileno()
    return subprocess.Popen(  # noqa: S603 - this very interpreter
        [sys.executable, "-m", "qdo.worker.executors.child", *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )
