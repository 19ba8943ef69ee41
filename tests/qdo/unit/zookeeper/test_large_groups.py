"""What large groups cost, and what a leader leaves behind that dies: on servers in memory, which count."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.consumer.rebalance.partition_table import SessionOptions
from qdo.coordination import Coordinator, Member, TargetAssignment
from qdo.coordination.session import Session
from qdo.coordination.tree import NODE_LIMIT
from qdo.errors import CoordinationLost
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription
from tests.qdo.unit.group.scripted import Catalogue, Diary
from tests.qdo.unit.zookeeper.simulated import Servers, SimulatedLink, opened

QUEUE = Queue("host", "app", "orders")
WANTS = Subscription(frozenset(), ("*",), "host", "app")
ALL = frozenset(Partition(QUEUE, number) for number in range(1, 401))
PATIENCE = 120.0
"""Seconds after which a test gives up."""


class JoinedMember:
    """A member of a group that finds one queue, and does nothing with its partitions."""

    def __init__(self, coordinator: Coordinator, name: str, partitions: int = len(ALL)) -> None:
        self.coordinator = coordinator
        queues: Any = SimpleNamespace(queues={QUEUE: partitions})
        lookup = Catalogue(queues, WANTS)
        self.group = GroupMember(coordinator, name, Diary(), queues=lookup, options=SessionOptions(settle=0.0))


async def joining(count: int, names: list[str]) -> Servers:
    """Has members join one after another, each when the others have come to rest; returns what it cost."""
    servers = Servers()
    members = [JoinedMember(await opened(servers), name) for name in names[:count]]
    async with asyncio.timeout(PATIENCE):
        for number, member in enumerate(members, 1):
            await member.group.start()
            while not shared(members[:number]):  # noqa: ASYNC110 - there is no event for all of it
                await asyncio.sleep(0)
    reads = servers.asked.copy()
    await asyncio.gather(*(member.group.stop() for member in members))
    servers.asked = reads
    return servers


def shared(members: list[JoinedMember], partitions: int = len(ALL)) -> bool:
    """Tells whether everything is owned, and evenly."""
    sizes = [len(member.group.table.held) for member in members]
    return sum(sizes) == partitions and max(sizes) - min(sizes) <= 1


async def test_members_that_join_cost_reads_by_their_number_and_not_by_its_square() -> None:
    """Three times as many members that join one by one read less than four times as much, in whatever order they come.

    The partitions that change hands are the same in number, but for the logarithm of the members, so they are counted
    by themselves: taking one reads its offset.
    """
    for order in (1, -1):
        names = [f"m{number:03}" for number in range(100)][::order]
        cost = {}
        for count in (33, 100):
            asked = (await joining(count, names)).asked
            moved = len(ALL) * sum(1 / number for number in range(1, count + 1))
            cost[count] = asked["read"] + asked["look"] + asked["children"] - 2 * moved
        assert cost[100] < 4 * cost[33], cost


def test_no_node_grows_with_the_group() -> None:
    """10,000 queues that a pattern finds, of four partitions each: neither one member nor a thousand fill a node."""
    chance = random.Random(7)
    names = [f"crashes-{number}-{chance.randrange(2**32):x}" for number in range(10_000)]
    queues = [Queue("queuey.example.org:5000", "socorro", name) for name in names]
    partitions = [Partition(queue, number) for queue in queues for number in range(1, 5)]
    members = [f"worker-{number}.example.org-{chance.randrange(2**32):x}" for number in range(1000)]

    async def largest(count: int) -> int:
        servers = Servers()
        session = await (await opened(servers)).join(Member(members[0], WANTS), lambda _: None)
        target = None
        for number in (1, count):
            owners = {partition: members[at % number] for at, partition in enumerate(partitions)}
            target = TargetAssignment(owners, dict.fromkeys(members[:number], 1.7e9), frozenset(members[:number]))
            assert await session.set_target(target, (await session.target()).version)
        assert (await session.target()).target == target
        return servers.largest

    assert asyncio.run(largest(1000)) < NODE_LIMIT


def dealt(by: int) -> TargetAssignment:
    """Deals the partitions out to 150 members: more than one transaction takes."""
    return TargetAssignment({each: f"m{(each.number + by) % 150:03}" for each in ALL})


async def assignments(sessions: Mapping[str, Session]) -> TargetAssignment:
    """Puts together what members are told to own."""
    return TargetAssignment({each: name for name, session in sessions.items() for each in await session.assignment()})


@pytest.mark.parametrize("transactions", range(5))
async def test_a_leader_that_dies_leaves_nothing_half_done(transactions: int) -> None:
    """After however many transactions: the members have what they had, or all that is new; the next leader goes on."""
    servers = Servers()
    coordinator = await opened(servers)
    leader = await coordinator.join(Member("leader"), lambda _: None)
    sessions = {f"m{n:03}": await coordinator.join(Member(f"m{n:03}"), lambda _: None) for n in range(150)}
    assert await leader.set_target(dealt(0), -1)
    assert await assignments(sessions) == dealt(0)
    assert isinstance(leader.link, SimulatedLink)
    leader.link.allowed = transactions
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
    """One goes on in the middle of what it sets when another has set the target: what it wrote never counts."""
    servers = Servers()
    coordinator = await opened(servers)
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
