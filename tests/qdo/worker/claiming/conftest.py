"""Tasks and their client, for all tests of claiming workers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from qdo import Jobs
from queuey.client import Client
from tests.qdo.worker.claiming.test_claims import SHORT_BACKOFF
from tests.qdo.worker.conftest import Workers


@pytest.fixture
async def client(workers: Workers) -> AsyncIterator[Client]:
    with Client(workers.system.profile.url, key=workers.system.profile.key) as client:
        yield client


@pytest.fixture
async def jobs(workers: Workers, client: Client) -> Jobs:
    """Tasks of a queue with short retry delays."""
    queue = await workers.system.queue(backoff=SHORT_BACKOFF)
    return Jobs(queue.name, client=client, async_client=workers.system.client)
