"""Requests to a facade, as a client of the other system sends them."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.servers.served import free_port

WAIT = 60
"""Timeout of an answer in seconds."""


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: http.client.HTTPMessage


class Facade:
    """Address of a facade.

    Args:
        port: Port of the service.
        prefix: Path of the facade.
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

    def send_raw(self, head: str, body: bytes) -> int:
        """Sends a request in one piece, as no HTTP library would; returns the status of the answer.

        Args:
            head: The method, the path and headers, one line each.
            body: Body as it goes over the wire.
        """
        method, path, *headers = head.split("\n")
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", "Host: x", *headers, "", ""]
        with socket.create_connection(("127.0.0.1", self._port), timeout=WAIT) as connection:
            connection.sendall("\r\n".join(lines).encode() + body)
            with connection.makefile("rb") as answer:
                return int(answer.readline().split()[1])


def write_settings_file(directory: Path, text: str) -> list[str]:
    path = directory / "queuey.toml"
    path.write_text(text)
    return ["--config", str(path)]


def find_adjacent_free_ports() -> int:
    """Returns the first of two free ports that follow each other."""
    while True:
        first, second = free_port(), free_port()
        if second == first + 1:
            return first
