"""``queuey serve`` at a terminal, where the console is enabled by default."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from tests.servers.processes import ending
from tests.servers.served import environment, free_port

SAME = {"Origin": "null", "Sec-Fetch-Site": "same-origin"}
"""The headers that a browser sends with the form of a login link."""


class Terminal:
    """A service at a terminal, with its errors in a file.

    Args:
        directory: Holds its data, its profile and its log.
        options: Further options.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = directory / "log"
        places = ["--data", str(directory / "data"), "--profile", str(directory / "profile.toml")]
        self._master, slave = pty.openpty()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "queuey", "serve", "--port", self.url[17:], *places, *options],
                stdin=slave,
                stdout=slave,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        os.close(slave)

    def wait_for_lines(self, count: int) -> list[str]:
        """Waits until it has printed ``count`` more lines, without a timeout; returns all lines since the last call."""
        text = b""
        while text.count(b"\n") < count:
            text += os.read(self._master, 4096)
        return text.decode().splitlines()

    def request_status(
        self, path: str, data: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> int:
        """Requests a page, or sends a form. Returns the status, also of a redirect, which is not followed."""
        body = None if data is None else urlencode(data).encode()
        request = urllib.request.Request(self.url + path, body, headers or {})
        try:
            with urllib.request.build_opener(Stay).open(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def submit_login(self, token: str) -> int:
        return self.request_status("/console/login/once", {"token": token}, SAME)


class Stay(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects."""

    def redirect_request(self, *_: object) -> None:
        pass


@contextmanager
def terminal(directory: Path, *options: str) -> Iterator[Terminal]:
    started = Terminal(directory, *options)
    with ending(started.process):
        yield started
