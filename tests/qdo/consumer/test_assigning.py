"""Partitions that a consumer was assigned, without being a member of a group."""

from __future__ import annotations

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.coordination import Coordinator
from qdo.errors import GroupActive, InvalidArgument
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings
from qdo.worker.worker import Worker
from queuey.client import QueueNotFound
from tests.qdo.consumer.conftest import WAIT, System, bodies, collect, flat

READS = ConsumerSettings(wait=WAIT)


@pytest.fixture
async def coordinator(system: System) -> Coordinator:
    """An open coordinator of a group that nobody knows."""
    found: Coordinator = await system.coordinator()
    return found


async def ids(coordinator: Coordinator, queue: Queue) -> dict[int, str | None]:
    """Gives what is recorded of a queue, by partition."""
    return {each.number: offset.id for each, offset in (await coordinator.offsets()).items() if each.queue == queue}


async def test_assigned_partitions_are_read_alone(system: System) -> None:
    """Those and no others, from the beginning, by everybody who was assigned them; nobody needs a group for it."""
    queue = await system.queue(partitions=3)
    for partition in (1, 2, 3):
        await system.send(queue, 3, partition)
    async with (
        AsyncConsumer(system.connect(), settings=READS) as one,
        AsyncConsumer(system.connect(), settings=READS) as other,
    ):
        assert await one.assign({queue.name: [1, 3]}) == one.assignment == {Partition(queue, 1), Partition(queue, 3)}
        await other.assign({queue.name: [3]})
        found = await collect(one, 6)
        assert (bodies(found, 1), bodies(found, 2), bodies(found, 3)) == ([1, 2, 3], [], [1, 2, 3])
        assert bodies(await collect(other, 3), 3) == [1, 2, 3]
        assert flat(await one.poll(timeout=0)) == []
    assert await one.poll() == []


async def test_a_later_assignment_replaces_the_earlier(system: System) -> None:
    """What stays goes on where it is, what comes begins, what goes is read no more."""
    queue, other = await system.queue(partitions=2), await system.queue()
    for place in ((queue, 1), (queue, 2), (other, 1)):
        await system.send(place[0], 2, place[1])
    async with AsyncConsumer(system.connect(), settings=READS) as consumer:
        await consumer.assign({queue.name: [1, 2]})
        await collect(consumer, 4)
        await consumer.assign({queue.name: [2], other.name: [1]})
        assert [message.body for message in await collect(consumer, 2)] == ["1:1", "1:2"]
        for number in (1, 2):
            await system.send(queue, 1, number, first=3)
        assert [(message.partition, message.body) for message in await collect(consumer, 1)] == [(2, "2:3")]
        assert await consumer.assign({}) == consumer.assignment == frozenset()
        assert flat(await consumer.poll(timeout=0)) == []


async def test_without_a_group_nothing_is_committed(system: System) -> None:
    """A commit is refused with the reason, and so is what would commit by itself."""
    queue = await system.queue()
    await system.send(queue, 1)
    async with AsyncConsumer(system.connect(), settings=READS) as consumer:
        await consumer.assign({queue.name: [1]})
        await collect(consumer, 1)
        with pytest.raises(InvalidArgument, match="give the consumer group="):
            await consumer.commit()
    for settings in (ConsumerSettings(commit_every=1.0), ConsumerSettings(mirror=True)):
        with pytest.raises(InvalidArgument, match="need a group"):
            AsyncConsumer(system.connect(), settings=settings)


async def test_commits_count_for_the_group_that_is_given(system: System, coordinator: Coordinator) -> None:
    """The next consumer of that group begins there, assigned or as a member; nobody joins the group for it."""
    queue = await system.queue(partitions=2)
    sent = await system.send(queue, 3)
    async with AsyncConsumer(system.connect(), coordinator, settings=READS) as consumer:
        (one,) = await consumer.assign({queue.name: [1]})
        await collect(consumer, 2, most=2)
        await consumer.commit()
        assert (await ids(coordinator, queue), consumer.committed(one)) == ({1: sent[1]}, sent[1])
        assert await coordinator.members() == {}
        with pytest.raises(InvalidArgument, match="was not returned"):
            await consumer.commit({one: sent[2]})
        await consumer.commit({one: sent[0]}, back=True)
    async with AsyncConsumer(system.connect(), coordinator, settings=READS) as again:
        await again.assign({queue.name: [1]})
        assert bodies(await collect(again, 2)) == [2, 3]
        await again.commit()
    await system.send(queue, 1, first=4)
    async with AsyncConsumer(system.connect(), coordinator, queues=[queue.name], settings=READS) as member:
        assert bodies(await collect(member, 1)) == [4]


async def test_what_counts_as_processed_is_committed_by_itself(system: System, coordinator: Coordinator) -> None:
    """With the setting, when a partition goes and at the end: all but what was handed out last."""
    queue, other = await system.queue(), await system.queue()
    sent, last = await system.send(queue, 2), await system.send(other, 1)
    settings = ConsumerSettings(commit_every=3600.0, wait=WAIT)
    async with AsyncConsumer(system.connect(), coordinator, settings=settings) as consumer:
        await consumer.assign({queue.name: [1]})
        await collect(consumer, 2, most=1)
        await consumer.assign({other.name: [1]})
        assert await ids(coordinator, queue) == {1: sent[0]}
        await collect(consumer, 1)
        await consumer.poll(timeout=0)
    assert await ids(coordinator, other) == {1: last[0]}


async def test_a_commit_of_what_a_member_owns_is_refused(system: System, coordinator: Coordinator) -> None:
    """Only the owner says how far the group is; reading goes on."""
    queue = await system.queue()
    await system.send(queue, 2)
    async with AsyncConsumer(system.connect(), coordinator, queues=[queue.name], settings=READS) as member:
        await collect(member, 2)
        await member.commit()
        before = await ids(coordinator, queue)
        async with AsyncConsumer(system.connect(), coordinator, settings=READS) as consumer:
            (one,) = await consumer.assign({queue.name: [1]})
            await consumer.seek(one, "earliest")
            assert bodies(await collect(consumer, 1, most=1)) == [1]
            with pytest.raises(GroupActive):
                await consumer.commit()
            assert bodies(await collect(consumer, 1)) == [2]
        assert await ids(coordinator, queue) == before


async def test_only_what_exists_is_assigned(system: System) -> None:
    """To a consumer that is running and does not subscribe; what was assigned before stays."""
    queue = await system.queue(partitions=2)
    idle = AsyncConsumer(system.connect(), settings=READS)
    with pytest.raises(InvalidArgument, match="started"):
        await idle.assign({queue.name: [1]})
    async with idle:
        await idle.assign({queue.name: [1]})
        for number in (0, 3):
            with pytest.raises(InvalidArgument, match=f"partitions 1 to 2, and not {number}"):
                await idle.assign({queue.name: [2, number]})
        with pytest.raises(QueueNotFound):
            await idle.assign({"no-such-queue": [1]})
        assert idle.assignment == {Partition(queue, 1)}
    with pytest.raises(InvalidArgument, match="started"):
        await idle.assign({})
    member = await system.consumer(queue)
    with pytest.raises(InvalidArgument, match="without queues and patterns"):
        await member.assign({queue.name: [1]})


async def test_a_worker_wants_a_member(system: System) -> None:
    """It is told of partitions that come and go, which only a group does."""
    with pytest.raises(InvalidArgument, match="has no group: give it group="):
        Worker(print, AsyncConsumer(system.connect()))
