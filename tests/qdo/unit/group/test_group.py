"""Membership at work, when nothing goes wrong: partitions come and go, and offsets are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from qdo.assignment import reported
from qdo.consumer.rebalance import group_member
from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member
from qdo.partitions import Queue
from tests.qdo.unit.group.group_samples import (
    FIRST,
    LATER,
    ONE,
    OTHER,
    PARTITIONS,
    TWO,
    WANTS,
    Make,
    rest,
    see,
)
from tests.qdo.unit.group.scripted import Catalogue, Diary, Scripted, until
from tests.replacing import replace_in


async def test_what_another_owns_is_taken_when_it_is_free(make: Make, service: Scripted, owner: Diary) -> None:
    """The rest is worked on meanwhile."""
    service.owned[TWO] = "somebody"
    group = make()
    await group.start()
    await until(lambda: owner.have == PARTITIONS - {TWO})
    service.free(TWO)
    await rest(group, service, owner)
    assert owner.times("assigned") == [PARTITIONS - {TWO}, {TWO}]


async def test_only_what_moves_is_revoked(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """Half goes to a newcomer, each partition by itself, and the other half is not touched."""
    service.say(OTHER)
    await rest(group, service, owner)
    assert len(owner.have) == 2
    assert sorted(map(sorted, owner.times("revoke"))) == [[partition] for partition in sorted(PARTITIONS - owner.have)]
    assert owner.times("assigned") == [PARTITIONS]
    service.say()
    await rest(group, service, owner)
    assert owner.have == PARTITIONS


async def test_a_follower_sets_no_target(make: Make, service: Scripted, owner: Diary) -> None:
    """It takes what others say, and becomes the leader when they are gone."""
    leader = Member("A", WANTS)
    service.say(leader)
    service.give({ONE: "a", TWO: "A"})
    group = make()
    await group.start()
    await until(lambda: owner.have == {ONE})
    assert "set_target" not in service.calls
    service.say()
    await rest(group, service, owner)
    assert owner.have == PARTITIONS


async def test_what_is_found_later_is_shared_out(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """New partitions are shared out; the same queues again are no news."""
    see(group, service, 6)
    await until(lambda: len(owner.have) == 6)
    see(group, service, 6)
    see(group, service, 7)
    await until(lambda: len(owner.have) == 7)
    assert service.calls.count("set_target") == 3


async def test_queues_that_change_during_a_rebalance_are_shared_out_too(
    group: GroupMember, service: Scripted, owner: Diary
) -> None:
    """While partitions are on their way to another, more are found."""
    owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    service.say(OTHER)
    await until(lambda: len(owner.times("revoke")) == 2)
    see(group, service, 8)
    await until(lambda: len(owner.have) == 6)
    owner.hurry()
    await rest(group, service, owner)
    assert len(owner.have) == 4


async def test_a_group_is_started_once(group: GroupMember) -> None:
    """A second start is a mistake."""
    with pytest.raises(RuntimeError, match="once"):
        await group.start()


async def test_commits_are_recorded_one_after_the_other(group: GroupMember, service: Scripted) -> None:
    """Many at once for the same partition all count, and the last one stands."""
    ids = [f"{number:032}" for number in range(20)]
    results = await asyncio.gather(*(group.table.record({ONE: identifier, TWO: identifier}) for identifier in ids))
    assert set(results) == {frozenset()}
    assert service.recorded[ONE][0] == service.recorded[TWO][0] == ids[-1]
    assert group.table.held[ONE].recorded == ids[-1]


async def test_a_partition_with_another_version_is_taken_anew(
    group: GroupMember, service: Scripted, owner: Diary
) -> None:
    """Somebody wrote to its offset: nothing is recorded, and the owner begins again at what there is."""
    service.recorded[ONE] = (LATER, 77)
    assert await group.table.record({ONE: FIRST}) == {ONE}
    await until(lambda: ONE in owner.have and owner.times("lost") == [{ONE}])
    await rest(group, service, owner)
    assert group.table.held[ONE].recorded == LATER
    assert owner.times("assigned")[-1] == {ONE}


async def test_a_cancelled_commit_leaves_no_doubt(group: GroupMember, service: Scripted) -> None:
    """It is carried to its end, and the next one has the right version."""
    service.held_up["commit"] = asyncio.Event()
    commit = asyncio.create_task(group.table.record({ONE: FIRST}))
    await until(lambda: "commit" in service.calls)
    commit.cancel()
    later = asyncio.create_task(group.table.record({ONE: LATER}))
    service.held_up.pop("commit").set()
    assert await later == frozenset()
    assert service.recorded[ONE][0] == LATER
    assert [call for call in service.calls if call in {"commit", "take"}][-2:] == ["commit", "commit"]


async def test_nothing_is_shared_out_before_it_is_known_which_queues_there_are(
    make: Make, service: Scripted, owner: Diary, catalogue: Catalogue
) -> None:
    """A leader that cannot ask the service takes nothing from anybody, and works on what it had before."""
    catalogue.away = True
    service.give({ONE: "a", TWO: "b"})
    service.say(OTHER)
    group = make()
    await group.start()
    await until(lambda: owner.have == {ONE} and catalogue.wanted == {WANTS})
    assert "set_target" not in service.calls
    catalogue.away = False
    group.recheck()
    await rest(group, service, owner)
    assert len(owner.have) == 2


async def test_only_the_leader_has_queues_looked_up_and_members_read(
    make: Make, service: Scripted, catalogue: Catalogue
) -> None:
    """The others look at what they are to own, and at nothing that grows with the group."""
    service.say(Member("A", WANTS))
    service.give({ONE: "a"})
    group = make()
    await group.start()
    await until(lambda: set(group.table.held) == {ONE})
    await until(lambda: "lead" in service.calls)
    assert catalogue.wanted == ()
    assert not {"members", "target"} & set(service.calls)


async def test_what_members_report_is_gone_through_when_members_change_only(
    group: GroupMember, service: Scripted, owner: Diary
) -> None:
    """A leader that checks again for another reason does not merge thousands of names anew."""
    await rest(group, service, owner)
    merged = 0

    def count(members: Iterable[Member]) -> dict[Queue, int]:
        nonlocal merged
        merged += 1
        return reported(members)

    with replace_in(group_member, reported, count):
        for partitions in (5, 6, 7):
            see(group, service, partitions)
            await until(lambda expected=partitions: len(owner.have) == expected)  # type: ignore[misc]
        assert merged == 0
        service.say(OTHER)
        await until(lambda: merged == 1)
