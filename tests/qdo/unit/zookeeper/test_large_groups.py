"""Sizes of stored data in large groups, and targets that a dying leader leaves unfinished."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from qdo.coordination import Coordinator, Member, TargetAssignment
from qdo.coordination.session import Session
from qdo.coordination.tree import Change, Outcome, Rejection, RejectionReason
from qdo.errors import CoordinationLost
from qdo.partitions import Partition, Queue, Subscription
from tests.qdo.contract.simulated import SimulatedService
from tests.sim.groups.tree import LoopClock, Tree

QUEUE = Queue("host", "app", "orders")
WANTS = Subscription(frozenset(), ("*",), "host", "app")
ALL = frozenset(Partition(QUEUE, number) for number in range(1, 401))


async def open_new(service: SimulatedService) -> Coordinator:
    coordinator = service.coordinator(session_timeout=600.0)
    await coordinator.open()
    return coordinator


def dealt(by: int) -> TargetAssignment:
    """Assigns the partitions to 150 members: more than one transaction takes."""
    return TargetAssignment({each: f"m{(each.number + by) % 150:03}" for each in ALL})


async def assignments(sessions: Mapping[str, Session]) -> TargetAssignment:
    return TargetAssignment({each: name for name, session in sessions.items() for each in await session.assignment()})


class FatalTree(Tree):
    """A tree on which a session dies after a number of transactions, in place of the next one.

    Attributes:
        victim: The session that dies.
        allowed: The number of transactions that it has left.
    """

    victim = allowed = 0

    def __init__(self) -> None:
        super().__init__(LoopClock(), tolerance=math.inf)

    def apply(self, session: int, change: Change) -> Outcome:
        if session and session == self.victim:
            if not self.allowed:
                self.end(session)
                return Rejection(RejectionReason.NO_NODE, 0)  # nobody receives it
            self.allowed -= 1
        return super().apply(session, change)


@pytest.mark.parametrize("transactions", range(5))
async def test_a_leader_that_dies_leaves_nothing_half_done(transactions: int) -> None:
    """If a leader dies after any transaction, members have the old target or all of the new; the next one goes on."""
    service = SimulatedService()
    tree = service.tree = FatalTree()
    coordinator = await open_new(service)
    leader = await coordinator.join(Member("leader"), lambda _: None)
    sessions = {f"m{n:03}": await coordinator.join(Member(f"m{n:03}"), lambda _: None) for n in range(150)}
    assert await leader.set_target(dealt(0), -1)
    assert await assignments(sessions) == dealt(0)
    tree.victim, tree.allowed = leader.link.session, transactions
    died = False
    try:
        assert await leader.set_target(dealt(1), (await leader.target()).version)
    except CoordinationLost:
        died = True
    assert died == (transactions < 2)
    assert await assignments(sessions) == dealt(0 if died else 1)
    following = sessions["m007"]
    assert (await following.target()).target == dealt(0 if died else 1)
    assert await following.set_target(dealt(2), (await following.target()).version)
    assert await assignments(sessions) == dealt(2)
    assert (await following.target()).target == dealt(2)
