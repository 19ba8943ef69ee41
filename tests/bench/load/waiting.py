"""Connections that hold a long poll each, from this process, without a thread or a library for each of them."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterator, Sequence

from tests.bench.harness import Void
from tests.bench.load import traffic
from tests.bench.started.processes import Process

SPARE = 200
"""Files of this process beside the connections."""
CALM = 0.1
"""Part of a processor below which a server that only waits has taken everybody in."""


class Waiting:
    """Long polls under way.

    Args:
        server: Where they wait.
        paths: What each of them reads; with ``wait``.
    """

    def __init__(self, server: Process, paths: Sequence[str]) -> None:
        self._selector = selectors.DefaultSelector()
        for at, path in enumerate(paths):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            connection.sendall(traffic.request("GET", path).encode())
            connection.settimeout(0)
            self._selector.register(connection, selectors.EVENT_READ)
            if at % 100 == 99:
                time.sleep(0.05)  # The system keeps a limited number of connections that nobody has accepted yet.
        self.count = len(paths)

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
def waiting(server: Process, paths: Sequence[str]) -> Iterator[Waiting]:
    """Holds long polls for as long as the block lasts; it begins when the server has taken them all in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < len(paths) + SPARE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(len(paths) + SPARE, hard), hard))
    with contextlib.closing(Waiting(server, paths)) as polls:
        settle(server)
        yield polls
    settle(server)


def settle(server: Process, seconds: float = 60.0) -> None:
    """Waits until a server does next to nothing for a second."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        before = server.cpu_seconds()
        time.sleep(1.0)
        if server.cpu_seconds() - before < CALM:
            return
    raise Void(f"{server.name} does not come to rest:\n{server.log_tail()}")
