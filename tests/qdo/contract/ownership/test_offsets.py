"""Offsets read and moved from outside the group."""

from __future__ import annotations

import time

import pytest

from qdo.errors import GroupActive, OffsetMoved
from qdo.group.records import CommittedOffset
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.partitions import Partition, Queue
from tests.qdo.contract.backends import Service, once
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.samples import PARTITION, first_partitions

pytestmark = once

OTHER = Partition(Queue("elsewhere", "acme", "orders"), 1)


async def ids(coordinator: ZooKeeperCoordinator) -> dict[Partition, str | None]:
    return {partition: offset.id for partition, offset in (await coordinator.offsets()).items()}


async def test_offsets_of_some_partitions(coordinator: ZooKeeperCoordinator) -> None:
    """A request for some partitions returns those of them that have an offset."""
    await coordinator.set_offsets(dict.fromkeys(first_partitions(5), "1") | {OTHER: "2"})
    offsets = await coordinator.offsets([*first_partitions(2), OTHER, Partition(OTHER.queue, 9)])
    assert {partition: offset.id for partition, offset in offsets.items()} == dict.fromkeys(
        first_partitions(2), "1"
    ) | {OTHER: "2"}
    assert await coordinator.offsets([]) == {}


async def test_offsets_are_set_moved_and_removed(coordinator: ZooKeeperCoordinator, open_one: Open) -> None:
    """An offset set from outside is visible to all, with its origin, and can be moved and removed."""
    looking = await open_one()
    before = time.time()
    await coordinator.set_offsets({PARTITION: "5", OTHER: "5"})
    offset = (await looking.offsets())[PARTITION]
    assert offset == CommittedOffset("5", offset.at)
    assert before - 60 < offset.at < time.time() + 60
    await coordinator.set_offsets({PARTITION: "3"})
    assert await ids(looking) == {PARTITION: "3", OTHER: "5"}
    await coordinator.set_offsets({PARTITION: None})
    assert await ids(looking) == {OTHER: "5"}
    await coordinator.set_offsets({PARTITION: None})
    await coordinator.set_offsets({})
    assert await ids(looking) == {OTHER: "5"}


async def test_who_takes_a_partition_begins_where_it_was_moved_to(
    join: Join, coordinator: ZooKeeperCoordinator
) -> None:
    """The next owner begins at the offset that was set, or at none after a removal."""
    session, _ = await join("a")
    for identifier in ("5", None, "2"):
        await coordinator.set_offsets({PARTITION: identifier})
        assert (await session.claim([PARTITION]))[PARTITION].offset.id == identifier
        await session.release([PARTITION])


async def test_moving_is_refused_while_a_partition_is_owned(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """One owner among the partitions of a queue refuses the move, and nothing changes; other queues may be moved."""
    session, _ = await join("a")
    first, second, third = first_partitions(3)
    await coordinator.set_offsets({first: "1"})
    await session.claim([second])
    with pytest.raises(GroupActive):
        await coordinator.set_offsets({first: "2", second: "2", third: "2"})
    assert await ids(coordinator) == {first: "1"}
    await coordinator.set_offsets({first: "3", third: "3"})
    assert await ids(coordinator) == {first: "3", third: "3"}


async def test_moving_is_allowed_once_the_owner_is_gone(
    join: Join, coordinator: ZooKeeperCoordinator, service: Service
) -> None:
    """Offsets can be moved once the owner released the partition or left, or its session ended."""
    session, _ = await join("a")
    await session.claim(first_partitions(3))
    await session.release(first_partitions(1))
    await coordinator.set_offsets(dict.fromkeys(first_partitions(1), "1"))
    await session.leave()
    await coordinator.set_offsets(dict.fromkeys(first_partitions(3), "2"))
    ended, _ = await join("b")
    await ended.claim(first_partitions(3))
    await service.expire(ended)
    await coordinator.set_offsets(dict.fromkeys(first_partitions(3), "3"))
    assert await ids(coordinator) == dict.fromkeys(first_partitions(3), "3")


async def test_moving_at_what_is_expected(coordinator: ZooKeeperCoordinator) -> None:
    """A conditional move is done if the recorded offset, or its absence, is as expected."""
    first, second, third = first_partitions(3)
    await coordinator.set_offsets({first: "1", second: "2"}, expected={first: None, second: None})
    await coordinator.set_offsets({first: "5", second: "6", third: "7"}, expected={first: "1", third: None})
    assert await ids(coordinator) == {first: "5", second: "6", third: "7"}
    await coordinator.set_offsets({first: None}, expected={first: "5"})
    assert await ids(coordinator) == {second: "6", third: "7"}


async def test_nothing_is_moved_from_where_it_is_not(coordinator: ZooKeeperCoordinator) -> None:
    """If one offset of a queue is not as expected, none of the queue is moved."""
    first, second, third = first_partitions(3)
    await coordinator.set_offsets({first: "1", second: "2"})
    for expected in ({first: "1", second: "1"}, {first: None}, {third: "1"}, {first: "1", second: "2", third: "3"}):
        with pytest.raises(OffsetMoved):
            await coordinator.set_offsets({first: "9", second: "9", third: "9"}, expected=expected)
    assert await ids(coordinator) == {first: "1", second: "2"}
