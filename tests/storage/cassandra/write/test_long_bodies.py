"""Tests of long bodies and short requests on shared connections."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from queuey.model.messages import NewMessage, QueueSpec
from queuey.storage import bridge
from tests.contract.samples import run_call
from tests.storage.cassandra.conftest import OpenStore
from tests.waiting import PATIENCE_SECONDS

LONG = b"x" * (4 << 20)


def test_requests_beside_long_bodies_are_not_refused(open_with: OpenStore, application: str) -> None:
    """Short requests wait while a connection sends megabytes, and are not refused."""
    store = open_with()
    queue, _ = bridge.run(store.catalogue.create_queue(application, "long", QueueSpec()))
    other, _ = bridge.run(store.catalogue.create_queue(application, "short", QueueSpec()))
    with ThreadPoolExecutor(24) as threads:
        long = [threads.submit(run_call, store.messages.append, queue, [NewMessage(LONG, 1, 600)]) for _ in range(8)]
        short = [
            threads.submit(run_call, store.messages.append, other, [NewMessage("short", 1, 600)]) for _ in range(200)
        ]
        reads = [threads.submit(run_call, store.catalogue.queue, application, "short", fresh=True) for _ in range(200)]
        sent: list[Future[Any]] = [*long, *short, *reads]
        for request in sent:
            request.result(PATIENCE_SECONDS)
    assert bridge.run(store.messages.inspect(other))[1][0].count == 200
    assert bridge.run(store.messages.inspect(queue))[1][0].count == 8
