"""Numbers in shared memory, of a program and the process that keeps its session alive."""

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
"""Counts while the machine sleeps too, is the same in all processes, and cannot be set."""
READY = b"+"
"""Sent by the process when it is ready."""
BEGINNING = 10.0
"""Timeout for its start, in seconds."""
STOPPED = "Tt"
"""States of a process that a signal or a debugger has stopped."""
_RAN, _LIMIT, _HEARD, _LAPSED, _COUNT = range(5)


now = partial(time.clock_gettime, CLOCK)
"""Returns seconds since the machine was started."""


class Vitals:
    """The shared numbers. Each is written by one process, in one step."""

    def __init__(self, file: int, program: int) -> None:
        self.file = file
        self.program = program
        self._numbers = memoryview(mmap.mmap(file, _COUNT * 8)).cast("d")

    @classmethod
    def begin(cls, limit: float) -> Self:
        """Makes the vitals of this program, which may be held up for ``limit`` seconds."""
        with _memory() as file:
            file.truncate(_COUNT * 8)
            made = cls(os.dup(file.fileno()), os.getpid())
        made._numbers[_LIMIT] = limit
        made.beat()
        return made

    # The program's.

    def beat(self) -> None:
        """The event loop runs."""
        self._numbers[_RAN] = now()

    def start(self, module: str, *arguments: str, give: tuple[int, ...] = ()) -> socket.socket:
        """Starts the process that runs a module; it ends by itself. Returns this program's end of their socket.

        Either learns by the socket that the other is gone. The process gets the program's id, the descriptors of these
        numbers, of its end of the socket and of ``give``, and then ``arguments``.

        Raises:
            OSError: It cannot be started.
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
        """Closes the descriptor. Idempotent; the numbers can still be read."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    # The other process's.

    def heard(self, instant: float, *, lapsed: bool = False) -> None:
        """The service was heard; too late once is too late for good."""
        if lapsed:
            self._numbers[_LAPSED] = True
        self._numbers[_HEARD] = instant

    @property
    def running(self) -> bool:
        """The program is there, not stopped, and ran its loop within the limit."""
        return self.idle_seconds <= self.limit and os.getppid() == self.program and not _is_stopped(self.program)

    # Both read.

    @property
    def idle_seconds(self) -> float:
        """Seconds since the event loop last ran."""
        return now() - self._numbers[_RAN]

    @property
    def limit(self) -> float:
        """Max seconds for which the program may be held up."""
        return self._numbers[_LIMIT]

    @property
    def last_heard(self) -> float | None:
        """When the service was last heard; None: never."""
        return self._numbers[_HEARD] or None

    @property
    def lapsed(self) -> bool:
        """The service was heard too late once."""
        return bool(self._numbers[_LAPSED])


def _memory() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("qdo-vitals"), "r+b")
    return tempfile.TemporaryFile()


def _is_stopped(process: int) -> bool:
    """False where the system does not show it."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in STOPPED
    return False


def ignore_signals() -> None:
    """Ignores SIGINT, SIGTERM and SIGHUP: the process ends when the program closes the socket."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
