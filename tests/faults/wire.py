"""One connection to one web process: a request, and its answer or none. Only the creation of queues is repeated."""

from __future__ import annotations

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

QUEUE_SECONDS = 60.0


class Web(NamedTuple):
    """A web process: its name in the history, and its port."""

    name: str
    port: int


class Account(NamedTuple):
    """An application and the key of its requests."""

    application: str
    key: str


class Answer(NamedTuple):
    """An HTTP answer. ``content`` is the decoded body, or an empty dict if it is not a JSON object."""

    status: int
    retry_after: bool
    content: dict[str, Any]
    text: str


class Unanswered(Exception):
    """No complete answer came."""


class NotSent(Exception):
    """The connection was refused."""


class Line:
    """A connection of one thread. It is made when needed, and again after a failure."""

    def __init__(self, web: Web, account: Account) -> None:
        self.web = web
        self._account = account
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] = {}, timeout: float
    ) -> Answer:
        """Sends a request and waits for its answer.

        Args:
            method: The HTTP method.
            path: The path below the application, with the query.
            body: The body, sent unchanged.
            headers: Headers besides the credential.
            timeout: Seconds of the socket timeout.

        Raises:
            NotSent: The connection was refused.
            Unanswered: The connection broke, or was silent for too long.
        """
        headers = {"Authorization": f"Application {self._account.key}", **headers}
        connection = self._connection or http.client.HTTPConnection("127.0.0.1", self.web.port)
        self._connection = connection
        connection.timeout = timeout
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(timeout)
            connection.request(method, f"/v1/{self._account.application}{path}", body, headers)
            response = connection.getresponse()
            content = response.read()
        except ConnectionRefusedError as error:
            raise NotSent(self.web.name) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        return Answer(response.status, "Retry-After" in response.headers, _decode(content), _text(content))

    def close(self) -> None:
        """Closes the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def make_queue(web: Web, account: Account, **fields: object) -> None:
    """Creates a queue unless it exists. Repeats the request while the store is busy, for :data:`QUEUE_SECONDS`.

    Args:
        web: The web process to ask.
        account: The account of the queue.
        fields: The fields of the API.
    """
    line, until = Line(web, account), time.monotonic() + QUEUE_SECONDS
    body, headers = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    while True:
        answer = line.ask("POST", "", body=body, headers=headers, timeout=QUEUE_SECONDS)
        if answer.status in {200, 201}:
            break
        assert answer.status == 503, answer
        assert time.monotonic() < until, answer
        time.sleep(0.2)
    line.close()


def read_metric(web: Web, name: str) -> float:
    """Returns a metric of a web process, summed over its labels; 0 if it has no such metric.

    Raises:
        OSError: The web process does not answer.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))


def _decode(content: bytes) -> dict[str, Any]:
    """Decodes a JSON object; returns an empty dict for anything else."""
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text(content: bytes) -> str:
    return content[:200].decode("utf-8", "replace")
