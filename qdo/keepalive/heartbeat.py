"""Sends a member's heartbeats to the service while the program's own loop cannot; see :mod:`qdo.keepalive`.

``python -m qdo.keepalive.heartbeat <program> <vitals> <line>`` sends one when half of the session has gone since the
last one. They name no partitions, so nothing is taken and nothing is given back. How the service is reached comes over
the socket, a line of JSON each time that it changes: a key on a command line could be seen by others.

A heartbeat counts from the moment at which it was sent, and only while the session is not over. ``heard`` is the
beginning of a session of full length, so both processes know when it ends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import ssl
import sys
from typing import Any
from urllib.parse import urlsplit

from qdo.keepalive.vitals import BEGINNING, READY, Vitals, ignore_signals, now

RETRY = 0.2
"""Interval in seconds between two tries while the service does not answer."""
OK = 200


class HeartbeatProcess:
    """The process, as the program sees it.

    Args:
        limit: Seconds for which the program may be held up.
        session: Seconds of a session.
        access: How the service is reached: ``urls``, ``headers``, ``ca``.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, limit: float, session: float, access: dict[str, Any]) -> None:
        self._session = session
        self._access = access | {"session": session}
        with contextlib.ExitStack() as undo:
            self._vitals = Vitals.begin(limit)
            undo.callback(self._vitals.close)
            self._line = undo.enter_context(self._vitals.start("qdo.keepalive.heartbeat"))
            self._line.settimeout(BEGINNING)
            self._send_access()
            if self._line.recv(len(READY)) != READY:
                raise ConnectionResetError("it ended at once")
            self._undo = undo.pop_all()

    @property
    def session_end(self) -> float:
        """When the session ends by the heartbeats of either process, by the clock of :func:`now`; 0: none was heard."""
        begin = self._vitals.last_heard
        return 0.0 if begin is None or self._vitals.lapsed else begin + self._session

    def record_end(self, end: float) -> None:
        """The program's own heartbeat was answered: the session lasts until then."""
        self._vitals.beat()
        self._vitals.heard(end - self._session)

    def use(self, access: dict[str, Any]) -> None:
        """Tells the process that the service is reached in another way from now on."""
        access = access | {"session": self._session}
        if access != self._access:
            self._access = access
            with contextlib.suppress(OSError):
                self._send_access()

    def _send_access(self) -> None:
        self._line.sendall(json.dumps(self._access).encode() + b"\n")

    def close(self) -> None:
        """Ends the process. Idempotent."""
        self._undo.close()


def main(program: str, vitals: str, line: str) -> None:
    ignore_signals()
    shared = Vitals(int(vitals), int(program))
    with socket.socket(fileno=int(line)) as talk, talk.makefile("r") as lines:
        access = json.loads(lines.readline())
        with contextlib.suppress(BrokenPipeError):  # The program has gone already, which ends the loop at once.
            talk.sendall(READY)
        session = access["session"]
        while True:
            begin = shared.last_heard or 0.0
            if select.select([talk], [], [], max(RETRY, begin + session / 2 - now()))[0]:
                if not (text := lines.readline()):
                    return
                access = json.loads(text)
            elif now() >= begin + session / 2 and shared.running and not shared.lapsed:
                _send(shared, access)


def _send(shared: Vitals, access: dict[str, Any]) -> None:
    """Sends a heartbeat to the first server that answers it."""
    session = access["session"]
    for url in access["urls"]:
        sent = now()
        remaining = (shared.last_heard or 0.0) + session - sent
        if remaining <= 0:
            return
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            answered = _ask(url, access, min(remaining, session / 4))
            if now() < (shared.last_heard or 0.0) + session:
                shared.heard(sent + answered - session)
            return


def _ask(url: str, access: dict[str, Any], seconds: float) -> float:
    """Sends a heartbeat to one server; returns the seconds that the session lasts from then on."""
    parts = urlsplit(url)
    assert parts.hostname is not None  # noqa: S101 - the client has used it
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=access["ca"])
        connection: http.client.HTTPConnection
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=seconds, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
    with contextlib.closing(connection):
        connection.request("POST", parts.path, b"{}", {"content-type": "application/json", **access["headers"]})
        answer = connection.getresponse()
        if answer.status != OK:
            raise ValueError(answer.status)
        return float(json.loads(answer.read())["session"])


if __name__ == "__main__":
    main(*sys.argv[1:])
