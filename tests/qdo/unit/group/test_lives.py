"""The whole life of a member, with a fault at every call."""

from __future__ import annotations

from typing import get_args

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.errors import CoordinationRefused, SessionLost
from tests.qdo.unit.group.conftest import FIRST, LATER, OTHER_MEMBER, MemberSetup
from tests.qdo.unit.group.faulty import Fault


async def live(group: GroupMember, setup: MemberSetup) -> None:
    await group.start()
    await commit(group, setup, FIRST)
    await setup.join(OTHER_MEMBER)
    await setup.wait_until_at_rest(group)
    setup.see(group, 6)
    await commit(group, setup, LATER)
    await setup.leave("b")
    await setup.wait_until_at_rest(group)
    setup.owner.on_revoke = lambda partitions: group.table.record(dict.fromkeys(partitions, LATER))
    await group.stop()


async def commit(group: GroupMember, setup: MemberSetup, identifier: str) -> None:
    """Commits everything held until it is recorded, as a worker does that is lost and comes back."""
    while True:
        await setup.wait_until_at_rest(group)
        held = set(group.table.held)
        try:
            if not await group.table.record(dict.fromkeys(held, identifier)):
                break
        except (SessionLost, RuntimeError, CoordinationRefused):
            continue
    assert all(setup.read_recorded(partition) == identifier for partition in held)


async def run_life(fault: Fault | None = None, place: int = 0) -> MemberSetup:
    """Runs a member from start to stop with a fault at the call of this number; it must leave nothing behind."""
    setup = MemberSetup()
    group = setup.make(recheck=0.01 if fault in {"incompatible", "forbidden", "broken"} else 60.0)
    if fault is not None:
        setup.coordinator.faults[place] = fault
    await live(group, setup)
    assert group.state == "left"
    assert setup.owner.wrong == [], f"at {place}, {setup.coordinator.calls}"
    assert setup.owner.have == set()
    assert await setup.members() == {}
    assert not [path for path, node in setup.service.tree.nodes.items() if node.session]
    return setup


@pytest.mark.needs_histories
@pytest.mark.parametrize("fault", get_args(Fault))
async def test_a_fault_at_any_call_is_lived_through(fault: Fault) -> None:
    """After a fault at any call the group becomes stable, the owner is called in order, and nothing is left.

    Each fault comes at every other call, so that each call has some of the faults.
    """
    calls = len((await run_life()).coordinator.calls)
    lives = [await run_life(fault, place) for place in range(1 + get_args(Fault).index(fault) % 2, calls, 2)]
    assert sum(not setup.coordinator.faults for setup in lives) > len(lives) / 2
