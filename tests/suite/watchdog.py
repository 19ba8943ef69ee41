"""Ends tests that hang, and everything that a run started: a plugin, and its watchdog process.

* **A process of a run without progress ends with 1.** Progress is the start of a test, or the end of one of its three
  phases; the controlling process counts the progress of all. After ``--stall-limit`` seconds without progress
  :mod:`faulthandler` prints the stacks of all threads and exits. It needs neither the main thread nor the
  interpreter's lock. A process of pytest-xdist that ended so is replaced, and its test has failed.
* **Processes that a run started end with it**, even if it is killed by SIGKILL. Every process started in a run inherits
  the environment variable :data:`RUN_VARIABLE`. When the controlling process has ended, the watchdog process waits for
  :data:`GRACE_SECONDS`, in which servers may end by themselves, and kills the rest. It finds processes in ``/proc``;
  without ``/proc`` (macOS), only servers of ``deploy/local`` end, by their keepers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RUN_VARIABLE = "SUITE_RUN"
"""Holds the process id of the controlling process."""
STALL_SECONDS = 180.0
DUMP_SECONDS = 15.0
"""Seconds from the end of a process that hangs to that of the controlling one, if nothing goes on without it."""
GRACE_SECONDS = 10.0
KILL_SECONDS = 30.0
"""Max seconds to wait for killed processes."""
RESOURCE_TRACKER = "multiprocessing.resource_tracker"
"""Part of the command of a process started by :mod:`multiprocessing`. It ends with the process that started it."""


class StallLimit:
    """Ends this process when its limit is over; each progress restarts it, at most once a second.

    Args:
        seconds: The limit.
        stderr: The file descriptor for stacks.
        rests: There is no limit between two tests, as other processes of the run may have the rest of them.
    """

    def __init__(self, seconds: float, stderr: int, *, rests: bool) -> None:
        self._seconds = seconds
        self._stderr = stderr
        self._rests = rests
        self._armed = -1.0

    def restart(self) -> None:
        now = time.monotonic()
        if now - self._armed >= 1.0:
            self._armed = now
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._stderr)

    def pytest_sessionstart(self) -> None:
        self.restart()

    def pytest_collectreport(self) -> None:
        self.restart()

    def pytest_runtest_logstart(self) -> None:
        self.restart()

    def pytest_runtest_logreport(self) -> None:
        self.restart()

    def pytest_runtest_logfinish(self) -> None:
        if self._rests:
            self._armed = -1.0
            faulthandler.cancel_dump_traceback_later()

    def pytest_collection_finish(self) -> None:
        self.pytest_runtest_logfinish()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stall-limit",
        type=float,
        default=STALL_SECONDS,
        metavar="SECONDS",
        help=f"end a process with 1 after this time without progress ({STALL_SECONDS:.0f})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Limits this process, and starts the watchdog process of the run, unless this is a process of pytest-xdist."""
    # Capturing is suspended while plugins are configured, so this is the real standard error.
    stderr, is_worker = os.dup(2), hasattr(config, "workerinput")
    config.add_cleanup(lambda: os.close(stderr))
    config.add_cleanup(faulthandler.cancel_dump_traceback_later)
    seconds = config.getoption("--stall-limit") + (0 if is_worker else DUMP_SECONDS)
    config.pluginmanager.register(StallLimit(seconds, stderr, rests=is_worker), "stall limit")
    if not is_worker:
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={name: value for name, value in os.environ.items() if name != RUN_VARIABLE},
            start_new_session=True,
        )
        os.environ[RUN_VARIABLE] = str(os.getpid())
        config.add_cleanup(lambda: end_run(watchdog))


def end_run(watchdog: subprocess.Popen[bytes]) -> None:
    """Lets the watchdog process end what the run left behind, and then itself; waits for that, with a limit."""
    os.environ.pop(RUN_VARIABLE, None)
    with contextlib.suppress(subprocess.TimeoutExpired):
        watchdog.communicate(timeout=GRACE_SECONDS + KILL_SECONDS)


# The watchdog process. It imports only the standard library.


def end_processes(controller: int) -> None:
    """Waits until all processes of a run but its controller have ended; prints the rest's commands, and kills them."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (remaining := processes(controller)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in sorted(remaining):
        sys.stderr.write(f"The run left a process behind: {pid} {command_line(pid)}\n")
    deadline = time.monotonic() + KILL_SECONDS
    while remaining and time.monotonic() < deadline:
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
        remaining = processes(controller)


def processes(controller: int) -> set[int]:
    """Returns the ids of all processes of a run, but for its controlling one and resource trackers of Python."""
    mark = f"{RUN_VARIABLE}={controller}".encode()
    pids = {
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in content(path).split(b"\0")
    }
    return {pid for pid in pids - {controller} if RESOURCE_TRACKER not in command_line(pid)}


def command_line(pid: int) -> str:
    return content(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode(errors="replace")[:300]


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    controller_pid = os.getppid()
    while os.getppid() == controller_pid and not select.select([sys.stdin], [], [], 0.5)[0]:
        pass  # the pipe is open, and the controlling process runs
    end_processes(controller_pid)
