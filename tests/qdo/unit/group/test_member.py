"""A group member at work, without its service, and when it leaves."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member, TargetAssignment
from qdo.errors import CoordinationIncompatible, CoordinationLost, MemberExists, SessionLost
from tests.qdo.unit.group.conftest import ONE, OTHER_MEMBER, PARTITIONS, TWO, WANTS, MemberSetup
from tests.qdo.unit.group.owners import until


async def pause() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_nothing_is_shared_out_before_it_is_known_which_queues_there_are(setup: MemberSetup) -> None:
    """A leader that cannot ask the service takes nothing away, and works on what it had before."""
    setup.catalogue.away = True
    other = await setup.join(OTHER_MEMBER)
    assert await other.set_target(TargetAssignment({ONE: "a", TWO: "b"}), -1)
    group = setup.make()
    await group.start()
    await until(lambda: setup.owner.have == {ONE} and setup.catalogue.wanted == {WANTS})
    assert "set_target" not in setup.coordinator.calls
    setup.catalogue.away = False
    group.recheck()
    await setup.wait_until_at_rest(group)
    assert len(setup.owner.have) == 2


# Without the service.


async def test_an_earlier_life_is_waited_for(setup: MemberSetup) -> None:
    """A member waits for its earlier session to end, at the start and when it joins again."""
    await setup.join(Member("a", WANTS))
    group = setup.make()
    starting = asyncio.create_task(group.start())
    await setup.wait_for_calls("join", 3)
    await setup.leave("a")
    await starting
    await setup.wait_until_at_rest(group)
    setup.coordinator.held_up["join"] = asyncio.Event()
    await setup.expire()
    await setup.join(Member("a", WANTS))
    setup.coordinator.held_up.pop("join").set()
    await setup.wait_for_calls("join", setup.coordinator.calls.count("join") + 3)
    await setup.leave("a")
    await setup.wait_until_at_rest(group)


async def test_a_static_member_puts_its_earlier_life_out_once(setup: MemberSetup) -> None:
    """A static member ends its earlier session once, at its start; it never ends the one that replaced it."""
    await setup.join(Member("a", WANTS))
    group = setup.make(static=True)
    await group.start()
    assert setup.coordinator.calls.count("join") == 1
    await setup.wait_until_at_rest(group)
    coordinator = setup.service.coordinator()
    await coordinator.open()
    other = await coordinator.join(Member("a", WANTS), lambda _: None, replace=True)
    await setup.wait_for_calls("join", 4)
    assert other.state == "connected"
    await other.leave()
    await setup.wait_until_at_rest(group)
    await coordinator.close()


@pytest.mark.parametrize(("call", "error"), [("join", MemberExists), ("open", CoordinationLost)])
async def test_a_start_that_fails_is_an_error(setup: MemberSetup, call: str, error: type[Exception]) -> None:
    """A start fails if its name is taken for two session timeouts, or if the service cannot be reached."""
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
    """A member that cannot read a newer program's data stays, and goes on when it can."""
    group = setup.make(recheck=0.01)
    await group.start()
    await setup.wait_until_at_rest(group)
    setup.coordinator.faults["assignment"] = "incompatible"
    await until(lambda: len(setup.owner.times("revoke")) == 4)
    await setup.wait_until_at_rest(group)
    assert setup.owner.times("lost") == []
    assert CoordinationIncompatible.__name__ in caplog.text


@pytest.mark.parametrize("call", ["assignment", "lead", "target", "members", "set_target", "claim", "release"])
async def test_what_is_not_allowed_is_told(setup: MemberSetup, call: str) -> None:
    """A refusal is reported to the owner, who may end; the member tries again all the same."""
    setup.coordinator.faults[call] = "forbidden"
    group = setup.make()
    await group.start()
    await setup.wait_until_at_rest(group)
    await setup.join(OTHER_MEMBER)
    await setup.wait_until_at_rest(group)
    assert len(setup.owner.refusals) == 1


# Leaving.


@pytest.mark.parametrize(("call", "ends"), [("open", "stop"), ("join", "stop"), ("join", "cancel")])
async def test_stopping_during_the_start(setup: MemberSetup, call: str, ends: str) -> None:
    """A stop during the start fails the start; a session that comes too late is ended."""
    setup.coordinator.held_up[call] = asyncio.Event()
    group = setup.make()
    starting = asyncio.create_task(group.start())
    await setup.wait_for_calls(call)
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


async def test_stopping_takes_no_longer_than_allowed(setup: MemberSetup) -> None:
    """An owner that never gives up loses its partitions, and the member leaves in time."""
    group = setup.make(revoke_timeout=0.01, patience=0.01)
    await group.start()
    await setup.wait_until_at_rest(group)
    setup.owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    setup.coordinator.held_up["release"] = asyncio.Event()
    await group.stop()
    assert group.state == "left"
    assert set().union(*setup.owner.times("lost")) == PARTITIONS
    assert await setup.members() == {}


async def test_a_cancelled_stop_goes_on(group: GroupMember, setup: MemberSetup) -> None:
    """A stop that was cancelled goes on; a second one waits for its end."""
    setup.owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    stopping = asyncio.create_task(group.stop())
    await until(lambda: len(setup.owner.times("revoke")) == 4)
    stopping.cancel()
    setup.owner.hurry()
    await group.stop()
    assert await setup.members() == {}
    assert setup.owner.times("lost") == []
