"""Requests to a facade, as a client of the other system sends them."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

WAIT = 60
"""Seconds that a test waits for an answer."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    headers: http.client.HTTPMessage


class Facade:
    """Where a facade is.

    Args:
        port: Of the service.
        prefix: Path under which it is.
    """

    def __init__(self, port: int, prefix: str = "") -> None:
        self._port = port
        self._prefix = prefix

    def call(self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str) -> Reply:
        """Sends a request; an iterable is sent in chunks, and underscores in the names of headers mean dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            chunked = body is not None and not isinstance(body, bytes)
            connection.request(method, self._prefix + path, body, named, encode_chunked=chunked)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), answer.headers)
        finally:
            connection.close()


def settings_file(directory: Path, text: str) -> list[str]:
    """Writes a settings file; returns the options that name it."""
    path = directory / "queuey.toml"
    path.write_text(text)
    return ["--config", str(path)]
