"""A keep-alive connection for single requests, and the number of runs of an operation."""

from __future__ import annotations

import socket
from http.client import HTTPMessage, HTTPResponse

from bench.harness import Void
from bench.load import traffic
from bench.started import service

RUNS = 5
"""Number of runs; the one with the fewest files counts, because background work may fall into the others."""
WARM_RUNS = 12
TIMEOUT_SECONDS = 30.0
"""Timeout of every wait."""


class Caller:
    """Sends requests one by one over one open connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)

    def ask(self, request: str, status: int) -> tuple[str, HTTPMessage]:
        """Sends a whole request; returns the body and the headers of the answer.

        Raises:
            Void: The answer has another status.
        """
        self._socket.sendall(request.encode())
        answer = HTTPResponse(self._socket)
        answer.begin()
        body = answer.read().decode()
        if answer.status != status:
            raise Void(f"{request.splitlines()[0]}: {answer.status} {body[:1000]}")
        return body, answer.headers

    def close(self) -> None:
        self._socket.close()


def make_post(queue: str) -> str:
    return traffic.request("POST", f"{service.BASE}/{queue}", "x" * traffic.BODY_BYTES, {"Content-Type": "text/plain"})
