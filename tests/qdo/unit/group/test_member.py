"""A member of a group at work, without its service, and as it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from qdo.assignment import reported
from qdo.consumer.rebalance import group_member
from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member, TargetAssignment
from qdo.errors import CoordinationIncompatible, CoordinationLost, MemberExists, SessionLost
from qdo.partitions import Partition, Queue
from tests.qdo.unit.group.conftest import FIRST, ONE, OTHER, PARTITIONS, TWO, WANTS, MemberSetup
from tests.qdo.unit.group.owners import until
from tests.replacing import replace_in


async def pause() -> None:
    """Lets others run for a while."""
    for _ in range(30):
        await asyncio.sleep(0)


async def test_only_what_moves_is_revoked(group: GroupMember, setup: MemberSetup) -> None:
    """Half goes to a newcomer, each partition by itself, and the other half is not touched."""
    await setup.join(OTHER)
    await setup.rest(group)
    gone = PARTITIONS - setup.owner.have
    assert sorted(map(sorted, setup.owner.times("revoke"))) == [[partition] for partition in sorted(gone)]
    assert (len(gone), setup.owner.times("assigned")) == (2, [PARTITIONS])
    await setup.leave("b")
    await setup.rest(group)
    assert setup.owner.have == PARTITIONS


async def test_nothing_is_shared_out_before_it_is_known_which_queues_there_are(setup: MemberSetup) -> None:
    """A leader that cannot ask the service takes nothing from anybody, and works on what it had before."""
    setup.catalogue.away = True
    other = await setup.join(OTHER)
    assert await other.set_target(TargetAssignment({ONE: "a", TWO: "b"}), -1)
    group = setup.make()
    await group.start()
    await until(lambda: setup.owner.have == {ONE} and setup.catalogue.wanted == {WANTS})
    assert "set_target" not in setup.coordinator.calls
    setup.catalogue.away = False
    group.recheck()
    await setup.rest(group)
    assert len(setup.owner.have) == 2


async def test_what_members_report_is_gone_through_when_members_change_only(
    group: GroupMember, setup: MemberSetup
) -> None:
    """A leader that checks again for another reason does not merge thousands of names anew."""
    merged = 0

    def count(members: Iterable[Member]) -> dict[Queue, int]:
        nonlocal merged
        merged += 1
        return reported(members)

    with replace_in(group_member, reported, count):
        for partitions in (5, 6, 7):
            setup.see(group, partitions)
            await until(lambda expected=partitions: len(setup.owner.have) == expected)  # type: ignore[misc]
        assert merged == 0
        await setup.join(OTHER)
        await until(lambda: merged == 1)


async def test_a_slow_revocation_holds_up_no_other(group: GroupMember, setup: MemberSetup) -> None:
    """The other partition goes to its new owner meanwhile, and the slow one may still be committed."""
    setup.owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    await setup.join(OTHER)
    await until(lambda: len(setup.owner.times("revoke")) == 2)
    (quick,), (slow,) = setup.owner.times("revoke")
    setup.owner.slow[quick].set()
    await until(lambda: setup.is_free(quick))
    assert await group.table.record({slow: FIRST, quick: FIRST}) == {quick}
    setup.owner.slow[slow].set()
    await setup.rest(group)
    assert setup.recorded(slow) == FIRST
    assert setup.owner.times("lost") == []


async def test_an_owner_that_fails_gives_up_all_the_same(
    group: GroupMember, setup: MemberSetup, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is logged, and it is told that what it did not give up is lost."""

    def fail(_: frozenset[Partition]) -> None:
        raise ValueError("nothing works")

    setup.owner.on_revoke = fail
    await setup.join(OTHER)
    await setup.rest(group)
    assert len(setup.owner.times("lost")) == 2
    assert "nothing works" in caplog.text


async def test_a_partition_that_is_taken_away_while_it_is_taken_is_given_back(setup: MemberSetup) -> None:
    """By the time it is ours it belongs to somebody else."""
    other = await setup.join(OTHER)
    assert await other.lead()
    assert await other.set_target(TargetAssignment(dict.fromkeys(PARTITIONS, "a")), -1)
    claiming = setup.coordinator.held_up["claim"] = asyncio.Event()
    group = setup.make()
    await group.start()
    await setup.called("claim")
    version = (await other.target()).version
    assert await other.set_target(TargetAssignment(dict.fromkeys(PARTITIONS - {ONE}, "b") | {ONE: "a"}), version)
    await pause()
    claiming.set()
    await until(lambda: setup.is_free(*PARTITIONS - {ONE}) and setup.owner.have == {ONE})
    assert set(group.table.held) == {ONE}
    assert setup.owner.wrong == []


async def test_a_partition_is_revoked_after_its_owner_was_told_that_it_has_it(setup: MemberSetup) -> None:
    """However long that takes."""
    setup.owner.assigning = asyncio.Event()
    group = setup.make()
    await group.start()
    await until(lambda: setup.owner.have == PARTITIONS)
    await setup.join(OTHER)
    await until(
        lambda: sorted(row.state for row in group.table.held.values()) == ["owned", "owned", "revoking", "revoking"]
    )
    await pause()
    assert setup.owner.times("revoke") == []
    setup.owner.assigning.set()
    await setup.rest(group)
    assert len(setup.owner.times("revoke")) == 2


# Without the service.


async def test_nothing_is_done_while_the_session_is_suspended(group: GroupMember, setup: MemberSetup) -> None:
    """The owner is told once, also when it is over; all is kept, nobody is asked anything, and a commit waits."""
    before = len(setup.coordinator.calls)
    await setup.service.cut()
    await until(lambda: group.state == "suspended")
    assert setup.owner.notified[-1] == ("suspended", frozenset())
    await pause()
    assert len(setup.coordinator.calls) == before
    assert set(group.table.held) == PARTITIONS
    commit = asyncio.create_task(group.table.record({ONE: FIRST}))
    await setup.called("claim", setup.coordinator.calls.count("claim") + 3)
    await setup.service.heal()
    assert await commit == frozenset()
    assert setup.recorded(ONE) == FIRST
    await setup.rest(group)
    assert len(setup.owner.times("suspended")) == len(setup.owner.times("resumed")) == 1


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_lost_session_is_abandoned_and_followed_by_another(
    group: GroupMember,
    setup: MemberSetup,
    suspended: bool,  # noqa: FBT001
) -> None:
    """In that instant nothing is held any more; the owner is told once, and the id stays."""
    if suspended:
        await setup.service.cut()
        await until(lambda: group.state == "suspended")
    first = setup.coordinator.session
    first.link.end(SessionLost("enough"))
    assert group.state == "joining"
    assert group.table.held == {}
    with pytest.raises(SessionLost):
        await group.table.record({ONE: FIRST})
    await setup.service.heal()
    setup.service.tree.end(first.link.session)
    await setup.rest(group)
    assert setup.owner.times("lost") == [PARTITIONS]
    assert list(await setup.members()) == ["a"]
    assert len(setup.owner.times("suspended")) == len(setup.owner.times("resumed")) == int(suspended)


async def test_an_earlier_life_is_waited_for(setup: MemberSetup) -> None:
    """A member that exists at first is gone soon, at the start and when it joins again."""
    await setup.join(Member("a", WANTS))
    group = setup.make()
    starting = asyncio.create_task(group.start())
    await setup.called("join", 3)
    await setup.leave("a")
    await starting
    await setup.rest(group)
    setup.coordinator.held_up["join"] = asyncio.Event()
    await setup.expire()
    await setup.join(Member("a", WANTS))
    setup.coordinator.held_up.pop("join").set()
    await setup.called("join", setup.coordinator.calls.count("join") + 3)
    await setup.leave("a")
    await setup.rest(group)


async def test_a_static_member_puts_its_earlier_life_out_once(setup: MemberSetup) -> None:
    """At its start; when it lost its session because another has its name, that one is left alone."""
    await setup.join(Member("a", WANTS))
    group = setup.make(static=True)
    await group.start()
    assert setup.coordinator.calls.count("join") == 1
    await setup.rest(group)
    coordinator = setup.service.coordinator()
    await coordinator.open()
    other = await coordinator.join(Member("a", WANTS), lambda _: None, replace=True)
    await setup.called("join", 4)
    assert other.state == "connected"
    await other.leave()
    await setup.rest(group)
    await coordinator.close()


@pytest.mark.parametrize(("call", "error"), [("join", MemberExists), ("open", CoordinationLost)])
async def test_a_start_that_fails_is_an_error(setup: MemberSetup, call: str, error: type[Exception]) -> None:
    """A name that is taken for two session timeouts, or a service that is not reached."""
    setup.coordinator.session_timeout = 0.3
    if call == "open":
        setup.coordinator.faults[call] = "refused"
    else:
        await setup.join(Member("a", WANTS))
    group = setup.make(draw=lambda: 0.05)
    with pytest.raises(error):
        await group.start()
    assert group.state == "left"


async def test_everything_is_given_up_to_a_newer_program(setup: MemberSetup, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody here can read what it says; the member stays, and goes on when it can."""
    group = setup.make(recheck=0.01)
    await group.start()
    await setup.rest(group)
    setup.coordinator.faults["assignment"] = "incompatible"
    await until(lambda: len(setup.owner.times("revoke")) == 4)
    await setup.rest(group)
    assert setup.owner.times("lost") == []
    assert CoordinationIncompatible.__name__ in caplog.text


@pytest.mark.parametrize("call", ["assignment", "lead", "target", "members", "set_target", "claim", "release"])
async def test_what_is_not_allowed_is_told(setup: MemberSetup, call: str) -> None:
    """Whoever works on the partitions hears of it and may end; it is tried again all the same."""
    setup.coordinator.faults[call] = "forbidden"
    group = setup.make()
    await group.start()
    await setup.rest(group)
    await setup.join(OTHER)
    await setup.rest(group)
    assert len(setup.owner.refusals) == 1


# Leaving.


async def test_a_member_is_started_once_and_may_be_stopped_before(setup: MemberSetup) -> None:
    """A second start is a mistake, and so is one after the end."""
    group = setup.make()
    await group.start()
    with pytest.raises(RuntimeError, match="once"):
        await group.start()
    never = setup.make()
    await never.stop()
    assert never.state == "left"


@pytest.mark.parametrize(("call", "ends"), [("open", "stop"), ("join", "stop"), ("join", "cancel")])
async def test_stopping_during_the_start(setup: MemberSetup, call: str, ends: str) -> None:
    """The start fails, and a session that comes too late is ended."""
    setup.coordinator.held_up[call] = asyncio.Event()
    group = setup.make()
    starting = asyncio.create_task(group.start())
    await setup.called(call)
    stopping = asyncio.create_task(group.stop()) if ends == "stop" else None
    if stopping is None:
        starting.cancel()
    await asyncio.sleep(0)
    setup.coordinator.held_up.pop(call).set()
    with pytest.raises((SessionLost, asyncio.CancelledError)):
        await starting
    if stopping is not None:
        await stopping
    assert group.state == "left"
    assert await setup.members() == {}


async def test_stopping_while_partitions_are_taken(setup: MemberSetup) -> None:
    """What is taken meanwhile is given back like the rest."""
    setup.coordinator.held_up["claim"] = asyncio.Event()
    group = setup.make()
    await group.start()
    await setup.called("claim")
    stopping = asyncio.create_task(group.stop())
    await asyncio.sleep(0)
    setup.coordinator.held_up.pop("claim").set()
    await stopping
    assert setup.is_free(*PARTITIONS)
    assert (setup.owner.have, setup.owner.wrong) == (set(), [])


@pytest.mark.parametrize("joins", [False, True])
async def test_stopping_while_the_session_is_lost(
    group: GroupMember,
    setup: MemberSetup,
    joins: bool,  # noqa: FBT001
) -> None:
    """What could not be given back is lost, and nothing joins any more, or it leaves at once."""
    if joins:
        setup.coordinator.held_up["join"] = asyncio.Event()
        await setup.expire()
        await setup.called("join", 2)
    else:
        setup.owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    stopping = asyncio.create_task(group.stop())
    if joins:
        await asyncio.sleep(0)
        setup.coordinator.held_up.pop("join").set()
    else:
        await until(lambda: len(setup.owner.times("revoke")) == 4)
        await setup.expire()
    await stopping
    assert setup.owner.times("lost") == [PARTITIONS]
    assert setup.owner.have == set()
    assert await setup.members() == {}
    assert setup.coordinator.calls.count("join") == 1 + joins


async def test_stopping_takes_no_longer_than_allowed(setup: MemberSetup) -> None:
    """An owner that never gives up loses its partitions, and the member leaves."""
    group = setup.make(revoke_timeout=0.01, patience=0.01)
    await group.start()
    await setup.rest(group)
    setup.owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    setup.coordinator.held_up["release"] = asyncio.Event()
    await group.stop()
    assert group.state == "left"
    assert set().union(*setup.owner.times("lost")) == PARTITIONS
    assert await setup.members() == {}


async def test_a_cancelled_stop_goes_on(group: GroupMember, setup: MemberSetup) -> None:
    """Whoever waits for it again finds it done."""
    setup.owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    stopping = asyncio.create_task(group.stop())
    await until(lambda: len(setup.owner.times("revoke")) == 4)
    stopping.cancel()
    setup.owner.hurry()
    await group.stop()
    assert await setup.members() == {}
    assert setup.owner.times("lost") == []
