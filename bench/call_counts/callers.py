"""Connections over which single requests are made, and how often an operation is made."""

from __future__ import annotations

import socket
from http.client import HTTPMessage, HTTPResponse

from bench.harness import Void
from bench.load import traffic
from bench.started import service

RUNS = 5
"""The run with the fewest files counts: background work may fall into the others."""
WARM_RUNS = 12
SECONDS = 30.0
"""Timeout of whatever is waited for."""


class Caller:
    """One connection to a service, which stays open.

    Args:
        port: The port of the service.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS)

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
        """Closes the connection."""
        self._socket.close()


def post(queue: str) -> str:
    """Returns a request that posts one message, as text."""
    return traffic.request("POST", f"{service.BASE}/{queue}", "x" * traffic.BODY_BYTES, {"Content-Type": "text/plain"})
