"""One connection to one web process: a request, and its answer or none. Nothing is sent twice, but to make queues."""

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
    """A web process: its name in the history, and where it listens."""

    name: str
    port: int


class Account(NamedTuple):
    """On whose behalf requests are made."""

    application: str
    key: str


class Answer(NamedTuple):
    """What came back. ``content`` is the decoded body, an empty object where it is no JSON object."""

    status: int
    retry_after: bool
    content: dict[str, Any]
    text: str


class Unanswered(Exception):
    """No whole answer came."""


class NotSent(Exception):
    """There is nobody to connect to."""


class Line:
    """A connection that is made when needed and made anew after a failure. For one thread."""

    def __init__(self, web: Web, account: Account) -> None:
        self.web = web
        self._account = account
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] = {}, timeout: float
    ) -> Answer:
        """Sends a request and waits for its answer.

        Args:
            method: Of HTTP.
            path: Below the application, with query.
            body: Sent as it is.
            headers: Besides the credential.
            timeout: Seconds to wait for anything to happen.

        Raises:
            NotSent: There was no connection and none could be made.
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
        return Answer(response.status, "Retry-After" in response.headers, _decoded(content), _text(content))

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def make_queue(web: Web, account: Account, **fields: object) -> None:
    """Makes a queue; asks again while the store has no time for it.

    Args:
        web: Is asked.
        account: Whose queue it is.
        fields: As the API has them.
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


def metric(web: Web, name: str) -> float:
    """Asks a web process for one of its metrics, the sum over its labels; 0 where it has none of the name.

    Raises:
        OSError: It does not answer.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{web.port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if re.match(rf"{name}[ {{]", line))


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(content: bytes) -> str:
    return content[:200].decode("utf-8", "replace")
