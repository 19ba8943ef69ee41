"""One server process: started under a keeper, killed, paused, stopped and started again on the same data."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.local.errors import StartFailed

KEEPER = Path(__file__).with_name("keeper.py")
START_SECONDS = 400.0
"""Timeout of a start; long, because a busy machine takes minutes, and a process that ends is noticed at once."""
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.05
PID_SECONDS = 120.0


class Server(ABC):
    """A server of a cluster, on an address and a directory of its own that outlive its process.

    States: not started (``pid`` is None) → running → paused → running → ended (``alive`` is false) → running again.
    A process that ended by itself is noticed by the next question.

    Args:
        name: Name in messages: ``cassandra 127.101.4.1``.
        address: The address on which it listens.
        directory: Directory of its data, settings and logs.
        remove: Directory that the keeper removes if this process dies without closing its servers; None keeps all.
    """

    def __init__(self, name: str, address: str, directory: Path, *, remove: Path | None) -> None:
        self.name = name
        self.address = address
        self.directory = directory
        self.pid: int | None = None
        self._remove = remove
        self._keeper: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Writes the files that the server needs; returns the command that runs it."""

    @abstractmethod
    def answers(self) -> bool:
        """Returns whether the server serves clients now. Takes a second at most."""

    @property
    def alive(self) -> bool:
        """True if the process runs or is paused."""
        if self._keeper is None or self._keeper.stdout is None:
            return False
        # Not by poll(): it holds a lock, which Ctrl-C between two of its steps would leave held for ever.
        return not select.select([self._keeper.stdout], [], [], 0)[0]

    @property
    def log(self) -> Path:
        return self.directory / "system.log"

    @property
    def output(self) -> Path:
        """File with the output of the process."""
        return self.directory / "output.log"

    def launch(self) -> None:
        """Starts the process, unless it is alive, and does not wait until it serves clients.

        Raises:
            StartFailed: The process could not be started.
        """
        if self.alive:
            return
        self._await_keeper()
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-I", "-S", str(KEEPER), str(os.getpid()), str(self._remove or ""), *self.command()]
        with self.output.open("ab") as output:
            # Of a session of its own: Ctrl-C on a terminal is for who started the servers, not for them.
            self._keeper = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self._read_pid(self._keeper)

    def wait_until_serving(self, deadline: float) -> None:
        """Waits until the server answers.

        Args:
            deadline: Time of the monotonic clock, in seconds.

        Raises:
            StartFailed: The server ended, or did not answer before the deadline.
        """
        while not self.answers():
            if not self.alive:
                raise StartFailed(f"{self.name} ended while starting.\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.name} does not answer.\n{self.log_tail()}")
            time.sleep(LOOK_SECONDS)

    def start(self, seconds: float = START_SECONDS) -> None:
        """Starts the process, unless it is alive, with its earlier data, and waits until it serves clients.

        Raises:
            StartFailed: The server ended or did not answer in time.
        """
        self.launch()
        self.wait_until_serving(time.monotonic() + seconds)

    def kill(self) -> None:
        """Ends the process by SIGKILL, also if it is paused, and waits for its end."""
        self._signal(signal.SIGKILL)
        self._await_keeper()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ends the process by SIGTERM, also if it is paused; kills it if that takes too long."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(seconds)
        self.kill()

    def pause(self) -> None:
        """Pauses the process by SIGSTOP; its connections stay open and silent."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def log_size(self) -> int:
        """Returns the present length of the log in bytes, for the argument ``since`` of :meth:`log_tail`."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_tail(self, lines: int = 60, since: int = 0) -> str:
        """Returns the end of the log and of the process's output, under headings that name the server.

        Args:
            lines: Max lines of each.
            since: Number of bytes to skip at the beginning of the log; unless 0, only the log is returned.
        """
        return "\n".join(self._tails(lines, since))

    def _tails(self, lines: int, since: int) -> Iterator[str]:
        for path in (self.log,) if since else (self.log, self.output):
            text = path.read_bytes()[since:].decode("utf-8", "replace") if path.exists() else ""
            if text:
                yield f"--- {self.name}: end of {path.name} ---"
                yield from text.splitlines()[-lines:]

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _read_pid(self, keeper: subprocess.Popen[bytes]) -> int:
        pipe = keeper.stdout
        line = pipe.readline() if pipe and select.select([pipe], [], [], PID_SECONDS)[0] else b""
        if not line:
            keeper.kill()
            self._await_keeper()
            raise StartFailed(f"{self.name} could not be started.\n{self.log_tail()}")
        return int(line)

    def _await_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.wait()
        # Not before: a keeper takes a closed pipe for the end of all, and removes the data.
        with keeper:
            pass
