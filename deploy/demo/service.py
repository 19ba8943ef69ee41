"""The service as the demo runs it: a real process on a free port, with everything it keeps in one directory."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from queuey.client import Client
from queuey.client.credentials.profile import read_profile

START_SECONDS = 60.0
STOP_SECONDS = 60.0


class DemoFailed(Exception):
    """A claim of the demo is false; the message says which."""


class Service:
    """``queuey serve`` in a process group of its own.

    Args:
        directory: Directory for data, settings, profile and log.
    """

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.directory = directory
        self.profile = directory / "profile.toml"
        self._log = directory / "service.log"
        self._config = directory / "queuey.toml"
        self._process: subprocess.Popen[str] | None = None
        self._config.write_text(f'data = "{self.data.name}"\nprofile = "{self.profile.name}"\nport = {_free_port()}\n')

    def start(self) -> str:
        """Starts the service, waits until it is up, and returns the first line that it prints.

        Raises:
            DemoFailed: It printed nothing within ``START_SECONDS``.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_")}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "queuey", "serve", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        line = self._first_line(self._process)
        if not line:
            raise DemoFailed(f"the service did not start:\n{self._log.read_text()}")
        return line.strip()

    def client(self, *, receipts: Path | None = None) -> Client:
        profile = read_profile(self.profile)
        return Client(profile.url, key=profile.key, application=profile.application, receipts=receipts)

    def kill(self) -> None:
        """Ends the service and its workers with SIGKILL, if it runs: nothing is finished, nothing is closed."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> float:
        """Ends the service with SIGTERM and returns the seconds it took.

        Raises:
            DemoFailed: It was not running, took longer than ``STOP_SECONDS``, or its exit code is not 0.
        """
        if self._process is None:
            raise DemoFailed("the service is not running")
        began = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"the service did not end within {STOP_SECONDS:.0f} s after SIGTERM") from error
        self._process = None
        if code != 0:
            raise DemoFailed(f"the service ended with {code} after SIGTERM:\n{self._log.read_text()}")
        return time.monotonic() - began

    @staticmethod
    def _first_line(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None  # noqa: S101 - asked for above
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        return process.stdout.readline() if ready else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
