"""What a worker learns at its start about its rights, and from a service that cannot say."""

from __future__ import annotations

import httpx2
import pytest

from queuey.client import RetryPolicy
from tests.qdo.worker.conftest import Workers


async def test_an_older_service_cannot_say(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """A service that does not know the question has a worker that warns and begins."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "hello")

    def older(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(404, text="404 Not Found") if request.url.path.endswith("/_rights") else None

    workers.system.transport.answer = older
    assert await workers.serve_until(await workers.make(workers.note, queue), 1) == 0
    assert workers.seen == ["hello"]
    assert "so the worker's rights are not checked" in caplog.text


async def test_a_service_that_is_busy_is_asked_again(workers: Workers) -> None:
    """The check at the start waits, as the rest of the start does."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "hello")
    busy = [1, 2, 3, 4, 5, 6]

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(503) if request.url.path.endswith("/_rights") and busy and busy.pop() else None

    workers.system.transport.answer = answer
    quickly = RetryPolicy(rounds=2, base=0.01)
    client = workers.system.connect(retry=quickly)
    assert await workers.serve_until(await workers.make(workers.note, queue, client=client), 1) == 0
    assert workers.seen == ["hello"]
    assert not busy
