"""Connections that hold a long poll each, from this process, without a thread or a library for each of them."""

from __future__ import annotations

import contextlib
import http.client
import resource
import selectors
import socket
import time
from collections.abc import Iterator, Sequence

from bench.harness import Void
from bench.load import traffic
from bench.started.processes import Process

SPARE = 200
"""Files of this process beside the connections."""
CALM = 0.1
"""Part of a processor below which a server that only waits has taken everybody in."""


class Waiting:
    """Long polls under way.

    Args:
        server: Where they wait.
        requests: What each of them sends; with ``wait``.
    """

    def __init__(self, server: Process, requests: Sequence[str]) -> None:
        self._selector = selectors.DefaultSelector()
        for at, request in enumerate(requests):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            connection.sendall(request.encode())
            connection.settimeout(0)
            self._selector.register(connection, selectors.EVENT_READ)
            if at % 100 == 99:
                time.sleep(0.05)  # The system keeps a limited number of connections that nobody has accepted yet.
        self.count = len(requests)

    def answered(self, seconds: float) -> float:
        """Waits for the answers of all; returns the seconds until the last.

        Raises:
            Void: An answer was no message, or there are some missing after so many seconds.
        """
        began = time.monotonic()
        left = self.count
        while left and time.monotonic() - began < seconds:
            for key, _ in self._selector.select(1.0):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                text = connection.recv(65536)
                if b" 200 " not in text[:20] or b'"message_id"' not in text:
                    raise Void(f"a long poll ended without a message: {text[:300]!r}")
                self._selector.unregister(connection)
                connection.close()
                left -= 1
        if left:
            raise Void(f"{left} long polls were not answered")
        return time.monotonic() - began

    def close(self) -> None:
        """Leaves."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@contextlib.contextmanager
def waiting(server: Process, requests: Sequence[str]) -> Iterator[Waiting]:
    """Holds long polls for as long as the block lasts; it begins when the server has taken them all in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < len(requests) + SPARE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(len(requests) + SPARE, hard), hard))
    with contextlib.closing(Waiting(server, requests)) as polls:
        settle(server, polls.count)
        yield polls
    settle(server, 0)


def settle(server: Process, count: int, seconds: float = 120.0) -> None:
    """Returns when so many wait by the server's own count, and it does next to nothing for a second.

    The processor alone does not tell: where others use the machine, a server that has much to do seems to do nothing.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = server.cpu_seconds()
        time.sleep(1.0)
        if server.cpu_seconds() - before < CALM and waiters(server) == count:
            return
    raise Void(f"{server.name} does not come to rest:\n{server.log_tail()}")


def waiters(server: Process) -> int:
    """Returns how many reads and claims wait in a service."""
    found = [line.split() for line in ask(server, "/metrics").splitlines() if "s_waiting " in line and line[0] != "#"]
    return int(sum(float(value) for _, value in found))


def metric(server: Process, name: str) -> float:
    """Returns the value of a metric that has no labels, as one worker has it.

    Raises:
        Void: The service has no such metric.
    """
    for line in ask(server, "/metrics").splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[-1])
    raise Void(f"{server.name} has no metric {name}")


def ask(server: Process, path: str) -> str:
    """Sends a GET; returns the text of its answer."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Application {traffic.KEY}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise Void(f"{path}: {answer.status} {text[:300]}")
        return text
