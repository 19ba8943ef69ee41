"""What a worker learns at its start about its rights, and from a service that cannot say."""

from __future__ import annotations

import httpx2
import pytest

from queuey.client import AsyncClient, RetryPolicy
from tests.qdo.worker.conftest import Floor
from tests.qdo.worker.door import Door


async def test_an_older_service_cannot_say(floor: Floor, caplog: pytest.LogCaptureFixture) -> None:
    """A service that does not know the question has a worker that warns and begins."""
    queue = await floor.site.queue()
    await floor.site.client.send(queue.name, "hello")
    door = Door()

    def older(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(404, text="404 Not Found") if request.url.path.endswith("/_rights") else None

    door.answer = older
    profile = floor.site.profile
    async with AsyncClient(profile.url, key=profile.key, transport=door) as client:
        assert await floor.serve_until(await floor.worker(floor.note, queue, client=client), 1) == 0
    assert floor.seen == ["hello"]
    assert "so the worker's rights are not checked" in caplog.text


async def test_a_service_that_is_busy_is_asked_again(floor: Floor) -> None:
    """The check at the start waits, as the rest of the start does."""
    queue = await floor.site.queue()
    await floor.site.client.send(queue.name, "hello")
    door, busy = Door(), [1, 2, 3, 4, 5, 6]

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(503) if request.url.path.endswith("/_rights") and busy and busy.pop() else None

    door.answer = answer
    profile = floor.site.profile
    quickly = RetryPolicy(rounds=2, base=0.01)
    async with AsyncClient(profile.url, key=profile.key, transport=door, retry=quickly) as client:
        assert await floor.serve_until(await floor.worker(floor.note, queue, client=client), 1) == 0
    assert floor.seen == ["hello"]
    assert not busy
