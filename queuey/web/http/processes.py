"""The processes of a service: a parent that listens and supervises, and workers that serve.

The parent binds the port once, with a socket for each worker, which inherits it (it is spawned, not forked). So the
port never refuses a connection while a worker is replaced: its successor accepts those that have arrived meanwhile.
Each worker sends a heartbeat every second, from the time it is up. A worker that ends is replaced, by the rule of
:class:`Restarts`. A worker without a heartbeat for :data:`HEARTBEAT_TIMEOUT` seconds is ended with a traceback, at most
one a minute, because a disk that hangs stalls all of them.
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
from collections.abc import Callable, Iterable, MutableSequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

MIN_STEADY_LIFETIME = 60.0
"""Min lifetime of a worker, in seconds, after which its next end counts as its first."""
MIN_PAUSE, MAX_PAUSE = 0.25, 5.0
"""Min and max pause before a worker restarts that has ended several times in a row, in seconds."""
HEARTBEAT_TIMEOUT = 30.0
"""Timeout of a worker's heartbeat, in seconds."""
TRACEBACK_TIMEOUT = 5.0
"""Timeout for a stalled worker to end with a traceback, in seconds; then it is killed."""
STALL_INTERVAL = 60.0
"""Min interval between ending two stalled workers, in seconds."""
KILL_DELAY = 5.0
"""Seconds after the shutdown timeout at which the parent kills the remaining workers."""
BIND_TIMEOUT = 2.0
"""Timeout for binding the port, in seconds: workers of a service that was just killed release it a moment later."""

Work = Callable[[int, socket.socket, Connection], None]
"""Main function of a worker: its number, its socket, and the pipe for its heartbeats."""


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Returns sockets of one port, one for each worker, which no other service can use, but do not :func:`listen` yet.

    A port that is in use is tried again for :data:`BIND_TIMEOUT` seconds.

    Raises:
        OSError: The host is unknown or not of this machine, or the port is in use or not allowed.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    deadline = time.monotonic() + BIND_TIMEOUT
    while True:
        listeners: list[socket.socket] = []
        try:
            # Sockets that share a port would also share it with another service of this user.
            # It must not listen: a program that waits for the port would be let in, and cut off.
            with _bind(socket.socket(family, kind, protocol), address, shared=False) as exclusive:
                address = exclusive.getsockname()
            listeners.extend(_bind(socket.socket(family, kind, protocol), address, shared=True) for _ in range(count))
        except OSError as error:
            for listener in listeners:
                listener.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        else:
            return listeners
        time.sleep(0.1)


def listen(listeners: Iterable[socket.socket], backlog: int) -> None:
    """Begins to accept connections, which the system distributes among the sockets."""
    for listener in listeners:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(backlog)


def _bind(listener: socket.socket, address: Any, *, shared: bool) -> socket.socket:  # noqa: ANN401 - of any family
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        # As long as it does not listen, others could bind and listen at an address that may be reused.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not shared)
    except OSError:
        listener.close()
        raise
    return listener


def _open_on_same_port(listener: socket.socket) -> socket.socket:
    other = _bind(socket.socket(listener.family, listener.type, listener.proto), listener.getsockname(), shared=True)
    listen([other], socket.SOMAXCONN)
    return other


def address_of(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()[:2]
    return str(ipaddress.ip_address(host)), int(port)


class _Worker:
    """A worker process, which starts at once.

    Attributes:
        beat: Time of its last heartbeat or, before the first, of its start, by the monotonic clock.
        is_up: It has sent a heartbeat.
        stalls: It was sent SIGABRT, because its heartbeats have stopped.
    """

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

    def read_heartbeats(self) -> None:
        try:
            while self.beats.poll():
                self.beats.recv_bytes()
                self.beat, self.is_up = time.monotonic(), True
        except (EOFError, OSError):
            pass  # The parent notices the exit by the sentinel.


class Restarts:
    """Decides when workers that have ended start again.

    A worker that a signal has ended always starts again: the signal may come from an operator, or from a system out of
    memory. A worker that has ended by itself starts again if any worker of the service has ever been up, as this proves
    that the settings can be used. Otherwise it waits until another worker is up; if none is left, the service cannot
    start.

    After its first end a worker starts again at once, then after pauses that grow up to :data:`MAX_PAUSE`.

    Attributes:
        was_up: A worker of the service has been up.
    """

    def __init__(self) -> None:
        self.was_up = False
        self._due: dict[int, float] = {}
        self._ends: Counter[int] = Counter()

    def record_end(self, number: int, code: int, lifetime: float, now: float) -> bool:
        """Records the end of a worker; returns whether it starts again at once.

        Args:
            number: The number of the worker.
            code: The exit code; negative for a signal.
            lifetime: Seconds from its start to its end.
            now: Monotonic time, in seconds.
        """
        ends_in_a_row = self._ends[number] = 1 if lifetime >= MIN_STEADY_LIFETIME else self._ends[number] + 1
        pause = min(MIN_PAUSE * 2.0 ** min(ends_in_a_row - 2, 10), MAX_PAUSE) if ends_in_a_row > 1 else 0.0
        self._due[number] = now + pause if code < 0 or self.was_up else math.inf
        return self._due[number] <= now

    def record_up(self, now: float) -> None:
        """Records that a worker is up. All workers that waited for this are due now."""
        self.was_up = True
        self._due = {number: now if due == math.inf else due for number, due in self._due.items()}

    def seconds_to_next(self, now: float) -> float:
        """Returns the seconds until the next restart, or infinity if none is planned or all wait for a worker."""
        return max(0.0, min(self._due.values(), default=math.inf) - now)

    def pop_due(self, now: float) -> list[int]:
        numbers = [number for number, due in self._due.items() if due <= now]
        for number in numbers:
            del self._due[number]
        return numbers


class Parent:
    """Starts the workers and keeps them running until a signal, or until none of them can start.

    Args:
        listeners: The socket of each worker. The socket of a worker that waits for its restart may be closed.
        work: Main function of the workers; importable by name.
        timeout: Shutdown timeout of the workers, in seconds.
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
        """Supervises the workers until the service ends; returns the exit code: 1 if no worker could start, or else 0.

        Handles SIGTERM, SIGINT and SIGHUP, and ignores the first two afterwards.

        Args:
            announce: Called once, when the first worker is up.
        """
        signal.signal(signal.SIGTERM, self._stop_or_kill)
        signal.signal(signal.SIGINT, self._stop_or_kill)
        signal.signal(signal.SIGHUP, self._pass_on_hangup)
        for number in range(1, len(self._listeners) + 1):
            self._start(number)
        announced = False
        while self._workers or (not self._stopping and self._restarts.seconds_to_next(time.monotonic()) < math.inf):
            self._watch_workers()
            if not announced and self._restarts.was_up:
                announced = True
                announce()
            for worker in [w for w in self._workers.values() if w.process.exitcode is not None]:
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
        self._read_heartbeats(worker)
        worker.beats.close()
        del self._workers[worker.number]
        if not self._stopping:
            logger.error("Worker %d has ended unexpectedly, with exit code %s.", worker.number, worker.process.exitcode)
            self._plan_restart(worker.number, worker.process.exitcode or 0, time.monotonic() - worker.began)

    def _plan_restart(self, number: int, code: int, lifetime: float) -> None:
        """Plans the restart of a worker.

        Unless it restarts at once, closes its socket while others are up, so that it gets no connections.
        """
        at_once = self._restarts.record_end(number, code, lifetime, time.monotonic())
        # The system would still queue connections at a socket from which no process accepts them.
        if not at_once and any(worker.is_up for worker in self._workers.values()):
            self._listeners[number - 1].close()

    def _start(self, number: int) -> None:
        if self._stopping:
            return
        self._starting = True
        try:
            if self._listeners[number - 1].fileno() < 0:
                self._listeners[number - 1] = _open_on_same_port(next(s for s in self._listeners if s.fileno() >= 0))
            self._workers[number] = _Worker(number, self._listeners[number - 1], self._work)
        except OSError as error:
            logger.error("Worker %d cannot be started: %s", number, error)  # noqa: TRY400 - the system's limits
            self._plan_restart(number, 1, 0.0)
        finally:
            self._starting = False
        if self._stopping:
            self._end_workers()  # type: ignore[unreachable] # a signal may have come meanwhile

    def _watch_workers(self) -> None:
        workers = list(self._workers.values())
        # The pipe of a worker that has ended would always be ready.
        beats = [worker.beats for worker in workers if worker.process.exitcode is None]
        timeout = min(1.0, self._restarts.seconds_to_next(time.monotonic()))
        wait([*beats, *(worker.process.sentinel for worker in workers)], timeout=timeout)
        now = time.monotonic()
        for worker in workers:
            self._read_heartbeats(worker)
            if worker.stalls and now - self._stalled > TRACEBACK_TIMEOUT:
                _send_signal(worker, signal.SIGKILL)
            elif worker.is_up and now - worker.beat > HEARTBEAT_TIMEOUT and now - self._stalled > STALL_INTERVAL:
                self._stalled, worker.stalls = now, True
                logger.error("Worker %d sent no heartbeat for %d s and is replaced.", worker.number, HEARTBEAT_TIMEOUT)
                _send_signal(worker, signal.SIGABRT)

    def _read_heartbeats(self, worker: _Worker) -> None:
        worker.read_heartbeats()
        if worker.is_up and not self._restarts.was_up:
            self._restarts.record_up(time.monotonic())

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        # A socket is not closed while a worker is about to inherit it.
        if not self._starting:
            self._end_workers()
        timer = threading.Timer(self._timeout + KILL_DELAY, self._kill_workers_and_exit, (1,))
        timer.daemon = True
        timer.start()

    def _end_workers(self) -> None:
        for listener in self._listeners:
            listener.close()
        for worker in self._workers.values():
            _send_signal(worker, signal.SIGTERM)

    def _stop_or_kill(self, number: int, frame: FrameType | None) -> None:
        if self._signalled:
            logger.warning("Second signal: stopping at once.")
            self._kill_workers_and_exit(128 + number)
        self._signalled = True
        logger.info("Stopping; a second signal stops at once.")
        self._stop()

    def _pass_on_hangup(self, number: int, frame: FrameType | None) -> None:
        for worker in self._workers.values():
            _send_signal(worker, signal.SIGHUP)

    def _kill_workers_and_exit(self, code: int) -> Any:  # noqa: ANN401 - does not return
        for worker in list(self._workers.values()):
            _send_signal(worker, signal.SIGKILL)
        logging.shutdown()
        os._exit(code)


def _send_signal(worker: _Worker, number: int) -> None:
    if worker.process.pid is not None and worker.process.exitcode is None:
        os.kill(worker.process.pid, number)
