"""Giving partitions up: each for itself, in order, and not for ever."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member
from qdo.partitions import Partition
from tests.qdo.unit.group.group_samples import (
    FIRST,
    FOUR,
    ONE,
    OTHER,
    PARTITIONS,
    THREE,
    TWO,
    WANTS,
    Make,
    rest,
    share,
)
from tests.qdo.unit.group.scripted import Diary, Scripted, until


async def test_a_slow_revocation_holds_up_no_other(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """The other partition goes to its new owner meanwhile, and the slow one may still be committed."""
    owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    service.say(OTHER)
    await until(lambda: len(owner.times("revoke")) == 2)
    (quick,), (slow,) = owner.times("revoke")
    owner.slow[quick].set()
    await until(lambda: quick not in service.owned)
    assert await group.table.record({slow: FIRST, quick: FIRST}) == {quick}
    assert slow in group.table.held
    owner.slow[slow].set()
    await rest(group, service, owner)
    assert service.recorded[slow][0] == FIRST
    assert owner.times("lost") == []


async def test_an_owner_that_fails_gives_up_all_the_same(
    group: GroupMember, service: Scripted, owner: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is logged, and it is told that what it did not give up is lost."""

    def fail(_: frozenset[Partition]) -> None:
        raise ValueError("nothing works")

    owner.on_revoke = fail
    service.say(OTHER)
    await rest(group, service, owner)
    assert len(owner.times("lost")) == 2
    assert "nothing works" in caplog.text


async def test_a_partition_that_is_taken_away_while_it_is_taken_is_given_back(
    make: Make, service: Scripted, owner: Diary
) -> None:
    """By the time it is ours it belongs to somebody else."""
    service.say(Member("A", WANTS))
    service.give(dict.fromkeys(PARTITIONS, "a"))
    taking = service.held_up["take"] = asyncio.Event()
    group = make()
    await group.start()
    await until(lambda: "take" in service.calls)
    service.give({ONE: "a", TWO: "A", THREE: "A", FOUR: "A"})
    for _ in range(20):
        await asyncio.sleep(0)
    taking.set()
    await until(lambda: set(service.owned) == {ONE} and owner.have == {ONE})
    assert set(group.table.held) == {ONE}
    assert owner.wrong == []


async def test_a_partition_is_revoked_after_its_owner_was_told_that_it_has_it(
    make: Make, service: Scripted, owner: Diary
) -> None:
    """However long that takes."""
    owner.assigning = asyncio.Event()
    group = make()
    await group.start()
    await until(lambda: owner.have == PARTITIONS)
    service.say(OTHER)
    await until(lambda: len(share(service)) == 2)
    for _ in range(20):
        await asyncio.sleep(0)
    assert owner.times("revoke") == []
    owner.assigning.set()
    await rest(group, service, owner)
    assert len(owner.times("revoke")) == 2
