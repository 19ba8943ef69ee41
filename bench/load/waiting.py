"""Holds many long polls from this process, without a thread or a client library per connection."""

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

SPARE_FILES = 200
"""File descriptors of this process in addition to the connections."""
MAX_IDLE_CPU = 0.1
"""CPU seconds per second below which a server counts as idle."""


class LongPolls:
    """Long polls in flight; the constructor connects and sends them all.

    Args:
        server: The server.
        requests: The request of each connection, with ``wait``.
    """

    def __init__(self, server: Process, requests: Sequence[str]) -> None:
        self._selector = selectors.DefaultSelector()
        for number, request in enumerate(requests):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            connection.sendall(request.encode())
            connection.settimeout(0)
            self._selector.register(connection, selectors.EVENT_READ)
            if number % 100 == 99:
                time.sleep(0.05)  # The kernel queues a limited number of connections that are not accepted yet.
        self.count = len(requests)

    def wait_until_answered(self, seconds: float) -> float:
        """Waits until all polls are answered; returns the seconds until the last answer.

        Raises:
            Void: An answer had no message, or answers were missing after ``seconds``.
        """
        began = time.monotonic()
        remaining = self.count
        while remaining and time.monotonic() - began < seconds:
            for key, _ in self._selector.select(1.0):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                text = connection.recv(65536)
                if b" 200 " not in text[:20] or b'"message_id"' not in text:
                    raise Void(f"a long poll ended without a message: {text[:300]!r}")
                self._selector.unregister(connection)
                connection.close()
                remaining -= 1
        if remaining:
            raise Void(f"{remaining} long polls were not answered in time")
        return time.monotonic() - began

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


@contextlib.contextmanager
def open_long_polls(server: Process, requests: Sequence[str]) -> Iterator[LongPolls]:
    """Holds long polls during the block, which begins once the server counts all; waits until it counts none.

    Raises this process's limit of open files if necessary.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < len(requests) + SPARE_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(len(requests) + SPARE_FILES, hard), hard))
    with contextlib.closing(LongPolls(server, requests)) as polls:
        wait_until_idle(server, polls.count)
        yield polls
    wait_until_idle(server, 0)


def wait_until_idle(server: Process, count: int, seconds: float = 120.0) -> None:
    """Returns once the server's metrics count this many waiters and it has been idle for a second, else raises Void.

    Its CPU time alone is not enough: on a busy machine, a server with much to do may seem idle.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = server.cpu_seconds()
        time.sleep(1.0)
        if server.cpu_seconds() - before < MAX_IDLE_CPU and count_waiters(server) == count:
            return
    raise Void(f"{server.name} did not become idle in time:\n{server.log_tail()}")


def count_waiters(server: Process) -> int:
    fields = [line.split() for line in get(server, "/metrics").splitlines() if "s_waiting " in line and line[0] != "#"]
    return int(sum(float(value) for _, value in fields))


def read_metric(server: Process, name: str) -> float:
    """Returns the value of a metric without labels, as one worker reports it.

    Raises:
        Void: The service does not have this metric.
    """
    for line in get(server, "/metrics").splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[-1])
    raise Void(f"{server.name} has no metric {name}")


def get(server: Process, path: str) -> str:
    """Returns the text of a resource that needs the application's key; raises Void unless the status is 200."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", path, headers={"Authorization": f"Application {traffic.KEY}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise Void(f"{path}: {answer.status} {text[:300]}")
        return text
