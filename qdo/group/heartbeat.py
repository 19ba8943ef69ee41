"""Sends a member's heartbeats to the service while the program's event loop is blocked; see :mod:`qdo.group`.

``python -m qdo.group.heartbeat <program> <vitals> <line>`` sends a heartbeat when half of the session timeout has
passed since the last one. Its heartbeats name no partitions, so they neither take nor give back any. The access
settings come over the socket, as a line of JSON each time they change: other users could see a key on a command line.

A heartbeat extends the session from the moment it was sent, and only if the session has not ended. ``heard`` is the
start of a full session timeout, so both processes know when the session ends.
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

from qdo.group.vitals import READY, START_TIMEOUT, Vitals, ignore_signals, now

RETRY_INTERVAL = 0.2
"""Interval between two attempts while the service does not answer, in seconds."""
OK = 200


class HeartbeatProcess:
    """The helper process, as the program sees it.

    Args:
        limit: Seconds for which the program may be blocked.
        session: The session timeout in seconds.
        access: How to reach the service: ``urls``, ``headers``, ``ca``.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, limit: float, session: float, access: dict[str, Any]) -> None:
        self._session = session
        self._access = access | {"session": session}
        with contextlib.ExitStack() as undo:
            self._vitals = Vitals.create(limit)
            undo.callback(self._vitals.close)
            self._line = undo.enter_context(self._vitals.start_helper("qdo.group.heartbeat"))
            self._line.settimeout(START_TIMEOUT)
            self._send_access()
            if self._line.recv(len(READY)) != READY:
                raise ConnectionResetError("the helper process ended at once")
            self._undo = undo.pop_all()

    @property
    def session_end(self) -> float:
        """The end of the session, by :func:`now`; 0 if no heartbeat was answered, or the session has lapsed."""
        begin = self._vitals.last_heard
        return 0.0 if begin is None or self._vitals.lapsed else begin + self._session

    def record_end(self, end: float) -> None:
        """Passes the end of the session to the helper process, and records that the event loop is running."""
        self._vitals.beat()
        self._vitals.record_answer(end - self._session)

    def set_access(self, access: dict[str, Any]) -> None:
        access = access | {"session": self._session}
        if access != self._access:
            self._access = access
            with contextlib.suppress(OSError):
                self._send_access()

    def _send_access(self) -> None:
        self._line.sendall(json.dumps(self._access).encode() + b"\n")

    def close(self) -> None:
        self._undo.close()


def main(program: str, vitals: str, line: str) -> None:
    ignore_signals()
    shared = Vitals(int(vitals), int(program))
    with socket.socket(fileno=int(line)) as channel, channel.makefile("r") as lines:
        access = json.loads(lines.readline())
        with contextlib.suppress(BrokenPipeError):  # The program has ended already, which ends the loop at once.
            channel.sendall(READY)
        session = access["session"]
        while True:
            begin = shared.last_heard or 0.0
            if select.select([channel], [], [], max(RETRY_INTERVAL, begin + session / 2 - now()))[0]:
                if not (text := lines.readline()):
                    return
                access = json.loads(text)
            elif now() >= begin + session / 2 and shared.running and not shared.lapsed:
                _send_heartbeat(shared, access)


def _send_heartbeat(shared: Vitals, access: dict[str, Any]) -> None:
    session = access["session"]
    for url in access["urls"]:
        sent = now()
        remaining = (shared.last_heard or 0.0) + session - sent
        if remaining <= 0:
            return
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
            answered = _request_heartbeat(url, access, min(remaining, session / 4))
            if now() < (shared.last_heard or 0.0) + session:
                shared.record_answer(sent + answered - session)
            return


def _request_heartbeat(url: str, access: dict[str, Any], seconds: float) -> float:
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
