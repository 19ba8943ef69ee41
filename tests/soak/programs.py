"""The programs of a run: services and workers, of which some are killed and restarted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.served import Served, environment, free_port
from tests.soak.handler import RECORD

ROOT = Path(__file__).parents[2]
END_SECONDS = 100.0


class Program(ABC):
    """A process with its children. It has one life after another.

    Attributes:
        name: Its name in reports.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: subprocess.Popen[bytes] | subprocess.Popen[str]
        self._running = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._running else None

    @abstractmethod
    def _start_process(self) -> subprocess.Popen[bytes] | subprocess.Popen[str]:
        """Starts a life; a service then serves already."""

    def start(self) -> None:
        self._process = self._start_process()
        self._running = True

    def kill(self) -> None:
        """Kills the process and its children with SIGKILL; it has no life until the next start."""
        self._running = False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(END_SECONDS)

    def stop(self) -> int:
        """Sends SIGTERM, waits, and returns the exit code."""
        self._running = False
        self._process.terminate()
        return self._process.wait(END_SECONDS)

    def find_problem(self) -> str | None:
        """Returns a text if its present life has ended by itself, or None."""
        code = self._process.poll() if self._running else None
        # `_running` is checked again, as it may have been killed in between.
        return f"{self.name} ended by itself with code {code}" if code is not None and self._running else None


class Service(Program):
    """``queuey serve``, on one port in all its lives."""

    def __init__(self, name: str, directory: Path, options: Sequence[str]) -> None:
        super().__init__(name)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.lives: list[Served] = []
        self._directory = directory
        self._options = [*options, "--workers", "2", "--log-level", "warning"]

    def _start_process(self) -> subprocess.Popen[str]:
        served = Served(self._directory, self._options, port=self.port)
        self.lives.append(served)
        served.wait_for("Queuey serves at")
        return served.process

    def kill_worker(self) -> None:
        """Kills one of its worker processes, if any, with SIGKILL. The service replaces it."""
        if workers := self.lives[-1].workers():
            os.kill(workers[0], signal.SIGKILL)


class GroupWorker(Program):
    """``qdo work``, which records what it handles.

    Args:
        name: Its name in reports, and of its files.
        directory: Holds its record and its log.
        options: Options of the command.
    """

    def __init__(self, name: str, directory: Path, options: Mapping[str, str]) -> None:
        super().__init__(name)
        self.record = directory / f"{name}.handled"
        self._log = directory / f"{name}.log"
        self._options = [text for pair in options.items() for text in pair]

    def _start_process(self) -> subprocess.Popen[bytes]:
        """Starts ``qdo work`` in a process group of its own; does not wait until it serves."""
        module = "tests.soak.handler"
        command = [sys.executable, "-m", "qdo", "work", f"{module}:handle", "--context", f"{module}:record", "--mirror"]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*command, *self._options],
                cwd=ROOT,
                env=environment(**{RECORD: str(self.record)}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
