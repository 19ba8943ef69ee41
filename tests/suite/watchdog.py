"""Ends a test run that makes no progress, and everything that a run started: a plugin, and its watchdog process.

The controlling process of a run starts :func:`watch` as a process of its own. Two rules:

* **A run without progress ends with 1.** Progress is the start of a test, or the end of one of its three phases, in any
  process of the run. After ``--stall-limit`` seconds without progress, every process of the run prints the stacks of
  all its threads; :data:`DUMP_SECONDS` later the controlling process exits with 1. :mod:`faulthandler` does both, and
  needs neither the main thread nor the interpreter's lock.
* **Processes that a run started end with it**, even if it is killed by SIGKILL. Every process started in a run inherits
  the environment variable :data:`RUN_VARIABLE`. When the controlling process has ended, the watchdog waits for
  :data:`GRACE_SECONDS`, in which servers may end by themselves, and kills the rest. It finds processes in ``/proc``;
  without ``/proc`` (macOS), only servers of ``deploy/local`` end, by their keepers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

RUN_VARIABLE = "SUITE_RUN"
"""Holds the directory of the run, in which each of its processes has a file named by its process id."""
STALL_SECONDS = 180.0
DUMP_SECONDS = 15.0
"""Seconds from the stacks of the other processes to the end of the controlling one."""
GRACE_SECONDS = 10.0
KILL_SECONDS = 30.0
"""Max seconds to wait for killed processes."""
TICK_SECONDS = 0.5
RESOURCE_TRACKER = "multiprocessing.resource_tracker"
"""Part of the command of a process started by :mod:`multiprocessing`. It ends with the process that started it."""


class Watchdog:
    """Starts the watchdog process, announces the directory of the run to other processes, and reports progress.

    Args:
        stall_limit: Seconds without progress after which the run ends.
        stderr: The file descriptor for stacks.
    """

    def __init__(self, stall_limit: float, stderr: int) -> None:
        self._limit = stall_limit
        self._stderr = stderr
        self._armed = -1.0
        self.directory = Path(tempfile.mkdtemp(prefix="queuey-suite-"))
        environment = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.directory), str(stall_limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        )
        os.environ[RUN_VARIABLE] = str(self.directory)

    def progress(self) -> None:
        """Restarts the stall limit here and in the watchdog process, at most once a second."""
        now = time.monotonic()
        if now - self._armed < 1.0:
            return
        self._armed = now
        faulthandler.dump_traceback_later(self._limit + DUMP_SECONDS, exit=True, file=self._stderr)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b".")
            self._process.stdin.flush()

    def close(self) -> None:
        """Lets the watchdog process end what the run left behind, and then itself; waits for that, with a limit."""
        faulthandler.cancel_dump_traceback_later()
        os.environ.pop(RUN_VARIABLE, None)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS + KILL_SECONDS)


def register(directory: Path, stderr: int) -> None:
    """Makes this process print the stacks of all threads on SIGUSR1, and records its process id."""
    faulthandler.register(signal.SIGUSR1, file=stderr, all_threads=True)
    (directory / str(os.getpid())).touch()


class Plugin:
    """Hooks of the controlling process.

    Args:
        watchdog: Notified of progress.
    """

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def pytest_sessionstart(self) -> None:
        self._watchdog.progress()

    def pytest_collectreport(self) -> None:
        self._watchdog.progress()

    def pytest_runtest_logstart(self) -> None:
        self._watchdog.progress()

    def pytest_runtest_logreport(self) -> None:
        self._watchdog.progress()

    def pytest_sessionfinish(self) -> None:
        self._watchdog.progress()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stall-limit",
        type=float,
        default=STALL_SECONDS,
        metavar="SECONDS",
        help=f"end the run with 1 after this time without progress ({STALL_SECONDS:.0f})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Starts the watchdog of the run. A worker process of pytest-xdist registers with the existing one."""
    # Capturing is suspended while plugins are configured, so this is the real standard error.
    stderr = os.dup(2)
    config.add_cleanup(lambda: os.close(stderr))
    if hasattr(config, "workerinput"):
        register(Path(os.environ[RUN_VARIABLE]), stderr)
        return
    watchdog = Watchdog(config.getoption("--stall-limit"), stderr)
    config.add_cleanup(watchdog.close)
    register(watchdog.directory, stderr)
    config.pluginmanager.register(Plugin(watchdog), "watchdog of the run")


# The watchdog process. It imports only the standard library.


def watch(directory: Path, stall_limit: float, progress: IO[bytes], parent: int) -> None:
    """Watches a run until its controlling process closes the pipe or ends.

    Then ends the remaining processes and deletes the directory. Stacks are printed once for each stall.


    Args:
        directory: The directory of the run.
        stall_limit: Seconds without progress after which the processes of the run print their stacks.
        progress: Receives a byte for each progress.
        parent: Process id of the controlling process.
    """
    last, printed = time.monotonic(), False
    while os.getppid() == parent:
        if select.select([progress], [], [], TICK_SECONDS)[0]:
            if not os.read(progress.fileno(), 4096):
                break
            last, printed = time.monotonic(), False
        elif not printed and time.monotonic() - last > stall_limit:
            printed = True
            sys.stderr.write(f"\nNo test has begun or ended for {stall_limit:.0f} s. Stacks of all processes:\n")
            sys.stderr.flush()
            for pid in (int(path.name) for path in directory.iterdir()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
    end_processes(directory)
    shutil.rmtree(directory, ignore_errors=True)


def end_processes(directory: Path) -> None:
    """Waits until all processes of a run but its controller have ended; prints the rest's commands, and kills them."""
    controller = os.getppid()
    deadline = time.monotonic() + GRACE_SECONDS
    while (remaining := processes(directory) - {controller}) and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS / 5)
    for pid in sorted(remaining):
        sys.stderr.write(f"The run left a process behind: {pid} {command_line(pid)}\n")
    deadline = time.monotonic() + KILL_SECONDS
    while remaining and time.monotonic() < deadline:
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(TICK_SECONDS / 5)
        remaining = processes(directory) - {controller}


def processes(directory: Path) -> set[int]:
    """Returns the ids of all running processes of the run of this directory, but for this one and resource trackers.

    Processes that :mod:`multiprocessing` started for itself are excluded.
    """
    mark = f"{RUN_VARIABLE}={directory}".encode()
    pids = {
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in content(path).split(b"\0")
    }
    return {pid for pid in pids - {os.getpid()} if RESOURCE_TRACKER not in command_line(pid)}


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
    watch(Path(sys.argv[1]), float(sys.argv[2]), sys.stdin.buffer, os.getppid())
