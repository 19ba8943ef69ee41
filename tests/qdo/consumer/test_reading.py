"""What is handed out: every message, in order, within the bounds, and none too early."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qdo.partitions import Partition
from tests.qdo.consumer.conftest import System, body_numbers, collect, flat, prefetched, until
from tests.qdo.consumer.controlled_transport import asked_waits


@pytest.mark.parametrize(
    "settings",
    [{"page": 7, "prefetch_messages": 20}, {"page": 1, "prefetch_messages": 1}, {"prefetch_bytes": 1}],
    ids=["small pages", "one at a time", "hardly any bytes"],
)
async def test_everything_is_handed_out_once_and_in_order(system: System, settings: dict[str, Any]) -> None:
    """Each partition hands out its messages once and in order, however few may be held."""
    queue = await system.queue(partitions=3)
    for partition, count in ((1, 40), (2, 1), (3, 15)):
        await system.send(queue, count, partition)
    consumer = await system.consumer(queue, **settings)
    messages = await collect(consumer, 56, most=20)
    assert [body_numbers(messages, partition) for partition in (1, 2, 3)] == [
        list(range(1, 41)),
        [1],
        list(range(1, 16)),
    ]
    assert await consumer.poll(timeout=0) == []


async def test_nothing_beyond_the_horizon_is_handed_out(system: System) -> None:
    """Messages that the queue's read delay still hides stay hidden, though they are stored."""
    hidden, shown = await system.queue(read_delay=3600), await system.queue()
    consumer = await system.consumer(hidden, shown)
    await system.send(hidden, 5)
    (sent,) = await system.send(shown, 1)
    assert [message.id for message in await collect(consumer, 1)] == [sent]
    await system.client.update_queue(hidden.name, read_delay=0)
    assert body_numbers(await collect(consumer, 5)) == [1, 2, 3, 4, 5]


async def test_no_more_is_held_than_the_settings_allow(system: System) -> None:
    """Reading stops while nobody polls, and goes on when there is room."""
    queue = await system.queue(partitions=4)
    for partition in range(1, 5):
        await system.send(queue, 1000, partition)
    consumer = await system.consumer(queue, page=50, prefetch_messages=400)
    await until(lambda: prefetched(consumer) >= 200)
    await asyncio.sleep(0.3)  # in which reading would go on
    assert prefetched(consumer) <= 400
    messages = await collect(consumer, 4000)
    assert all(body_numbers(messages, partition) == list(range(1, 1001)) for partition in range(1, 5))


async def test_the_next_page_is_asked_for_before_one_is_handed_out(system: System) -> None:
    """The next page is requested before one is handed out, so reads overlap with handling, even blocking handling."""
    queue = await system.queue()
    await system.send(queue, 30)
    consumer = await system.consumer(queue, page=10)
    await until(lambda: prefetched(consumer) == 10)
    for page in (1, 2):
        assert len(system.transport.reads) == page
        assert len(flat(await consumer.poll(10))) == 10
        assert len(system.transport.reads) == page + 1
        await until(lambda: prefetched(consumer) == 10)


async def test_a_partition_that_is_not_finished_starves_no_other(system: System) -> None:
    """A partition whose messages fill the buffer does not keep those of others from being read."""
    queue = await system.queue(partitions=2)
    await system.send(queue, 300, 1)
    consumer = await system.consumer(queue, page=100, prefetch_messages=100)
    busy = [Partition(queue, 1)]
    assert body_numbers(await collect(consumer, 1, most=1)) == [1]
    await until(lambda: prefetched(consumer) >= 75)
    await system.send(queue, 60, 2)
    assert body_numbers(await collect(consumer, 60, skip=busy), 2) == list(range(1, 61))
    assert body_numbers(await collect(consumer, 299)) == list(range(2, 301))


async def test_who_waits_does_not_ask_all_the_time(system: System) -> None:
    """Without messages one long poll follows another; only the first read does not wait."""
    queue, other = await system.queue(partitions=5), await system.queue()
    consumer = await system.consumer(queue, other, wait=0.3)
    waiting = asyncio.create_task(consumer.poll(timeout=None))
    await system.transport.until(lambda: len(system.transport.reads) >= 5)
    consumer.wake()
    assert await waiting == []
    assert asked_waits(system.transport)[:5] == [0, 0.3, 0.3, 0.3, 0.3]


async def test_a_busy_partition_does_not_break_the_polls_of_others_off(system: System) -> None:
    """While one partition is read page by page, the idle ones share a single long poll."""
    queue = await system.queue(partitions=8)
    await system.send(queue, 100, 1)
    consumer = await system.consumer(queue, page=10, prefetch_messages=40, wait=20.0)
    messages = await collect(consumer, 100, most=10)
    assert body_numbers(messages) == list(range(1, 101))
    polls = [read for read in system.transport.reads if read.get("wait")]
    assert polls[0]["queues"][0]["partitions"] == "2,3,4,5,6,7,8"
    assert len(polls) <= 2


async def test_a_poll_that_is_cancelled_loses_nothing(system: System) -> None:
    """A cancelled poll loses nothing, wherever it is cancelled: the next one hands out its messages."""
    queue = await system.queue()
    await system.send(queue, 50)
    consumer = await system.consumer(queue)
    await until(lambda: prefetched(consumer) == 50)
    batches = []
    for step in range(50):
        task = asyncio.create_task(consumer.poll(10, timeout=0))
        for _ in range(step % 3):
            await asyncio.sleep(0)
        task.cancel()
        try:
            batches += flat(await task)
        except asyncio.CancelledError:
            assert consumer.position(Partition(queue, 1)) == (batches[-1].id if batches else None)
    batches += await collect(consumer, 50 - len(batches)) if len(batches) < 50 else []
    assert body_numbers(batches) == list(range(1, 51))


async def test_one_message_after_another(system: System) -> None:
    """A loop over the consumer hands out one message at a time, so a commit in its body records up to that one."""
    queue = await system.queue()
    sent = await system.send(queue, 5)
    consumer = await system.consumer(queue)
    handed_out = []
    async for message in consumer:
        handed_out.append(message.id)
        if len(handed_out) == 3:
            await consumer.commit()
            assert consumer.committed(Partition(queue, 1)) == sent[2]
        if len(handed_out) == 5:
            await consumer.close()
    assert handed_out == sent
