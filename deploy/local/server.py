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
"""For what hangs: a process that ends is noticed at once, and a busy machine takes minutes for a Java server."""
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.05
PID_SECONDS = 120.0


class Server(ABC):
    """A server of a cluster, on an address and a directory of its own that outlive its process.

    States: not started (``pid`` is None) → running → paused → running → ended (``alive`` is false) → running again.
    A process that ended by itself is noticed by the next question.

    Args:
        name: For people: ``cassandra 127.101.4.1``.
        address: Where it listens.
        directory: Its data, settings and logs.
        remove: What the keeper removes when this process dies without having closed its servers; None to keep all.
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
        """Returns the command that runs the server, after having written the files that it needs."""

    @abstractmethod
    def answers(self) -> bool:
        """Says if the server is serving clients now. Takes a second at most."""

    @property
    def alive(self) -> bool:
        """Whether the process is there, paused or not."""
        if self._keeper is None or self._keeper.stdout is None:
            return False
        # Not by poll(): it holds a lock, which Ctrl-C between two of its steps would leave held for ever.
        return not select.select([self._keeper.stdout], [], [], 0)[0]

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self.directory / "system.log"

    @property
    def output(self) -> Path:
        """What the process printed."""
        return self.directory / "output.log"

    def launch(self) -> None:
        """Starts the process and returns at once; nothing happens if it is there.

        Raises:
            StartFailed: Not even a process could be made.
        """
        if self.alive:
            return
        self._forget()
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
            deadline: Of the monotonic clock, in seconds.

        Raises:
            StartFailed: It ended, or did not answer until the deadline.
        """
        while not self.answers():
            if not self.alive:
                raise StartFailed(f"{self.name} ended while starting.\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.name} does not answer.\n{self.log_tail()}")
            time.sleep(LOOK_SECONDS)

    def start(self, seconds: float = START_SECONDS) -> None:
        """Starts the process if it is not there, on the data it left, and waits until it serves clients.

        Raises:
            StartFailed: It ended or did not answer in time.
        """
        self.launch()
        self.wait_until_serving(time.monotonic() + seconds)

    def kill(self) -> None:
        """Ends the process by SIGKILL, paused or not, and waits until it is gone."""
        self._signal(signal.SIGKILL)
        self._forget()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ends the process by SIGTERM, which lets it finish properly; kills it if it takes too long."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self._keeper is not None:
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(seconds)
        self.kill()

    def pause(self) -> None:
        """Stops the process where it is, by SIGSTOP; its connections stay open and silent."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on."""
        self._signal(signal.SIGCONT)

    def log_size(self) -> int:
        """Returns how many bytes the log has, to ask later for what came after."""
        return self.log.stat().st_size if self.log.exists() else 0

    def log_tail(self, lines: int = 60, since: int = 0) -> str:
        """Returns the end of the log and of what the process printed, under headings that name the server.

        Args:
            lines: How many of each at most.
            since: How many bytes of the log to leave out from its beginning; if any, only the log is returned.
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
            self._forget()
            raise StartFailed(f"{self.name} could not be started.\n{self.log_tail()}")
        return int(line)

    def _forget(self) -> None:
        """Waits for the keeper, which ends with the process."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.wait()
        # Not before: a keeper takes a closed pipe for the end of all, and removes the data.
        with keeper:
            pass
