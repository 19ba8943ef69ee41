"""Offsets from outside: looking at them and moving them."""

from __future__ import annotations

import time

import pytest

from qdo.coordination import CommittedOffset, Coordinator
from qdo.errors import GroupActive, OffsetMoved
from qdo.partitions import Partition, Queue
from tests.qdo.contract.backends import Service, once
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.samples import ONE, some

pytestmark = once

OTHER = Partition(Queue("elsewhere", "acme", "orders"), 1)


async def ids(coordinator: Coordinator) -> dict[Partition, str | None]:
    """Returns what is recorded."""
    return {partition: offset.id for partition, offset in (await coordinator.offsets()).items()}


async def test_a_group_begins_without_offsets(coordinator: Coordinator) -> None:
    """Nothing is recorded, for all partitions or for some."""
    assert await coordinator.offsets() == {}
    assert await coordinator.offsets([ONE]) == {}


async def test_offsets_of_some_partitions(coordinator: Coordinator) -> None:
    """Who asks for some gets those of them that have one."""
    await coordinator.set_offsets(dict.fromkeys(some(5), "1") | {OTHER: "2"})
    found = await coordinator.offsets([*some(2), OTHER, Partition(OTHER.queue, 9)])
    assert {partition: offset.id for partition, offset in found.items()} == dict.fromkeys(some(2), "1") | {OTHER: "2"}
    assert await coordinator.offsets([]) == {}


async def test_offsets_are_set_moved_and_removed(coordinator: Coordinator, open_one: Open) -> None:
    """Everybody sees them, and that somebody from outside set them."""
    looking = await open_one()
    before = time.time()
    await coordinator.set_offsets({ONE: "5", OTHER: "5"})
    found = (await looking.offsets())[ONE]
    assert found == CommittedOffset("5", found.at)
    assert before - 60 < found.at < time.time() + 60
    await coordinator.set_offsets({ONE: "3"})
    assert await ids(looking) == {ONE: "3", OTHER: "5"}
    await coordinator.set_offsets({ONE: None})
    assert await ids(looking) == {OTHER: "5"}
    await coordinator.set_offsets({ONE: None})
    await coordinator.set_offsets({})
    assert await ids(looking) == {OTHER: "5"}


async def test_who_takes_a_partition_begins_where_it_was_moved_to(join: Join, coordinator: Coordinator) -> None:
    """The next owner is given what was set, or nothing after a removal."""
    session, _ = await join("a")
    for identifier in ("5", None, "2"):
        await coordinator.set_offsets({ONE: identifier})
        assert (await session.claim([ONE]))[ONE].offset.id == identifier
        await session.release([ONE])


async def test_moving_is_refused_while_a_partition_is_owned(join: Join, coordinator: Coordinator) -> None:
    """One owner among the partitions of a queue is enough, and nothing is moved; others may be."""
    session, _ = await join("a")
    one, two, three = some(3)
    await coordinator.set_offsets({one: "1"})
    await session.claim([two])
    with pytest.raises(GroupActive):
        await coordinator.set_offsets({one: "2", two: "2", three: "2"})
    assert await ids(coordinator) == {one: "1"}
    await coordinator.set_offsets({one: "3", three: "3"})
    assert await ids(coordinator) == {one: "3", three: "3"}


async def test_moving_is_allowed_once_the_owner_is_gone(join: Join, coordinator: Coordinator, service: Service) -> None:
    """Whether it released, left, or its session ended."""
    session, _ = await join("a")
    await session.claim(some(3))
    await session.release(some(1))
    await coordinator.set_offsets(dict.fromkeys(some(1), "1"))
    await session.leave()
    await coordinator.set_offsets(dict.fromkeys(some(3), "2"))
    ended, _ = await join("b")
    await ended.claim(some(3))
    await service.expire(ended)
    await coordinator.set_offsets(dict.fromkeys(some(3), "3"))
    assert await ids(coordinator) == dict.fromkeys(some(3), "3")


async def test_an_earlier_owner_does_not_undo_a_move(join: Join, coordinator: Coordinator) -> None:
    """What it held before the offset was moved records nothing."""
    session, _ = await join("a")
    old = (await session.claim([ONE]))[ONE]
    await session.release([ONE])
    await coordinator.set_offsets({ONE: "1"})
    assert await session.commit([(old, "9")]) == {ONE: None}
    assert await ids(coordinator) == {ONE: "1"}


async def test_moving_at_what_is_expected(coordinator: Coordinator) -> None:
    """It is done if what is recorded is what was expected, an offset or none."""
    one, two, three = some(3)
    await coordinator.set_offsets({one: "1", two: "2"}, expected={one: None, two: None})
    await coordinator.set_offsets({one: "5", two: "6", three: "7"}, expected={one: "1", three: None})
    assert await ids(coordinator) == {one: "5", two: "6", three: "7"}
    await coordinator.set_offsets({one: None}, expected={one: "5"})
    assert await ids(coordinator) == {two: "6", three: "7"}


async def test_nothing_is_moved_from_where_it_is_not(coordinator: Coordinator) -> None:
    """One offset of a queue that is not what was expected keeps all of them where they are."""
    one, two, three = some(3)
    await coordinator.set_offsets({one: "1", two: "2"})
    for expected in ({one: "1", two: "1"}, {one: None}, {three: "1"}, {one: "1", two: "2", three: "3"}):
        with pytest.raises(OffsetMoved):
            await coordinator.set_offsets({one: "9", two: "9", three: "9"}, expected=expected)
    assert await ids(coordinator) == {one: "1", two: "2"}
