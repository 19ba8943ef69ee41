"""Services that are away, refuse, or have no room."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest

from qdo.partitions import Partition
from queuey.client import AsyncClient, NotAuthenticated, RetryPolicy
from queuey.client.credentials.profile import read_profile
from tests.client.live import served
from tests.qdo.consumer.conftest import Site, bodies, collect, flat, until
from tests.qdo.consumer.gate import polling


def refusal(status: int, code: str) -> httpx2.Response:
    """Gives an answer that refuses."""
    return httpx2.Response(status, json={"status": "error", "error_msg": {code: "on purpose"}})


class Times:
    """Fails the first reads, so many."""

    def __init__(self, count: int, status: int, code: str) -> None:
        self.left = count
        self._answer = (status, code)

    def __call__(self, request: httpx2.Request) -> httpx2.Response | None:
        """Gives an answer in the service's place, or none."""
        if not self.left:
            return None
        self.left -= 1
        return refusal(*self._answer)


async def test_a_service_that_was_away_is_read_on(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever was stored before and after is handed out once it is back, and its absence is logged once."""
    caplog.set_level(logging.INFO, "qdo.consumer")
    with served(tmp_path) as own:
        profile = read_profile(own.profile)
        async with AsyncClient(profile.url, key=profile.key) as client:
            site.client, site.profile, site.store = client, profile, (await client.hello()).id
            queue = await site.queue()
            consumer = await site.consumer(queue, client=site.connect(url=profile.url, key=profile.key), discover=0.1)
            await site.send(queue, 3)
            assert bodies(await collect(consumer, 3)) == [1, 2, 3]
            own.stop()
            waiting = asyncio.create_task(consumer.poll(timeout=None))
            seen = len(site.gate.reads)
            await site.gate.until(lambda: len(site.gate.reads) >= seen + 3)
            assert not waiting.done()
            own.start()
            await site.send(queue, 2, first=4)
            found = flat(await waiting)
            found += await collect(consumer, 2 - len(found))
            assert bodies(found) == [4, 5]
            assert consumer.assignment == {Partition(queue, 1)}
            await consumer.close()
    messages = [record.message for record in caplog.records if "of the service" in record.message]
    # Once for each absence; a service that starts slowly may be away twice.
    failed = len([text for text in messages if "fail" in text])
    assert 1 <= failed == len([text for text in messages if "again" in text])


async def test_reads_that_fail_for_a_while_are_made_again(site: Site) -> None:
    """Nobody notices who only polls."""
    queue = await site.queue()
    await site.send(queue, 3)
    site.gate.fail = Times(3, 503, "StoreBusy")
    consumer = await site.consumer(queue)
    assert bodies(await collect(consumer, 3)) == [1, 2, 3]
    assert len(site.gate.reads) >= 4


async def test_a_refusal_that_will_not_pass_is_raised_by_poll(site: Site) -> None:
    """So that whoever runs the consumer hears of it; once the reason is gone it goes on."""
    queue = await site.queue()
    await site.send(queue, 3)
    site.gate.fail = Times(1, 401, "InvalidApplicationKey")
    consumer = await site.consumer(queue)
    with pytest.raises(NotAuthenticated):
        await consumer.poll(timeout=None)
    assert bodies(await collect(consumer, 3)) == [1, 2, 3]


async def test_a_refusal_ends_a_start(site: Site) -> None:
    """Whoever may not list the queues does not join."""
    queue = await site.queue()
    with pytest.raises(NotAuthenticated):
        await site.consumer(queue, client=site.connect(key="wrong"))
    assert await (await site.coordinator()).members() == {}


async def test_a_service_that_is_away_at_the_start_is_waited_for(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The group is joined and the queues are found when it is there."""
    with served(tmp_path) as own:
        profile = read_profile(own.profile)
        async with AsyncClient(profile.url, key=profile.key) as client:
            site.client, site.profile, site.store = client, profile, (await client.hello()).id
            queue = await site.queue()
            await site.send(queue, 2)
            own.stop()
            starting = asyncio.create_task(site.consumer(queue, client=site.connect(), discover=0.05))
            await until(lambda: "does not answer now" in caplog.text)
            assert not starting.done()
            assert await (await site.coordinator()).members() == {}
            own.start()
            consumer = await starting
            assert bodies(await collect(consumer, 2)) == [1, 2]
            await consumer.close()


async def test_a_queue_that_cannot_be_read_spoils_no_other(site: Site) -> None:
    """Its partitions rest and are tried again; the others are read meanwhile."""
    queue, other = await site.queue(), await site.queue()
    spoilt = True

    def spoil(asked: Any, notified: Any) -> None:  # noqa: ANN401 - JSON
        for place, one in enumerate(notified["queues"]):
            if spoilt and one["queue_name"] == queue.name:
                error = {"queue_name": queue.name, "status": "error", "error_msg": {"NotAllowed": "on purpose"}}
                notified["queues"][place] = error

    site.gate.heal = spoil
    await site.send(queue, 1)
    consumer = await site.consumer(queue, other)
    for number in (1, 2, 3):
        await site.send(other, 1, first=number)
        assert bodies(await collect(consumer, 1)) == [number]
    spoilt = False
    assert [message.body for message in await collect(consumer, 1)] == ["1:1"]
    assert consumer.position(Partition(queue, 1)) is not None


async def test_without_a_place_to_wait_it_looks_now_and_then(site: Site) -> None:
    """Who is turned away from a long poll still gets what comes, without waiting there, and polls again later."""
    queue = await site.queue()

    def crowded(request: httpx2.Request) -> httpx2.Response | None:
        return refusal(503, "TooManyWaiters") if polling(site.gate) else None

    site.gate.fail = crowded
    consumer = await site.consumer(queue)
    await site.gate.until(lambda: polling(site.gate))
    await site.gate.until(lambda: not polling(site.gate))
    await site.send(queue, 1)
    assert bodies(await collect(consumer, 1)) == [1]
    consumer._fetcher._crowded_until = 0
    await site.gate.until(lambda: polling(site.gate))


async def test_reads_that_are_broken_off_leave_no_connection_behind(site: Site) -> None:
    """Far more of them than a client may have connections."""
    queue = await site.queue()
    consumer = await site.consumer(queue)
    place = Partition(queue, 1)
    for _ in range(150):
        seen = len(site.gate.reads)
        await consumer.seek(place, "earliest")
        await site.gate.until(lambda seen=seen: len(site.gate.reads) > seen)  # type: ignore[misc] # is called at once
    await site.send(queue, 1)
    assert bodies(await collect(consumer, 1)) == [1]
    pool = site.gate.inner._pool
    await until(lambda: len(pool.connections) <= 3)
    await consumer.close()
    await until(lambda: all(connection.is_idle() for connection in pool.connections))


async def test_the_client_outlives_the_consumer(site: Site) -> None:
    """Closing in the middle of a long poll neither waits for its end nor spoils the client."""
    queue = await site.queue()
    client = site.connect(retry=RetryPolicy())
    for _ in range(3):
        site.gate.reads.clear()
        consumer = await site.consumer(queue, client=client, wait=20.0)
        await site.gate.until(lambda: polling(site.gate))
        await consumer.close()
    assert (await client.info(queue.name)).count == 0
