"""``queuey serve`` as a real process, for tests that need one."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from queuey.client import Client
from queuey.client.credentials.profile import Profile, read_profile
from queuey.client.http.attempts import RetryPolicy
from tests.servers.processes import children, ending

START_SECONDS = 100.0
END_SECONDS = 100.0
"""Seconds. Long, because a busy machine is slow, and only a failure waits this long."""


PORTS = range(10_000, 18_000)
"""Below the ephemeral ports of the kernel, so that no connection takes one before the service does."""
_TRIED = itertools.count(os.getpid() * 61)


@functools.cache
def _open_claims_file() -> int:
    """Returns a file in which processes lock a byte for each of their ports. The locks end with the process."""
    return os.open(Path(tempfile.gettempdir()) / f"queuey-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_port() -> int:
    """Returns a free port below the ephemeral ones. No other process is given it while this one lives."""
    for number in itertools.islice(_TRIED, len(PORTS)):
        port = PORTS[number % len(PORTS)]
        try:
            fcntl.lockf(_open_claims_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no port is free from {PORTS[0]} to {PORTS[-1]}")


def environment(**more: str) -> dict[str, str]:
    """Returns this process's environment with further variables, without others that begin with ``QUEUEY_``.

    Those might lead to the user's own service.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_")}
    return plain | more


def run_queuey(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a process to its end, with further environment variables."""
    command = [sys.executable, "-m", "queuey", *arguments]
    env = environment(**variables)
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=END_SECONDS)


class Served:
    """A service in its own process group.

    Args:
        directory: Holds data and profile. A second service on it continues the first.
        options: Further options of ``queuey serve``. With a ``--store``, ``--data`` is left out.
        port: The port to listen on.
        variables: Further environment variables.
        program: The ``queuey`` command; by default that of this Python.
    """

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        port: int | None = None,
        variables: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "queuey"),
    ) -> None:
        self.port = port or free_port()
        self.data = directory / "data"
        self.profile_path = directory / "profile.toml"
        self.lines: list[str] = []
        self._seen: queue.Queue[str | None] = queue.Queue()
        command = [*program, "serve", "--port", str(self.port)]
        if "--store" not in options:
            command += ["--data", str(self.data)]
        self.process = subprocess.Popen(
            [*command, "--profile", str(self.profile_path), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(**(variables or {})),
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._collect_lines, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        try:
            self.wait_for("Queuey serves at")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def profile(self) -> Profile:
        return read_profile(self.profile_path)

    def client(self, *, timeout: float = 30.0, deadline: float = 30.0) -> Client:
        """Returns a client of the service, with its profile's credentials. Without a deadline it sends a call once."""
        profile = self.profile
        retry = RetryPolicy(deadline=deadline)
        return Client(profile.url, key=profile.key, application=profile.application, timeout=timeout, retry=retry)

    @contextlib.contextmanager
    def command(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "queuey", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(QUEUEY_PROFILE=str(self.profile_path)),
            start_new_session=True,
        )
        with ending(process):
            yield process

    def workers(self) -> list[int]:
        """Returns its worker processes, in order."""
        found = []
        for child in sorted(children(self.process.pid)):
            with contextlib.suppress(OSError):
                found += [child] if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() else []
        return found

    def wait_for(self, text: str) -> str:
        """Waits until a line with this text is printed, and returns the line. Each line is looked at once.

        Fails if the output ends before.
        """
        while True:
            line = self._seen.get(timeout=START_SECONDS)
            if line is None:
                raise AssertionError(f"ended without {text!r}, code {self.process.wait(END_SECONDS)}:\n{self.output}")
            if text in line:
                return line

    def end(self, *numbers: int) -> int:
        """Sends the signals in turn, waits for the process to end, and returns its exit code.

        Without signals it only waits.
        """
        for number in numbers:
            self.process.send_signal(number)
        code = self.process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)
        return code

    def kill(self) -> None:
        """Kills all processes of its group, and waits for the end of the main process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_SECONDS)
        self._reader.join(END_SECONDS)

    def _collect_lines(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)
                self._seen.put(line)
        self._seen.put(None)
