"""Child processes: start them on a free port, measure them through /proc, and stop them."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from bench.harness import Void

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[2]


class Process:
    """A server under measurement: a child process and all its descendants."""

    def __init__(self, name: str, child: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.name = name
        self.child = child
        self.port = port
        self.log = log

    def pids(self) -> list[int]:
        """Returns the pids of the child and all its living descendants; the child comes first."""
        pids = [self.child.pid]
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    pids.extend(int(text) for text in task.read_text("ascii").split())
        return pids

    def cpu_seconds(self) -> float:
        """Returns the user and system CPU seconds of all living processes."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_SECOND

    def memory(self) -> list[float]:
        """Returns the memory of each process in megabytes (10^6): proportional set size, largest first."""
        megabytes = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
                megabytes += [int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Pss:")]
        return sorted(megabytes, reverse=True)

    def log_tail(self) -> str:
        return self.log.read_text("utf-8", "replace")[-2000:] if self.log.exists() else ""

    def wait_until_serving(self, timeout: float = 100.0) -> None:
        """Waits until the server answers a request with any status.

        An accepted connection is not enough: the kernel accepts connections long before the server answers.

        Raises:
            Void: The process ended, or did not answer in time.
        """

        def answers() -> bool:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
            with contextlib.closing(connection):
                connection.request("GET", "/")
                connection.getresponse().close()  # It keeps the socket if the server closes the connection.
            return True

        self.wait_until(answers, timeout)

    def wait_until(self, answers: Callable[[], bool], timeout: float) -> None:
        """Polls ``answers`` until it returns True; a connection error counts as False.

        Raises:
            Void: The process ended, or did not answer in time.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.child.poll() is not None:
                raise Void(f"{self.name} ended with {self.child.returncode}:\n{self.log_tail()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if answers():
                    return
            time.sleep(0.02)
        raise Void(f"{self.name} does not answer:\n{self.log_tail()}")

    def stop(self, timeout: float = 15.0) -> None:
        """Stops the process with SIGTERM; after the timeout, kills each of its pids."""
        pids = self.pids()
        self.child.terminate()
        try:
            self.child.wait(timeout)
        except subprocess.TimeoutExpired:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.child.wait(timeout)


def describe_commit(tree: Path = ROOT) -> str:
    """Returns the short commit of a checkout, marked if it has uncommitted changes; ``no commit`` without Git."""
    command = ["git", "-C", str(tree), "describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=, with changes"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout.strip() or "no commit"


def hash_product(tree: Path = ROOT) -> str:
    """Returns a hash of the product's files and their constraints, without the version: 12 hex digits."""
    files = [path for top in ("queuey", "qdo", "cql") for path in (tree / top).rglob("*") if path.is_file()]
    digest = sha256()
    for path in sorted([*files, tree / "constraints.txt"]):
        if "__pycache__" not in path.parts:
            lines = [line for line in path.read_bytes().splitlines() if not line.startswith(b"__version__")]
            digest.update(b"\n".join([path.relative_to(tree).as_posix().encode(), *lines, b""]))
    return digest.hexdigest()[:12]


def inherited_environment() -> dict[str, str]:
    """Returns the environment without the settings of Queuey."""
    return {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_")}


def run_module(module: str, *arguments: object, seconds: float, environment: Mapping[str, str] | None = None) -> str:
    """Runs a module of the bench in a child process for at most ``seconds``; returns its standard output.

    Raises:
        Void: The process failed.
        subprocess.TimeoutExpired: It took longer.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    if process.returncode:
        raise Void(f"{' '.join(command[2:])}: {process.stderr}")
    return process.stdout


@contextlib.contextmanager
def launched(
    name: str,
    command: Sequence[str],
    port: int,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    tree: Path = ROOT,
) -> Iterator[Process]:
    """Runs a command during the block, in the checkout ``tree``, whose modules it imports.

    The working directory is the checkout. The log and the home and configuration directories are in ``directory``, so
    the command neither reads nor changes the user's.
    """
    log = directory / f"{name.replace('/', '-')}.log"
    directories = {"HOME": str(directory), "XDG_CONFIG_HOME": str(directory), "XDG_DATA_HOME": str(directory)}
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tree,
            env={**inherited_environment(), "PYTHONPATH": str(tree), **directories, **(environment or {})},
        )
    process = Process(name, child, port, log)
    try:
        yield process
    finally:
        process.stop()


@contextlib.contextmanager
def start(
    name: str,
    command: Sequence[str],
    port: int,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    tree: Path = ROOT,
) -> Iterator[Process]:
    """Runs a command that serves HTTP on ``port``, like :func:`launched`, and waits until it serves.

    Raises:
        Void: The command did not start.
    """
    with launched(name, command, port, directory, environment, tree) as process:
        process.wait_until_serving()
        yield process
