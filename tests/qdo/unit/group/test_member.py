"""A group member at work, without its service, and when it leaves."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.coordination import Member
from qdo.errors import CoordinationLost, MemberExists, SessionLost
from tests.qdo.unit.group.conftest import OTHER_MEMBER, PARTITIONS, WANTS, MemberSetup
from tests.qdo.unit.group.owners import until

# Without the service.


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
