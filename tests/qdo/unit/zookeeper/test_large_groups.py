"""Sizes of stored data in large groups, and targets that a dying leader leaves unfinished."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping

import pytest

from qdo.coordination import Coordinator, Member, TargetAssignment
from qdo.coordination.session import Session
from qdo.coordination.tree import MAX_NODE_BYTES, Change, Outcome, Rejection, RejectionReason
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


def test_no_node_grows_with_the_group() -> None:
    """10,000 queues of four partitions that match a pattern fit into the nodes, for one member and for a thousand."""
    chance = random.Random(7)
    names = [f"crashes-{number}-{chance.randrange(2**32):x}" for number in range(10_000)]
    queues = [Queue("queuey.example.org:5000", "socorro", name) for name in names]
    partitions = [Partition(queue, number) for queue in queues for number in range(1, 5)]
    members = [f"worker-{number}.example.org-{chance.randrange(2**32):x}" for number in range(1000)]

    async def largest(count: int) -> int:
        service = SimulatedService()
        session = await (await open_new(service)).join(Member(members[0], WANTS), lambda _: None)
        target = None
        for number in (1, count):
            owners = {partition: members[at % number] for at, partition in enumerate(partitions)}
            target = TargetAssignment(owners, dict.fromkeys(members[:number], 1.7e9), frozenset(members[:number]))
            assert await session.set_target(target, (await session.target()).version)
        assert (await session.target()).target == target
        return service.tree.largest

    assert asyncio.run(largest(1000)) < MAX_NODE_BYTES


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


@pytest.mark.parametrize("transactions", range(3))
async def test_two_leaders_do_not_mix_what_they_set(transactions: int) -> None:
    """If two leaders set a target at the same time at most one succeeds, and nothing of the other counts."""
    coordinator = await open_new(SimulatedService())
    old = await coordinator.join(Member("old"), lambda _: None)
    new = await coordinator.join(Member("new"), lambda _: None)
    sessions = {f"m{n:03}": await coordinator.join(Member(f"m{n:03}"), lambda _: None) for n in range(150)}
    assert await old.set_target(dealt(0), -1)
    version = (await old.target()).version
    assert (await new.target()).version == version
    going_on = asyncio.create_task(old.set_target(dealt(1), version))
    for _ in range(transactions):
        await asyncio.sleep(0)
    set_by_new = await new.set_target(dealt(2), version)
    assert [set_by_new, await going_on].count(True) <= 1
    assert await new.set_target(dealt(3), (await new.target()).version)
    assert await assignments(sessions) == dealt(3)
