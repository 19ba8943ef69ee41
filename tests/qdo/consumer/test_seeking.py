"""Seeking in a partition, and pausing it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from qdo.errors import InvalidArgument
from qdo.partitions import Partition
from queuey.client import time_of
from tests.qdo.consumer.conftest import System, body_numbers, collect, until


async def test_it_goes_on_where_it_was_told(system: System) -> None:
    """A seek goes to either end, behind a message, or to an instant of either form."""
    queue = await system.queue()
    place = Partition(queue, 1)
    sent = [(await system.send(queue, 1, first=number))[0] for number in range(1, 11)]
    consumer = await system.consumer(queue)
    await collect(consumer, 10)
    instant = time_of(sent[5])
    for to, expected in (
        ("earliest", list(range(1, 11))),
        (sent[2], list(range(4, 11))),
        (sent[2].upper(), list(range(4, 11))),
        (instant, list(range(6, 11))),
        (instant.timestamp() - 3600, list(range(1, 11))),
        (0, list(range(1, 11))),
    ):
        await consumer.seek(place, to)
        assert body_numbers(await collect(consumer, len(expected))) == expected
    await consumer.seek(place, "earliest")
    await consumer.seek(place, "latest")
    await system.send(queue, 1, first=11)
    assert body_numbers(await collect(consumer, 1)) == [11]


@pytest.mark.parametrize("others", [0, 3], ids=["alone", "with another"])
async def test_an_answer_that_is_on_its_way_is_dropped(system: System, others: int) -> None:
    """An answer requested before the seek is dropped; another partition in the same call takes its messages."""
    queue = await system.queue(partitions=2 if others else 1)
    sent = await system.send(queue, 10)
    await system.send(queue, others, 2)
    system.transport.hold_reads()
    consumer = await system.consumer(queue)
    await system.transport.until(lambda: system.transport.held == 1)
    await consumer.seek(Partition(queue, 1), sent[6])
    system.transport.release_reads()
    messages = await collect(consumer, 3 + others)
    assert (body_numbers(messages, 1), body_numbers(messages, 2)) == ([8, 9, 10], list(range(1, others + 1)))
    assert await consumer.poll(timeout=0) == []


async def test_after_a_seek_the_next_commit_may_go_back(system: System) -> None:
    """After a seek, messages handed out before it can no longer be committed, and the next commit may go back."""
    queue = await system.queue()
    place = Partition(queue, 1)
    sent = await system.send(queue, 10)
    consumer = await system.consumer(queue)
    await collect(consumer, 10)
    await consumer.commit()
    await consumer.seek(place, sent[3])
    assert consumer.position(place) == sent[3]
    with pytest.raises(InvalidArgument, match="not returned"):
        await consumer.commit({place: sent[8]})
    await consumer.commit()
    assert await system.offsets() == {place: sent[3]}
    await collect(consumer, 2, most=2)
    with pytest.raises(InvalidArgument, match="is before"):
        await consumer.commit({place: sent[2]})
    await consumer.commit()
    assert await system.offsets() == {place: sent[5]}


async def test_what_is_no_position_is_refused(system: System) -> None:
    """Invalid positions are refused before anything is dropped."""
    queue = await system.queue()
    await system.send(queue, 3)
    consumer = await system.consumer(queue)
    wrong: list[Any] = ["newest", "", float("nan"), float("inf"), -1e18, datetime(2026, 1, 1), None]  # noqa: DTZ001 - on purpose
    for to in wrong:
        with pytest.raises(InvalidArgument, match="position"):
            await consumer.seek(Partition(queue, 1), to)
    assert body_numbers(await collect(consumer, 3)) == [1, 2, 3]


async def test_it_may_lie_ahead(system: System) -> None:
    """A seek into the future hands out nothing before that instant, and loses nothing after it."""
    queue = await system.queue()
    consumer = await system.consumer(queue)
    (before,) = await system.send(queue, 1)
    await consumer.seek(Partition(queue, 1), before)
    assert consumer.position(Partition(queue, 1)) == before
    await system.send(queue, 1, first=2)
    assert body_numbers(await collect(consumer, 1)) == [2]
    await consumer.seek(Partition(queue, 1), datetime(2100, 1, 1, tzinfo=UTC))
    await system.send(queue, 1, first=3)
    assert await consumer.poll(timeout=0) == []


async def test_a_paused_partition_stands_still(system: System) -> None:
    """A paused partition keeps its prefetched messages and resumes where it was; the others go on."""
    queue = await system.queue(partitions=2)
    partition = Partition(queue, 1)
    await system.send(queue, 10)
    consumer = await system.consumer(queue)
    await collect(consumer, 4, most=4)
    consumer.pause([partition, Partition(queue, 7)])
    assert consumer.paused == {partition}
    await system.send(queue, 2, 2)
    assert body_numbers(await collect(consumer, 2), 2) == [1, 2]
    assert await consumer.poll(timeout=0) == []
    assert consumer.position(partition) is not None
    waiting = asyncio.create_task(consumer.poll(timeout=None))
    await asyncio.sleep(0)
    consumer.resume([partition])
    assert body_numbers([message for batch in await waiting for message in batch.messages]) == [5, 6, 7, 8, 9, 10]
    assert consumer.paused == frozenset()


async def test_what_is_paused_is_not_read(system: System) -> None:
    """A paused partition is not read again until it is resumed, once running reads have returned."""
    queue, other = await system.queue(), await system.queue()
    consumer = await system.consumer(queue, other, wait=0.1)
    await until(lambda: len(consumer.assignment) == 2)
    consumer.pause([Partition(queue, 1)])
    seen = len(system.transport.reads)
    await system.transport.until(lambda: len(system.transport.reads) >= seen + 4)
    assert [one["queue_name"] for one in system.transport.reads[-1]["queues"]] == [other.name]
    consumer.resume([Partition(queue, 1)])
    await system.send(queue, 1)
    assert body_numbers(await collect(consumer, 1)) == [1]
