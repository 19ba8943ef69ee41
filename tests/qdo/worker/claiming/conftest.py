"""Tasks and their client, for all tests of claiming workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from qdo import Claims, Jobs, Worker, WorkerSettings
from qdo.partitions import Queue
from queuey.client import Client
from tests.qdo.worker.claiming.test_claims import SHORT_BACKOFF
from tests.qdo.worker.conftest import Workers
from tests.qdo.worker.test_processes import Book, book

__all__ = ["book"]


Errands = Callable[..., Worker]


@pytest.fixture
def errands(workers: Workers, book: Book, monkeypatch: pytest.MonkeyPatch) -> Errands:
    """Makes workers of :mod:`tests.qdo.worker.claiming.errands`, whose tasks write into the book."""

    def make(queue: Queue, jobs: str = "jobs", ttl: float = 30, **settings: Any) -> Worker:  # noqa: ANN401 - of WorkerSettings
        monkeypatch.setenv("ERRANDS_QUEUE", queue.name)
        claims = Claims(workers.system.connect(), [queue.name], ttl=ttl)
        return Worker(f"tests.qdo.worker.claiming.errands:{jobs}", claims, settings=WorkerSettings(**settings))

    return make


@pytest.fixture
async def client(workers: Workers) -> AsyncIterator[Client]:
    with Client(workers.system.profile.url, key=workers.system.profile.key) as client:
        yield client


@pytest.fixture
async def jobs(workers: Workers, client: Client) -> Jobs:
    """Tasks of a queue with short retry delays."""
    queue = await workers.system.queue(backoff=SHORT_BACKOFF)
    return Jobs(queue.name, client=client, async_client=workers.system.client)
