"""Ends a test run that makes no progress, and whatever a run started: a plugin, and the process that it starts.

The controlling process of a run starts :func:`watch` as a process of its own. Two rules:

* **A run without progress ends with 1.** Progress is a test that begins, or one of its three phases that ends, in any
  process of the run. After ``--stall-limit`` seconds without, every process of the run prints the stacks of all its
  threads; :data:`DUMP_SECONDS` later the controlling process exits with 1. Both are done by :mod:`faulthandler`, which
  needs neither the main thread nor the interpreter's lock.
* **What a run started ends with it**, also when it is killed by SIGKILL. Every process that is started in a run
  inherits the environment variable :data:`RUN_VARIABLE`. When the controlling process has ended, the watchdog waits for
  :data:`GRACE_SECONDS`, in which servers may end by themselves, and kills what is left. It finds processes in
  ``/proc``; where there is none (macOS), only servers of ``deploy/local`` end, by their keepers.
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
"""Between the stacks of the other processes and the end of the controlling one."""
GRACE_SECONDS = 10.0
KILL_SECONDS = 30.0
"""Limit of the wait for killed processes to be gone."""
TICK_SECONDS = 0.5
RESOURCE_TRACKER = "multiprocessing.resource_tracker"
"""In the command of a process that :mod:`multiprocessing` starts; it ends with the process that has started it."""


class Watchdog:
    """The controlling process's side.

    Args:
        stall_limit: Seconds without progress after which the run ends.
        stderr: Where stacks are printed.
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
        """Begins the stall limit anew."""
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
        """Lets the watchdog process end what the run left behind, and itself."""
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
        watchdog: Is told of progress.
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
    """Adds the limit of a run without progress."""
    parser.addoption(
        "--stall-limit",
        type=float,
        default=STALL_SECONDS,
        metavar="SECONDS",
        help=f"end the run with 1 after this time without progress ({STALL_SECONDS:.0f})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Starts the watchdog of the run; a worker process of pytest-xdist registers with the one that there is."""
    # Capturing is suspended while plugins are configured: this is the terminal's, or the log's.
    stderr = os.dup(2)
    config.add_cleanup(lambda: os.close(stderr))
    if hasattr(config, "workerinput"):
        register(Path(os.environ[RUN_VARIABLE]), stderr)
        return
    watchdog = Watchdog(config.getoption("--stall-limit"), stderr)
    config.add_cleanup(watchdog.close)
    register(watchdog.directory, stderr)
    config.pluginmanager.register(Plugin(watchdog), "watchdog of the run")


# From here on: the watchdog process. It imports nothing but the standard library.


def watch(directory: Path, stall_limit: float, progress: IO[bytes], parent: int) -> None:
    """Watches a run until its controlling process has closed the pipe or has ended; then ends what is left of it.

    Args:
        directory: Of the run.
        stall_limit: Seconds without progress after which the processes of the run print their stacks.
        progress: Gets a byte for each progress.
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
    """Waits until the processes of a run have ended, then kills those that have not, and names them."""
    controller = os.getppid()
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := processes(directory) - {controller}) and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS / 5)
    for pid in sorted(left):
        sys.stderr.write(f"The run left a process behind: {pid} {command_line(pid)}\n")
    deadline = time.monotonic() + KILL_SECONDS
    while left and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(TICK_SECONDS / 5)
        left = processes(directory) - {controller}


def processes(directory: Path) -> set[int]:
    """Returns the ids of all processes that were started in the run of this directory and have not ended.

    Without those that :mod:`multiprocessing` started for itself.
    """
    mark = f"{RUN_VARIABLE}={directory}".encode()
    pids = {
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in content(path).split(b"\0")
    }
    return {pid for pid in pids - {os.getpid()} if RESOURCE_TRACKER not in command_line(pid)}


def command_line(pid: int) -> str:
    """Returns the command of a process; an empty string if it has ended."""
    return content(Path(f"/proc/{pid}/cmdline")).replace(b"\0", b" ").decode(errors="replace")[:300]


def content(path: Path) -> bytes:
    """Returns the bytes of a file of ``/proc``; none if its process has ended or belongs to another user."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(Path(sys.argv[1]), float(sys.argv[2]), sys.stdin.buffer, os.getppid())
