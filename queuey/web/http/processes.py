"""The processes of a service: a parent that listens and watches, and workers that serve.

The parent binds the port once, with a socket for each worker, which that inherits (it is spawned, not forked): so the
port never refuses a connection while a worker is replaced, and its successor takes in what has come meanwhile. Each
worker says when it is up, and beats every second. One that ends is replaced, by the rule of :class:`Restarts`. One that
has not beaten for :data:`HEARTBEAT_TIMEOUT` seconds is ended with a traceback, one a minute at most, because a disk
that hangs stalls all of them.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import math
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, MutableSequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

STEADY_AFTER = 60.0
"""Min lifetime of a worker in seconds after which its end counts as the first one again."""
FIRST_PAUSE, MAX_PAUSE = 0.25, 5.0
"""Min and max seconds before a worker starts again that has ended several times in a row."""
HEARTBEAT_TIMEOUT = 30.0
"""Timeout of a worker's heartbeat, in seconds."""
TRACEBACK_TIMEOUT = 5.0
"""Timeout for a stalled worker to end with a traceback, in seconds; then it is killed."""
STALL_INTERVAL = 60.0
"""Interval between two workers that are ended because they stall, in seconds."""
HARD_STOP_AFTER = 5.0
"""Timeout beyond the shutdown timeout, in seconds; then the parent kills the rest."""
REBIND_FOR = 2.0
"""Timeout for the port, in seconds: workers of a service that was just killed release it a moment later."""

Work = Callable[[int, socket.socket, Connection], None]
"""Main function of a worker: its number, its sockets, and the pipe for a byte each second."""


def listen(host: str, port: int, backlog: int, count: int) -> list[socket.socket]:
    """Returns listening sockets of one port, one for each worker: the system shares connections out between them.

    Raises:
        OSError: The host is unknown or not of this machine, or the port is taken or not allowed.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    give_up = time.monotonic() + REBIND_FOR
    while True:
        found: list[socket.socket] = []
        try:
            # One that shares its port would share it with any service of this user.
            with _bound(socket.socket(family, kind, protocol), address, shared=False) as alone:
                alone.listen(1)
                address = alone.getsockname()
            for _ in range(count):
                found.append(_bound(socket.socket(family, kind, protocol), address, shared=True))
                found[-1].listen(backlog)
        except OSError as error:
            for listener in found:
                listener.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > give_up:
                raise
        else:
            return found
        time.sleep(0.1)


def _bound(listener: socket.socket, address: Any, *, shared: bool) -> socket.socket:  # noqa: ANN401 - of any family
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _beside(listener: socket.socket) -> socket.socket:
    """Returns another socket that listens at the port of this one."""
    other = _bound(socket.socket(listener.family, listener.type, listener.proto), listener.getsockname(), shared=True)
    other.listen(socket.SOMAXCONN)
    return other


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Returns where a socket listens."""
    host, port = listener.getsockname()[:2]
    return str(ipaddress.ip_address(host)), int(port)


class _Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, number: int, listener: socket.socket, work: Work) -> None:
        self.number = number
        self.began = time.monotonic()
        self.beat = self.began
        self.is_up = self.stalls = False
        self.beats, sender = multiprocessing.Pipe(duplex=False)
        self.process: BaseProcess = multiprocessing.get_context("spawn").Process(
            target=work, args=(number, listener, sender), name=f"queuey-worker-{number}"
        )
        self.process.start()
        sender.close()

    def read(self) -> None:
        """Reads the worker's heartbeats."""
        try:
            while self.beats.poll():
                self.beats.recv_bytes()
                self.beat, self.is_up = time.monotonic(), True
        except (EOFError, OSError):
            pass  # Its end is seen by itself.


class Restarts:
    """Decides when workers that have ended start again.

    A worker that a signal has ended starts again, whenever that was: the signal may come from an operator, or from a
    system without memory. One that has ended by itself starts again if any worker of the service has ever been up: its
    settings can be used. Else it waits for another worker to be up, and if none is left, the service cannot start.

    After its first end a worker starts again at once, then after pauses that grow up to :data:`MAX_PAUSE`.

    Attributes:
        was_up: A worker of the service has been up.
    """

    def __init__(self) -> None:
        self.was_up = False
        self._due: dict[int, float] = {}
        self._ends: Counter[int] = Counter()

    def end(self, number: int, code: int, lifetime: float, now: float) -> bool:
        """Records the end of a worker; returns whether it starts again at once.

        Args:
            number: The number of the worker.
            code: Its exit code; below 0: that of a signal.
            lifetime: Seconds from its start to its end.
            now: The time.
        """
        row = self._ends[number] = 1 if lifetime >= STEADY_AFTER else self._ends[number] + 1
        pause = min(FIRST_PAUSE * 2.0 ** min(row - 2, 10), MAX_PAUSE) if row > 1 else 0.0
        self._due[number] = now + pause if code < 0 or self.was_up else math.inf
        return self._due[number] <= now

    def up(self, now: float) -> None:
        """Records that a worker is up, so that workers that wait for it start."""
        self.was_up = True
        self._due = {number: now if due == math.inf else due for number, due in self._due.items()}

    def seconds(self, now: float) -> float:
        """Returns the seconds until a worker starts again; infinity: none does."""
        return max(0.0, min(self._due.values(), default=math.inf) - now)

    def pop_due(self, now: float) -> list[int]:
        """Returns the workers to start now; each is returned once."""
        numbers = [number for number, due in self._due.items() if due <= now]
        for number in numbers:
            del self._due[number]
        return numbers


class Parent:
    """Starts workers and keeps as many until a signal, or until none of them can start.

    Args:
        listeners: Where each of them listens. The socket of a worker that waits for its restart may be closed.
        work: What each of them does; importable by name.
        timeout: Seconds that they have for a stop.
    """

    def __init__(self, listeners: MutableSequence[socket.socket], work: Work, timeout: float) -> None:
        self._listeners = listeners
        self._work = work
        self._timeout = timeout
        self._workers: dict[int, _Worker] = {}
        self._restarts = Restarts()
        self._stopping = self._starting = False
        self._stalled = -STALL_INTERVAL
        self._signalled = False

    def run(self, announce: Callable[[], None]) -> int:
        """Runs until the end; returns the exit code.

        Args:
            announce: Called once, when the first worker is up.
        """
        signal.signal(signal.SIGTERM, self._stop_or_kill)
        signal.signal(signal.SIGINT, self._stop_or_kill)
        signal.signal(signal.SIGHUP, self._pass_on)
        for number in range(1, len(self._listeners) + 1):
            self._start(number)
        announced = False
        while self._workers or (not self._stopping and self._restarts.seconds(time.monotonic()) < math.inf):
            self._watch()
            if not announced and self._restarts.was_up:
                announced = True
                announce()
            for worker in [one for one in self._workers.values() if one.process.exitcode is not None]:
                self._remove(worker)
            for number in self._restarts.pop_due(time.monotonic()):
                self._start(number)
        failed = not self._stopping
        if failed:
            logger.error("No worker can start: the service ends.")
        # A signal during the interpreter's exit must not change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return int(failed)

    def _remove(self, worker: _Worker) -> None:
        """Removes a worker that has ended, and plans its restart."""
        self._read(worker)
        worker.beats.close()
        del self._workers[worker.number]
        if not self._stopping:
            logger.error("Unexpected exit of worker %d, with code %s.", worker.number, worker.process.exitcode)
            self._plan(worker.number, worker.process.exitcode or 0, time.monotonic() - worker.began)

    def _plan(self, number: int, code: int, lifetime: float) -> None:
        at_once = self._restarts.end(number, code, lifetime, time.monotonic())
        # The system would still give connections to a socket at which nobody accepts them.
        if not at_once and any(worker.is_up for worker in self._workers.values()):
            self._listeners[number - 1].close()

    def _start(self, number: int) -> None:
        if self._stopping:
            return
        self._starting = True
        try:
            if self._listeners[number - 1].fileno() < 0:
                self._listeners[number - 1] = _beside(next(one for one in self._listeners if one.fileno() >= 0))
            self._workers[number] = _Worker(number, self._listeners[number - 1], self._work)
        except OSError as error:
            logger.error("Worker %d cannot be started: %s", number, error)  # noqa: TRY400 - the system's limits
            self._plan(number, 1, 0.0)
        finally:
            self._starting = False
        if self._stopping:
            self._end_workers()  # type: ignore[unreachable] # a signal may have come meanwhile

    def _watch(self) -> None:
        """Waits for a beat, an end, a signal, or a second."""
        workers = list(self._workers.values())
        # A worker that has ended has closed its end, which would be news for ever.
        beats = [worker.beats for worker in workers if worker.process.exitcode is None]
        timeout = min(1.0, self._restarts.seconds(time.monotonic()))
        wait([*beats, *(worker.process.sentinel for worker in workers)], timeout=timeout)
        now = time.monotonic()
        for worker in workers:
            self._read(worker)
            if worker.stalls and now - self._stalled > TRACEBACK_TIMEOUT:
                _send(worker, signal.SIGKILL)
            elif worker.is_up and now - worker.beat > HEARTBEAT_TIMEOUT and now - self._stalled > STALL_INTERVAL:
                self._stalled, worker.stalls = now, True
                logger.error("Worker %d has stood still for %d s and is replaced.", worker.number, HEARTBEAT_TIMEOUT)
                _send(worker, signal.SIGABRT)

    def _read(self, worker: _Worker) -> None:
        worker.read()
        if worker.is_up and not self._restarts.was_up:
            self._restarts.up(time.monotonic())

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        # A socket is not closed while a worker is about to inherit it.
        if not self._starting:
            self._end_workers()
        timer = threading.Timer(self._timeout + HARD_STOP_AFTER, self._kill, (1,))
        timer.daemon = True
        timer.start()

    def _end_workers(self) -> None:
        for listener in self._listeners:
            listener.close()
        for worker in self._workers.values():
            _send(worker, signal.SIGTERM)

    def _stop_or_kill(self, number: int, frame: FrameType | None) -> None:
        """Stops on the first signal and kills on the second."""
        if self._signalled:
            logger.warning("Second signal: stopping at once.")
            self._kill(128 + number)
        self._signalled = True
        logger.info("Stopping; a second signal stops at once.")
        self._stop()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Makes all workers reload their certificate."""
        for worker in self._workers.values():
            _send(worker, signal.SIGHUP)

    def _kill(self, code: int) -> Any:  # noqa: ANN401 - does not return
        for worker in list(self._workers.values()):
            _send(worker, signal.SIGKILL)
        logging.shutdown()
        os._exit(code)


def _send(worker: _Worker, number: int) -> None:
    if worker.process.pid is not None and worker.process.exitcode is None:
        os.kill(worker.process.pid, number)
