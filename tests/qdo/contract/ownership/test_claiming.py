"""Claiming and releasing partitions: one owner at a time."""

from __future__ import annotations

import asyncio

import pytest

from qdo.group.records import CommittedOffset
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.paths import GroupPaths
from tests.qdo.contract.backends import Service
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.samples import PARTITION, first_partitions

FOUR = first_partitions(4)


async def test_each_partition_is_taken_for_itself(join: Join, open_one: Open) -> None:
    """Partitions of other members are left out of a claim; the others are claimed."""
    mine, _ = await join("a")
    other, _ = await join("b")
    await mine.claim(FOUR[1:3])
    assert set(await other.claim(FOUR)) == {FOUR[0], FOUR[3]}
    assert await (await open_one()).owners() == dict(zip(FOUR, "baab", strict=True))
    assert await other.claim(FOUR[1:3]) == {}
    assert await other.claim([]) == {}


async def test_what_is_released_is_free(join: Join, open_one: Open) -> None:
    """Only partitions that their owner released change hands; a free one, or another's, is not released."""
    mine, _ = await join("a")
    other, _ = await join("b")
    held = await mine.claim(FOUR)
    assert held[PARTITION].offset == CommittedOffset()
    await other.release(FOUR)
    await mine.release(FOUR[:2])
    await mine.release(FOUR[:2])
    assert await (await open_one()).owners() == dict.fromkeys(FOUR[2:], "a")
    assert set(await other.claim(FOUR)) == set(FOUR[:2])


async def test_a_partition_has_one_owner_in_a_race(join: Join, open_one: Open) -> None:
    """When members claim the same partitions at once, each is told exactly those that it owns."""
    partitions = first_partitions(100)
    sessions = {name: (await join(name))[0] for name in "abcdef"}
    looking = await open_one()
    for _ in range(3):
        orders = [partitions[shift:] + partitions[:shift] for shift in range(0, 96, 16)]
        claimed = await asyncio.gather(
            *(session.claim(order) for session, order in zip(sessions.values(), orders, strict=True))
        )
        said = {partition: name for name, held in zip(sessions, claimed, strict=True) for partition in held}
        assert sum(map(len, claimed)) == len(said) == 100
        assert await looking.owners() == said
        await asyncio.gather(*(session.release(partitions) for session in sessions.values()))
        assert await looking.owners() == {}


async def test_an_ended_session_owns_nothing(join: Join, open_one: Open, service: Service) -> None:
    """Partitions of an ended session are free; the first claim gets them."""
    mine, _ = await join("a")
    other, _ = await join("b")
    await mine.claim(FOUR)
    await service.expire(mine)
    assert await (await open_one()).owners() == {}
    assert set(await (await open_one()).members()) == {"b"}
    assert set(await other.claim(FOUR)) == set(FOUR)


async def test_a_thousand_partitions_change_hands(join: Join, open_one: Open) -> None:
    """A thousand partitions are claimed, committed, released and claimed by another member, in one call each."""
    partitions = first_partitions(1000)
    mine, _ = await join("a")
    other, _ = await join("b")
    held = await mine.claim(partitions)
    assert set(held) == set(partitions)
    committed = await mine.commit([(each, f"id{partition.number}") for partition, each in held.items()])
    assert all(committed.values())
    assert await other.claim(partitions) == {}
    await mine.release(partitions)
    claimed = await other.claim(partitions)
    assert {partition: each.offset.id for partition, each in claimed.items()} == {
        partition: f"id{partition.number}" for partition in partitions
    }
    assert len(await (await open_one()).owners()) == 1000


async def test_a_take_that_was_cancelled_is_released(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """Partitions of a cancelled claim are released with the rest, although no caller learned of them."""
    session, _ = await join("a")
    partitions = first_partitions(300)
    await session.claim(partitions)
    await session.release(partitions)
    for pause in (0.0, 0.01, 0.02, 0.04, 0.06, 0.08):
        taking = asyncio.ensure_future(session.claim(partitions))
        await asyncio.sleep(pause)
        taking.cancel()
        await asyncio.wait({taking})
        await session.release(partitions)
        assert await coordinator.owners() == {}


async def test_an_offset_that_cannot_be_read_is_left_out(
    join: Join, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition with an unreadable offset is left out, and logged once; the others are claimed."""
    first, _ = await join("a")
    await first.claim(first_partitions(3))
    await first.leave()
    for unreadable in (b"qdo9={}", b"\xff"):
        await service.write(GroupPaths(service.root, "group").offset(PARTITION), unreadable)
        session, _ = await join("b")
        for _ in range(2):
            assert set(await session.claim(first_partitions(3))) == set(first_partitions(3)[1:])
        await session.leave()
    assert len([record for record in caplog.records if f"{PARTITION} is skipped" in record.message]) == 2
