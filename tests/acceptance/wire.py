"""Bare connections to a running service, for requests that no HTTP client would send."""

from __future__ import annotations

import json
import socket
from http.client import parse_headers
from typing import Any, NamedTuple, Self

from tests.servers.served import Served

CHUNKED = "Transfer-Encoding: chunked"
JSON = "Content-Type: application/json"


class Reply(NamedTuple):
    """An answer from the wire."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def errors(self) -> dict[str, str]:
        texts: dict[str, str] = json.loads(self.body)["error_msg"]
        return texts


class Wire:
    """One connection. Bytes read beyond an answer are kept for the next one."""

    def __init__(self, served: Served) -> None:
        self.key = served.profile.key
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=30)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, head: str, body: bytes = b"", *headers: str) -> Self:
        lines = [f"{head} HTTP/1.1", "Host: x", f"Authorization: Application {self.key}", *headers, "", ""]
        self.socket.sendall("\r\n".join(lines).encode("latin-1") + body)
        return self

    def answer(self, method: str = "POST") -> Reply:
        """Reads the next answer, to a request of this method; raises ConnectionResetError if none comes."""
        line = self._file.readline()
        if not line:
            raise ConnectionResetError("closed without an answer")
        headers = {name.lower(): value for name, value in parse_headers(self._file).items()}
        body = b"" if method == "HEAD" else self._file.read(int(headers["content-length"]))
        return Reply(int(line.split()[1]), body, headers)

    def ask(self, head: str, body: bytes = b"", *headers: str) -> Reply:
        return self.send(head, body, *headers).answer(head.partition(" ")[0])

    def is_usable(self) -> bool:
        return self.ask("GET /__lbheartbeat__").body == b"OK"


def bodies(served: Served, queue: str) -> list[Any]:
    """Returns the bodies stored after the first message."""
    with served.client() as client:
        return [message.body for message in client.read(queue, limit=1000).messages][1:]


def chunks(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + end


def post(queue: str) -> str:
    return f"POST /v1/queuey/{queue}"


def credential(served: Served) -> dict[str, str]:
    return {"Authorization": f"Application {served.profile.key}"}
