"""``queuey serve`` at a terminal, whose console is there by itself."""

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
"""What a browser sends with the form of a link."""


class Terminal:
    """A service at a terminal, whose errors go elsewhere.

    Args:
        directory: For its data, its profile and its log.
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

    def lines(self, count: int) -> list[str]:
        """Waits until it has printed as many lines, and returns them."""
        text = b""
        while text.count(b"\n") < count:
            text += os.read(self._master, 4096)
        return text.decode().splitlines()

    def status(self, path: str, data: dict[str, str] | None = None, headers: dict[str, str] | None = None) -> int:
        """Asks for a page, or sends a form; returns the status."""
        body = None if data is None else urlencode(data).encode()
        request = urllib.request.Request(self.url + path, body, headers or {})
        try:
            with urllib.request.build_opener(Stay).open(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def spend(self, token: str) -> int:
        """Presses the button of a link; returns the status."""
        return self.status("/console/login/once", {"token": token}, SAME)


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *_: object) -> None:
        """Leaves a redirect as it is."""


@contextmanager
def terminal(directory: Path, *options: str) -> Iterator[Terminal]:
    """Runs a service at a terminal."""
    started = Terminal(directory, *options)
    with ending(started.process):
        yield started
