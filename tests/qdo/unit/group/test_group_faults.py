"""What becomes of a member when the service does not answer, or its session ends."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member
from qdo.errors import CoordinationIncompatible, CoordinationLost, MemberExists, SessionLost
from tests.qdo.unit.group.group_samples import (
    FIRST,
    ONE,
    OTHER,
    PARTITIONS,
    WANTS,
    Make,
    rest,
)
from tests.qdo.unit.group.scripted import Diary, Scripted, until


async def test_nothing_is_done_while_the_session_is_suspended(
    group: GroupMember, service: Scripted, owner: Diary
) -> None:
    """The owner is told once, also when it is over; meanwhile all is kept and nobody is asked anything."""
    service.suspend()
    service.suspend()
    assert group.state == "suspended"
    assert owner.notified[-1] == ("suspended", frozenset())
    for _ in range(20):
        await asyncio.sleep(0)
    before = len(service.calls)
    service.there["b"] = OTHER
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(service.calls) == before
    assert set(group.table.held) == PARTITIONS
    service.suspend(suspended=False)
    assert owner.notified[-1] == ("resumed", frozenset())
    await rest(group, service, owner)
    assert len(owner.have) == 2
    assert len(owner.times("suspended")) == len(owner.times("resumed")) == 1


async def test_a_commit_outlasts_a_suspension(group: GroupMember, service: Scripted) -> None:
    """It waits for the service and is recorded then."""
    service.suspend()
    commit = asyncio.create_task(group.table.record({ONE: FIRST}))
    await until(lambda: service.calls.count("take") > 3)
    service.suspend(suspended=False)
    assert await commit == frozenset()
    assert service.recorded[ONE][0] == FIRST


async def test_a_session_that_is_in_doubt_before_it_says_so_counts_as_suspended(
    group: GroupMember, service: Scripted
) -> None:
    """A process that was stopped asks and knows."""
    for doubt, state in ((True, "suspended"), (False, "active")):
        service.session.suspended = doubt
        assert group.state == state


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_lost_session_is_abandoned_and_followed_by_another(
    group: GroupMember,
    service: Scripted,
    owner: Diary,
    suspended: bool,  # noqa: FBT001
) -> None:
    """In that instant nothing is held any more; the owner is told once, and the id stays."""
    if suspended:
        service.suspend()
    service.expire(service.session)
    assert group.state == "joining"
    assert group.table.held == {}
    with pytest.raises(SessionLost):
        await group.table.record({ONE: FIRST})
    await rest(group, service, owner)
    assert owner.times("lost") == [PARTITIONS]
    assert owner.have == PARTITIONS
    assert service.session.member.id == "a"
    assert len(owner.times("suspended")) == len(owner.times("resumed")) == int(suspended)


async def test_a_commit_under_way_fails_when_the_session_is_lost(group: GroupMember, service: Scripted) -> None:
    """Even if no answer ever comes."""
    service.held_up["commit"] = asyncio.Event()
    commit = asyncio.create_task(group.table.record({ONE: FIRST}))
    await until(lambda: "commit" in service.calls)
    service.expire(service.session)
    with pytest.raises(SessionLost):
        await commit


async def test_an_earlier_life_is_waited_for(make: Make, service: Scripted, owner: Diary) -> None:
    """A member that exists at first is gone soon, at the start and when it joins again."""
    earlier = Member("a", WANTS)
    service.say(earlier)
    group = make()
    starting = asyncio.create_task(group.start())
    await until(lambda: service.calls.count("join") == 3)
    service.say()
    await starting
    await rest(group, service, owner)
    service.expire(service.session)
    service.say(earlier)
    joins = service.calls.count("join")
    await until(lambda: service.calls.count("join") == joins + 3)
    service.say()
    await rest(group, service, owner)
    assert owner.have == PARTITIONS


async def test_a_static_member_puts_its_earlier_life_out_once(make: Make, service: Scripted, owner: Diary) -> None:
    """At its start; when it lost its session because another has its name, that one is left alone."""
    other = Member("a", WANTS)
    service.say(other)
    group = make(static=True)
    await group.start()
    assert service.calls.count("join") == 1
    await rest(group, service, owner)
    service.expire(service.session)
    service.say(other)
    await until(lambda: service.calls.count("join") == 4)
    service.say()
    await rest(group, service, owner)


async def test_a_name_that_stays_taken_is_an_error(make: Make, service: Scripted) -> None:
    """After two session timeouts it is given up, and the group is at its end."""
    service.session_timeout = 0.01
    service.say(Member("a", WANTS))
    group = make(draw=lambda: 0.05)
    with pytest.raises(MemberExists):
        await group.start()
    assert group.state == "left"


async def test_a_service_that_is_not_reached_at_the_start_is_an_error(make: Make, service: Scripted) -> None:
    """As the coordinator says, at once."""
    service.faults["open"] = "refused"
    group = make()
    with pytest.raises(CoordinationLost):
        await group.start()
    assert group.state == "left"


async def test_everything_is_given_up_to_a_newer_program(
    make: Make, service: Scripted, owner: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody here can read what it says; the member stays, and goes on when it can."""
    group = make(recheck=0.01)
    await group.start()
    await rest(group, service, owner)
    service.faults["assignment"] = "incompatible"
    service.tell("changed")
    await until(lambda: len(owner.times("revoke")) == 4)
    await rest(group, service, owner)
    assert owner.times("lost") == []
    assert CoordinationIncompatible.__name__ in caplog.text


@pytest.mark.parametrize("call", ["assignment", "lead", "target", "members", "set_target", "take", "release"])
async def test_what_is_not_allowed_is_told(make: Make, service: Scripted, owner: Diary, call: str) -> None:
    """Whoever works on the partitions hears of it and may end; it is tried again all the same."""
    service.faults[call] = "forbidden"
    group = make()
    await group.start()
    await rest(group, service, owner)
    service.say(OTHER)
    await rest(group, service, owner)
    assert len(owner.refusals) == 1
