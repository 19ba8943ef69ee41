"""Several members of one group on a real coordination service: who has what, and that no count is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from qdo.errors import CoordinationLost, SessionLost
from qdo.partitions import Partition
from tests.qdo.contract.backends import LONG_ENOUGH, Service
from tests.qdo.groups.conftest import QUEUE, Crew, anybody

Make = Callable[..., Awaitable[Crew]]
ALL = {Partition(QUEUE, number) for number in range(1, 13)}


async def test_members_share_out_and_the_service_says_the_same(crew: Make) -> None:
    """Each partition has one owner, and nobody has more than one more than another."""
    group = await crew("a", "b", "c", "d", "e")
    owners = await anybody(group).coordinator.owners()
    assert owners == {partition: name for name, member in group.members.items() for partition in member.have}
    assert set(owners) == ALL


async def test_a_newcomer_takes_only_what_it_needs(crew: Make) -> None:
    """Nobody gives up more than moves, and what stays is counted on meanwhile."""
    group = await crew("a", "b", "c")
    before = {name: set(member.have) for name, member in group.members.items()}
    assert all(len(had) == 4 for had in before.values())
    notified = {name: len(member.notified) for name, member in group.members.items()}
    await group.join("d")
    await group.agree()
    for name, had in before.items():
        member = group.members[name]
        assert set(member.have) < had
        assert set().union(*(partitions for _, partitions in member.notified[notified[name] :])) == had - set(
            member.have
        )
    await group.check()


async def test_when_one_leaves_the_others_never_stop(crew: Make) -> None:
    """They are told only of what they get, and get it where it was left."""
    group = await crew("a", "b", "c")
    for member in group.members.values():
        await member.count()
    notified = {name: len(member.notified) for name, member in group.members.items()}
    left = await group.leave("a")
    await group.agree()
    assert left.times("lost") == set()
    assert left.have == {}
    for name, member in group.members.items():
        assert {what for what, _ in member.notified[notified[name] :]} == {"assigned"}
    # Counted once by everybody, and once more by who gave it up.
    moved = left.times("revoke")
    have = {partition: number for member in group.members.values() for partition, number in member.have.items()}
    assert all(have[partition] >= 2 for partition in moved)
    await group.check()


async def test_a_slow_member_holds_up_nobody_else(crew: Make) -> None:
    """What it takes long to give up is counted on by it, all else is at its place."""
    group = await crew("a", "b")
    slow = group.members["a"]
    slow.slow = {partition: asyncio.Event() for partition in slow.have}
    had = set(slow.have)
    newcomer = await group.join("c")
    await group.news.until(lambda: len(newcomer.have) == 2 and len(slow.times("revoke") & had) == 2)
    await slow.count()
    for given_up in slow.slow.values():
        given_up.set()
    await group.agree()
    assert slow.times("lost") == set()
    await group.check()


async def test_more_partitions_are_found_by_one_member(crew: Make) -> None:
    """That one of them sees them is enough."""
    group = await crew("a", "b", "c")
    group.see("b", 20)
    await group.agree()
    assert {len(member.have) for member in group.members.values()} == {6, 7}


async def test_a_static_member_finds_its_partitions_again(crew: Make) -> None:
    """It leaves and comes back within its time, and the others are told nothing."""
    group = await crew()
    for name in "abc":
        await group.join(name, static=True, grace=60.0)
    await group.agree()
    notified = {name: len(member.notified) for name, member in group.members.items()}
    left = await group.leave("b")
    again = await group.join("b", static=True, grace=60.0)
    await group.agree()
    assert set(again.have) == set().union(*(had for what, had in left.notified[notified["b"] :] if what == "revoke"))
    assert all(len(group.members[name].notified) == notified[name] for name in "ac")
    await group.check()


async def test_a_static_member_that_stays_away_is_replaced(crew: Make) -> None:
    """After its time its partitions go to the others without anything else happening."""
    group = await crew()
    for name in "abc":
        await group.join(name, static=True, grace=0.3)
    await group.agree()
    await group.leave("a")
    await group.agree()


async def test_whoever_loses_its_session_comes_back(crew: Make) -> None:
    """It is told once that all is lost, joins under its name, and no count is lost."""
    group = await crew("a", "b", "c", session_timeout=LONG_ENOUGH)
    for member in group.members.values():
        await member.count()
    member = group.members["b"]
    had = set(member.have)
    await group.expire("b")
    await group.news.until(lambda: member.times("lost") == had)
    await group.agree()
    assert [what for what, _ in member.notified].count("lost") == 1
    for each in group.members.values():
        await each.count()
    await group.check()


async def test_a_service_that_is_away_for_a_moment_stops_nobody_for_good(crew: Make, service: Service) -> None:
    """Members are suspended or lost while it is away, and are at their places again afterwards."""
    group = await crew("a", "b", "c", session_timeout=LONG_ENOUGH)
    await service.cut()
    await group.news.until(
        lambda: all(any(what in {"suspended", "lost"} for what, _ in m.notified) for m in group.members.values())
    )
    await service.heal()
    await group.news.until(lambda: group.shared() and all(m.group.state == "active" for m in group.members.values()))
    for member in group.members.values():
        await member.count()
    await group.check()


@pytest.mark.parametrize("seed", [1, 2])
async def test_members_that_come_and_go_lose_no_count(crew: Make, seed: int) -> None:
    """Joins, leaves, ended sessions and new partitions at random, while everybody counts all the time."""
    chance = random.Random(seed)
    group = await crew("a", session_timeout=LONG_ENOUGH)
    counting = {name: asyncio.create_task(count_on(group, name)) for name in "abcde"}
    for _ in range(25):
        name = chance.choice("abcde")
        if name not in group.members:
            await group.join(name, chance.randrange(6, 13))
        elif chance.random() < 0.5:
            await group.expire(name)
        elif len(group.members) > 1:
            await group.leave(name)
        if chance.random() < 0.3:
            await group.agree()
    await group.agree()
    for task in counting.values():
        task.cancel()
    await asyncio.gather(*counting.values(), return_exceptions=True)
    await group.check()
    recorded = await anybody(group).coordinator.offsets()
    assert len(recorded) >= 6
    assert all(int(offset.id or "0") > 0 for offset in recorded.values())


async def count_on(group: Crew, name: str) -> None:
    """Counts for as long as it can, whenever a member runs."""
    while True:
        member = group.members.get(name)
        if member is None or not member.have:
            await group.news.until(lambda: bool(group.members.get(name) and group.members[name].have))
            continue
        try:
            await member.count()
        except (SessionLost, CoordinationLost):
            await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_who_joins_again_hands_everything_back_before(crew: Make) -> None:
    """Nothing of it is lost, it is a member again soon, and no count is lost."""
    group = await crew("a", "b")
    member = group.members["a"]
    had = set(member.have)
    await member.count()
    member.group.rejoin()
    await group.news.until(lambda: had <= member.times("revoke") and bool(member.have))
    await group.agree()
    assert not member.times("lost")
    assert member.group.state == "active"
    await group.check()
