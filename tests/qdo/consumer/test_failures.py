"""Services that are unreachable, refuse requests, or have no room."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest

from qdo.partitions import Partition
from queuey.client import AsyncClient, NotAuthenticated
from queuey.client.credentials.profile import read_profile
from tests.client.live import served
from tests.qdo.consumer.conftest import System, body_numbers, collect, flat, until
from tests.qdo.consumer.controlled_transport import polling


def refusal(status: int, code: str) -> httpx2.Response:
    return httpx2.Response(status, json={"status": "error", "error_msg": {code: "on purpose"}})


async def test_a_service_that_is_away(system: System, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A start waits for the service before it joins; a later outage ends no poll, and is logged once."""
    caplog.set_level(logging.INFO, "qdo.consumer")
    with served(tmp_path) as own:
        profile = read_profile(own.profile)
        async with AsyncClient(profile.url, key=profile.key) as client:
            system.client, system.profile, system.store = client, profile, (await client.hello()).id
            queue = await system.queue()
            await system.send(queue, 3)
            own.stop()
            starting = asyncio.create_task(system.consumer(queue, client=system.connect(), discover=0.1))
            await until(lambda: "does not answer now" in caplog.text)
            assert not starting.done()
            assert await (await system.coordinator()).members() == {}
            own.start()
            consumer = await starting
            assert body_numbers(await collect(consumer, 3)) == [1, 2, 3]
            own.stop()
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            seen = len(system.transport.reads)
            await system.transport.until(lambda: len(system.transport.reads) >= seen + 3)
            assert not waiting.done()
            own.start()
            await system.send(queue, 2, first=4)
            received = flat(await waiting)
            received += await collect(consumer, 2 - len(received))
            assert body_numbers(received) == [4, 5]
            assert consumer.assignment == {Partition(queue, 1)}
            await consumer.close()
    messages = [record.message for record in caplog.records if "of the service" in record.message]
    # Once per outage; a service that starts slowly may be away twice.
    failed = len([text for text in messages if "fail" in text])
    assert 1 <= failed == len([text for text in messages if "again" in text])


async def test_a_refusal_that_will_not_pass_is_raised_by_poll(system: System) -> None:
    """A permanent refusal is raised by poll, so that the caller learns of it; poll works once the reason is gone."""
    queue = await system.queue()
    await system.send(queue, 3)
    refusals = [refusal(401, "InvalidApplicationKey")]
    system.transport.fail = lambda _: refusals.pop() if refusals else None
    consumer = await system.consumer(queue)
    with pytest.raises(NotAuthenticated):
        await consumer.poll(timeout=None)
    assert body_numbers(await collect(consumer, 3)) == [1, 2, 3]


async def test_a_refusal_ends_a_start(system: System) -> None:
    """A consumer that may not list the queues does not join."""
    queue = await system.queue()
    with pytest.raises(NotAuthenticated):
        await system.consumer(queue, client=system.connect(key="wrong"))
    assert await (await system.coordinator()).members() == {}


async def test_a_queue_that_cannot_be_read_spoils_no_other(system: System) -> None:
    """Partitions of a queue that cannot be read rest and are tried again; the others are read meanwhile."""
    queue, other = await system.queue(), await system.queue()
    spoilt = True

    def spoil(asked: Any, notified: Any) -> None:  # noqa: ANN401 - JSON
        for place, row in enumerate(notified["queues"]):
            if spoilt and row["queue_name"] == queue.name:
                error = {"queue_name": queue.name, "status": "error", "error_msg": {"NotAllowed": "on purpose"}}
                notified["queues"][place] = error

    system.transport.heal = spoil
    await system.send(queue, 1)
    consumer = await system.consumer(queue, other)
    for number in (1, 2, 3):
        await system.send(other, 1, first=number)
        assert body_numbers(await collect(consumer, 1)) == [number]
    spoilt = False
    assert [message.body for message in await collect(consumer, 1)] == ["1:1"]
    assert consumer.position(Partition(queue, 1)) is not None


async def test_without_a_place_to_wait_it_looks_now_and_then(system: System) -> None:
    """A consumer that gets no long poll still gets new messages without one, and tries a long poll again later."""
    queue = await system.queue()

    def crowded(request: httpx2.Request) -> httpx2.Response | None:
        return refusal(503, "TooManyWaiters") if polling(system.transport) else None

    system.transport.fail = crowded
    consumer = await system.consumer(queue)
    await system.transport.until(lambda: polling(system.transport))
    await system.transport.until(lambda: not polling(system.transport))
    await system.send(queue, 1)
    assert body_numbers(await collect(consumer, 1)) == [1]
    await system.transport.until(lambda: polling(system.transport))


async def test_reads_that_are_broken_off_leave_no_connection_behind(system: System) -> None:
    """Cancelled reads leave no connection behind, with far more of them than a client may have connections."""
    queue = await system.queue()
    consumer = await system.consumer(queue)
    place = Partition(queue, 1)
    for _ in range(150):
        seen = len(system.transport.reads)
        await consumer.seek(place, "earliest")
        await system.transport.until(lambda seen=seen: len(system.transport.reads) > seen)  # type: ignore[misc] # called in this iteration
    await system.send(queue, 1)
    assert body_numbers(await collect(consumer, 1)) == [1]
    pool = system.transport.inner._pool
    await until(lambda: len(pool.connections) <= 3)
    await consumer.close()
    await until(lambda: all(connection.is_idle() for connection in pool.connections))
