"""The measures of Qdo: workers are started and counted correctly."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bench.harness import Void
from bench.load import traffic
from bench.started import service, workers
from bench.started.processes import Process
from queuey.messages import NewMessage, QueueSpec
from queuey.storage import bridge
from tests.waiting import join

COUNT = 2500


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The service with a queue of two partitions: ``COUNT`` messages in the first, three in the second."""
    directory = tmp_path_factory.mktemp("served")
    store = service.prepare(directory, ())
    queue = bridge.run(store.catalogue.create_queue(service.APPLICATION, workers.QUEUE, QueueSpec(partitions=2)))[0]
    for text in ("a", "b", "c"):
        bridge.run(store.messages.append(queue, [NewMessage(text, 2, service.THREE_DAYS)]))
    service.fill(store, queue, traffic.bodies(10), COUNT)
    store.close()
    with service.serve(directory) as server:
        yield server


def wait_until_handled(one: Process, count: int) -> None:
    """Waits until a worker has handled this many messages; it may report no count while the machine is very busy."""
    deadline = time.monotonic() + 60
    handled = None
    while handled != count:
        assert one.child.poll() is None, one.log_tail()
        assert time.monotonic() < deadline, f"{handled} messages handled of {count}"
        with contextlib.suppress(Void):
            handled = workers.read_count(one)


def test_an_error_page_is_not_a_count(tmp_path: Path) -> None:
    """A worker that cannot serve its metrics has not handled zero messages."""

    class Failing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(500, "Out of order")

    with HTTPServer(("127.0.0.1", 0), Failing) as server, subprocess.Popen([sys.executable, "-c", ""]) as child:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(Void, match="500"):
            workers.read_count(Process("worker", child, server.server_port, tmp_path / "log"))
        join(thread)


def test_a_worker_is_started_behind_its_gate(served: Process, tmp_path: Path) -> None:
    """It serves its metrics before the gate is open, and joins and handles everything afterwards."""
    with workers.run_worker(served, tmp_path, handler="plain") as process:
        wait_until_handled(process, 0)
        (tmp_path / workers.GATE_FILE).touch()
        wait_until_handled(process, COUNT + 3)
