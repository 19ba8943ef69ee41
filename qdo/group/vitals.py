"""Numbers in memory shared by a program and the helper process that keeps its session alive."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Self

CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that keeps running while the machine sleeps, is the same in all processes, and cannot be set."""
READY = b"+"
"""Sent by the helper process when it is ready."""
START_TIMEOUT = 10.0
"""Timeout for the start of the helper process, in seconds."""
STOPPED_STATES = "Tt"
"""States of a process that a signal or a debugger has stopped."""
_RAN, _LIMIT, _HEARD, _LAPSED, _COUNT = range(5)


now = partial(time.clock_gettime, CLOCK)
"""Returns seconds since the machine started."""


class Vitals:
    """The shared numbers. Only one process writes each number, in one step.

    The program's event loop calls :meth:`beat`. The helper process keeps the session alive for up to ``limit`` seconds
    after the last beat.
    """

    def __init__(self, file: int, program: int) -> None:
        self.file = file
        self.program = program
        self._numbers = memoryview(mmap.mmap(file, _COUNT * 8)).cast("d")

    @classmethod
    def create(cls, limit: float) -> Self:
        with _create_memory_file() as file:
            file.truncate(_COUNT * 8)
            vitals = cls(os.dup(file.fileno()), os.getpid())
        vitals._numbers[_LIMIT] = limit
        vitals.beat()
        return vitals

    # Written by the program

    def beat(self) -> None:
        self._numbers[_RAN] = now()

    def start_helper(self, module: str, *arguments: str, give: tuple[int, ...] = ()) -> socket.socket:
        """Starts a helper process that runs a module; returns this program's end of the socket between them.

        Each process detects the end of the other by the socket, and the helper process ends then. Its arguments are the
        program's id, the file descriptors of these numbers, of its end of the socket and of ``give``, and then
        ``arguments``.

        Raises:
            OSError: The process cannot be started.
        """
        ours, theirs = socket.socketpair()
        descriptors = (self.file, theirs.fileno(), *give)
        numbers = map(str, (self.program, *descriptors))
        try:
            process = subprocess.Popen(  # noqa: S603 - our own
                [sys.executable, "-m", module, *numbers, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        threading.Thread(target=process.wait, name="qdo-keepalive", daemon=True).start()
        return ours

    def close(self) -> None:
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    # Used by the helper process

    def record_answer(self, instant: float, *, lapsed: bool = False) -> None:
        """Records that the service answered. ``lapsed`` (it answered too late) is final."""
        if lapsed:
            self._numbers[_LAPSED] = True
        self._numbers[_HEARD] = instant

    @property
    def running(self) -> bool:
        """Whether the program exists, is not stopped, and ran its event loop within the limit."""
        return self.idle_seconds <= self.limit and os.getppid() == self.program and not _is_stopped(self.program)

    # Read by both

    @property
    def idle_seconds(self) -> float:
        return now() - self._numbers[_RAN]

    @property
    def limit(self) -> float:
        return self._numbers[_LIMIT]

    @property
    def last_heard(self) -> float | None:
        return self._numbers[_HEARD] or None

    @property
    def lapsed(self) -> bool:
        return bool(self._numbers[_LAPSED])


def _create_memory_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("qdo-vitals"), "r+b")
    return tempfile.TemporaryFile()


def _is_stopped(process: int) -> bool:
    """Returns whether a signal has stopped a process; False if the system does not show it."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in STOPPED_STATES
    return False


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
