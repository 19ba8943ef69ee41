"""Where a group begins of which nothing is recorded."""

from __future__ import annotations

import asyncio
import json

import httpx2

from qdo.partitions import Partition
from queuey.client import order_of
from tests.qdo.consumer.conftest import Site, bodies, collect, until


async def test_at_the_end_only_what_comes_is_handed_out(site: Site) -> None:
    """In partitions with and without messages alike."""
    queue = await site.queue(partitions=2)
    sent = await site.send(queue, 5)
    consumer = await site.consumer(queue, start="latest")
    await until(lambda: all(consumer.committed(partition) for partition in consumer.assignment))
    await site.send(queue, 2, first=6)
    await site.send(queue, 1, 2)
    found = await collect(consumer, 3)
    assert (bodies(found, 1), bodies(found, 2)) == ([6, 7], [1])
    recorded = await site.offsets()
    assert order_of(str(recorded[Partition(queue, 1)])) > order_of(sent[-1])


async def test_the_beginning_outlives_a_member_that_commits_nothing(site: Site) -> None:
    """It is recorded before anything is handed out, so nothing is lost between two members."""
    queue = await site.queue()
    await site.send(queue, 5)
    consumer = await site.consumer(queue, start="latest")
    await until(lambda: consumer.committed(Partition(queue, 1)) is not None)
    await consumer.close()
    await site.send(queue, 2, first=6)
    consumer = await site.consumer(queue, start="latest")
    assert bodies(await collect(consumer, 2)) == [6, 7]


async def test_nothing_is_read_before_the_beginning_is_recorded(site: Site) -> None:
    """A service that cannot say where the end is, is asked again."""
    queue = await site.queue()
    await site.send(queue, 2)
    failures = 2

    def fail(request: httpx2.Request) -> httpx2.Response | None:
        nonlocal failures
        failures -= 1
        return httpx2.Response(503, json={"status": "error", "error_msg": {}}) if failures >= 0 else None

    site.gate.fail = fail
    consumer = await site.consumer(queue, start="latest")
    await site.gate.until(lambda: len(site.gate.reads) >= 4)
    assert all("before" in read["queues"][0] for read in site.gate.reads[:3]), json.dumps(site.gate.reads)
    assert consumer.committed(Partition(queue, 1)) is not None
    assert await consumer.poll(timeout=0) == []


async def test_whoever_seeks_decides(site: Site) -> None:
    """A place that on_assign chose, or that is chosen while the end is being looked for, wins."""
    queue = await site.queue(partitions=2)
    for partition in (1, 2):
        await site.send(queue, 3, partition)
    one, two = Partition(queue, 1), Partition(queue, 2)

    started = asyncio.Event()

    async def on_assign(partitions: frozenset[Partition]) -> None:
        await started.wait()
        await consumer.seek(one, "earliest")

    site.gate.shut()
    consumer = await site.consumer(queue, start="latest", callbacks={"on_assign": on_assign})
    started.set()
    await site.gate.until(lambda: any("before" in read["queues"][0] for read in site.gate.reads))
    await consumer.seek(two, "earliest")
    site.gate.open()
    found = await collect(consumer, 6)
    assert bodies(found, 1) == bodies(found, 2) == [1, 2, 3]


async def test_what_is_recorded_is_where_it_begins(site: Site) -> None:
    """The setting speaks only of partitions without an offset."""
    queue = await site.queue()
    sent = await site.send(queue, 5)
    await (await site.coordinator()).set_offsets({Partition(queue, 1): sent[1]})
    consumer = await site.consumer(queue, start="latest")
    assert bodies(await collect(consumer, 3)) == [3, 4, 5]


async def test_partitions_that_go_are_looked_for_no_longer(site: Site) -> None:
    """Closing does not wait until the end of a partition is known."""
    queue = await site.queue()
    site.gate.fail = lambda _: httpx2.Response(503, json={"status": "error", "error_msg": {}})
    consumer = await site.consumer(queue, start="latest")
    await site.gate.until(lambda: len(site.gate.reads) >= 1)
    await asyncio.wait_for(consumer.close(), 30)
    assert await site.offsets() == {}
