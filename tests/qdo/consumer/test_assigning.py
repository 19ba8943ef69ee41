"""Partitions that a consumer was assigned directly, without being a member of a group."""

from __future__ import annotations

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import GroupActive, InvalidArgument
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings
from qdo.worker.worker import Worker
from queuey.client import QueueNotFound
from tests.qdo.consumer.conftest import POLL_SECONDS, System, body_numbers, collect, flat

READS = ConsumerSettings(wait=POLL_SECONDS)


@pytest.fixture
async def coordinator(system: System) -> ZooKeeperCoordinator:
    """An open coordinator of a new group."""
    coordinator: ZooKeeperCoordinator = await system.coordinator()
    return coordinator


async def committed_ids(coordinator: ZooKeeperCoordinator, queue: Queue) -> dict[int, str | None]:
    return {each.number: offset.id for each, offset in (await coordinator.offsets()).items() if each.queue == queue}


async def test_assigned_partitions_are_read_alone(system: System) -> None:
    """Assigned partitions are read from the beginning by each consumer that has them; no group is needed."""
    queue = await system.queue(partitions=3)
    for partition in (1, 2, 3):
        await system.send(queue, 3, partition)
    async with (
        AsyncConsumer(system.connect(), settings=READS) as anna,
        AsyncConsumer(system.connect(), settings=READS) as bert,
    ):
        assert await anna.assign({queue.name: [1, 3]}) == anna.assignment == {Partition(queue, 1), Partition(queue, 3)}
        await bert.assign({queue.name: [3]})
        messages = await collect(anna, 6)
        assert (body_numbers(messages, 1), body_numbers(messages, 2), body_numbers(messages, 3)) == (
            [1, 2, 3],
            [],
            [1, 2, 3],
        )
        assert body_numbers(await collect(bert, 3), 3) == [1, 2, 3]
        assert flat(await anna.poll(timeout=0)) == []
    assert await anna.poll() == []


async def test_a_later_assignment_replaces_the_earlier(system: System) -> None:
    """A later assignment keeps the places of partitions that stay, starts new ones, and stops reading the others."""
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
    """Without a group, commits are refused with the reason, and so are settings that commit automatically."""
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


async def test_commits_count_for_the_group_that_is_given(system: System, coordinator: ZooKeeperCoordinator) -> None:
    """A commit counts for the given group: its next consumer, assigned or a member, begins there; nobody joins it."""
    queue = await system.queue(partitions=2)
    sent = await system.send(queue, 3)
    async with AsyncConsumer(system.connect(), coordinator, settings=READS) as consumer:
        (partition,) = await consumer.assign({queue.name: [1]})
        await collect(consumer, 2, most=2)
        await consumer.commit()
        assert (await committed_ids(coordinator, queue), consumer.committed(partition)) == ({1: sent[1]}, sent[1])
        assert await coordinator.members() == {}
        with pytest.raises(InvalidArgument, match="was not returned"):
            await consumer.commit({partition: sent[2]})
        await consumer.commit({partition: sent[0]}, back=True)
    async with AsyncConsumer(system.connect(), coordinator, settings=READS) as again:
        await again.assign({queue.name: [1]})
        assert body_numbers(await collect(again, 2)) == [2, 3]
        await again.commit()
    await system.send(queue, 1, first=4)
    async with AsyncConsumer(system.connect(), coordinator, queues=[queue.name], settings=READS) as member:
        assert body_numbers(await collect(member, 1)) == [4]


async def test_a_commit_of_what_a_member_owns_is_refused(system: System, coordinator: ZooKeeperCoordinator) -> None:
    """A commit is refused if a member owns the partition; reading goes on."""
    queue = await system.queue()
    await system.send(queue, 2)
    async with AsyncConsumer(system.connect(), coordinator, queues=[queue.name], settings=READS) as member:
        await collect(member, 2)
        await member.commit()
        before = await committed_ids(coordinator, queue)
        async with AsyncConsumer(system.connect(), coordinator, settings=READS) as consumer:
            (partition,) = await consumer.assign({queue.name: [1]})
            await consumer.seek(partition, "earliest")
            assert body_numbers(await collect(consumer, 1, most=1)) == [1]
            with pytest.raises(GroupActive):
                await consumer.commit()
            assert body_numbers(await collect(consumer, 1)) == [2]
        assert await committed_ids(coordinator, queue) == before


async def test_only_what_exists_is_assigned(system: System) -> None:
    """Only existing partitions are assigned, to a running consumer without a subscription; an error changes nothing."""
    queue = await system.queue(partitions=2)
    idle = AsyncConsumer(system.connect(), settings=READS)
    with pytest.raises(InvalidArgument, match="started"):
        await idle.assign({queue.name: [1]})
    async with idle:
        await idle.assign({queue.name: [1]})
        for number in (0, 3):
            with pytest.raises(InvalidArgument, match=f"partitions 1 to 2, not {number}"):
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
    """A worker refuses such a consumer, because only a group reports partitions that come and go."""
    with pytest.raises(InvalidArgument, match="has no group: give it group="):
        Worker(print, AsyncConsumer(system.connect()))
