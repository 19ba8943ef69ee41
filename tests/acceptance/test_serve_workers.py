"""Several worker processes: they share connections, and the port stays open whatever happens to one of them."""

from __future__ import annotations

import os
import signal
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.acceptance.test_serve_stop import variables_with_startup_code
from tests.servers.processes import is_alive
from tests.servers.served import Served
from tests.waiting import until

CONNECTIONS = 400
HASTE = "from queuey.web.http import processes\nprocesses.STALL = 3.0\n"
"""Replaces a worker that stands still for three seconds."""


def _sockets(process: int) -> int:
    count = 0
    for path in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # It was closed meanwhile.
            count += path.readlink().name.startswith("socket:")
    return count


def test_connections_are_shared(tmp_path: Path) -> None:
    """Four workers that have nothing else to do each have some of four hundred connections."""
    with Served(tmp_path, ["--workers", "4"]) as served, ExitStack() as stack:
        until(lambda: len(served.workers()) == 4)
        before = Counter({process: _sockets(process) for process in served.workers()})
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        until(lambda: sum((_counts(served) - before).values()) >= CONNECTIONS)
        assert min((_counts(served) - before).values()) >= CONNECTIONS / 40, _counts(served) - before


def _counts(served: Served) -> Counter[int]:
    return Counter({process: _sockets(process) for process in served.workers()})


def test_a_worker_that_stands_still_is_replaced(tmp_path: Path) -> None:
    """The others serve meanwhile; a worker that stood still does not count as a crash, so the service goes on."""
    with Served(tmp_path, variables=variables_with_startup_code(tmp_path, HASTE)) as served:
        [first] = served.workers()
        os.kill(first, signal.SIGSTOP)
        served.wait_for("sent no heartbeat")
        until(lambda: not is_alive(first))
        with served.client() as client:
            client.heartbeat()
        assert first not in served.workers()
        assert served.end(signal.SIGTERM) == 0
