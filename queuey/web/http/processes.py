"""The processes of a service: a parent that listens and watches, and workers that serve.

The parent binds the port once, with a socket for each worker, which that inherits (it is spawned, not forked): so the
port never refuses a connection while a worker is replaced, and its successor takes in what has come meanwhile. Each
worker says when it is up, and beats every second. One that ends is replaced; if one never was up, or a successor ends
within :data:`MIN_LIFETIME` seconds, the service ends. One that has not beaten for :data:`HEARTBEAT_TIMEOUT` seconds is
ended with a traceback, one a minute at most, because a disk that hangs stalls all of them.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

MIN_LIFETIME = 3.5
"""Min lifetime of a worker in seconds; a shorter one is a failed start."""
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


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Returns where a socket listens."""
    host, port = listener.getsockname()[:2]
    return str(ipaddress.ip_address(host)), int(port)


class _Worker:
    """A worker process, as the parent sees it."""

    def __init__(self, number: int, listener: socket.socket, work: Work, *, replaces: bool) -> None:
        self.number = number
        self.replaces = replaces
        self.began = time.monotonic()
        self.beat = self.began
        self.is_up = self.stalls = False
        self.beats, sender = multiprocessing.Pipe(duplex=False)
        self.process: BaseProcess = multiprocessing.get_context("spawn").Process(
            target=work, args=(number, listener, sender), name=f"queuey-worker-{number}"
        )
        self.process.start()
        sender.close()

    @property
    def has_failed(self) -> bool:
        """True if it ended so soon that no worker could start."""
        soon = self.replaces and time.monotonic() - self.began < MIN_LIFETIME
        return not self.stalls and (soon or not self.is_up)

    def read(self) -> None:
        """Reads the worker's heartbeats."""
        try:
            while self.beats.poll():
                self.beats.recv_bytes()
                self.beat, self.is_up = time.monotonic(), True
        except (EOFError, OSError):
            pass  # Its end is seen by itself.


class Parent:
    """Starts workers and keeps as many until a signal, or until they fail at their start.

    Args:
        listeners: Where each of them listens.
        work: What each of them does; importable by name.
        timeout: Seconds that they have for a stop.
    """

    def __init__(self, listeners: Sequence[socket.socket], work: Work, timeout: float) -> None:
        self._listeners = listeners
        self._work = work
        self._timeout = timeout
        self._workers: dict[int, _Worker] = {}
        self._stopping = False
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
            self._start(number, replaces=False)
        code, announced = 0, False
        while self._workers:
            self._watch()
            if not announced and any(worker.is_up for worker in self._workers.values()):
                announced = True
                announce()
            for worker in [one for one in self._workers.values() if one.process.exitcode is not None]:
                worker.read()
                worker.beats.close()
                del self._workers[worker.number]
                if not self._stopping:
                    code = self._replace(worker)
        # A signal during the interpreter's exit must not change the exit code.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code

    def _replace(self, worker: _Worker) -> int:
        """Starts another worker in the place of one that has ended, or ends the service; returns its exit code."""
        logger.error("Unexpected exit of worker %d, with code %s.", worker.number, worker.process.exitcode)
        if not worker.has_failed:
            self._start(worker.number, replaces=not worker.stalls)
            return 0
        logger.error("No worker can go on: the service ends.")
        self._stop()
        return 1

    def _start(self, number: int, *, replaces: bool) -> None:
        self._workers[number] = _Worker(number, self._listeners[number - 1], self._work, replaces=replaces)

    def _watch(self) -> None:
        """Waits for a beat, an end, a signal, or a second."""
        workers = list(self._workers.values())
        # A worker that has ended has closed its end, which would be news for ever.
        beats = [worker.beats for worker in workers if worker.process.exitcode is None]
        wait([*beats, *(worker.process.sentinel for worker in workers)], timeout=1.0)
        now = time.monotonic()
        for worker in workers:
            worker.read()
            if worker.stalls and now - self._stalled > TRACEBACK_TIMEOUT:
                _send(worker, signal.SIGKILL)
            elif worker.is_up and now - worker.beat > HEARTBEAT_TIMEOUT and now - self._stalled > STALL_INTERVAL:
                self._stalled, worker.stalls = now, True
                logger.error("Worker %d has stood still for %d s and is replaced.", worker.number, HEARTBEAT_TIMEOUT)
                _send(worker, signal.SIGABRT)

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        for worker in self._workers.values():
            _send(worker, signal.SIGTERM)
        timer = threading.Timer(self._timeout + HARD_STOP_AFTER, self._kill, (1,))
        timer.daemon = True
        timer.start()

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
