"""Fixtures of the tests of groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.consumer.rebalance.session_events import SessionOptions
from qdo.coordination import Member
from qdo.partitions import Partition, Queue, Subscription
from tests.qdo.unit.group.faulty import SimulatedGroup
from tests.qdo.unit.group.owners import PATIENCE, Catalogue, RecordingListener, until

QUEUE = Queue("host", "app", "orders")
PARTITIONS = frozenset(Partition(QUEUE, number) for number in range(1, 5))
WANTS = Subscription(frozenset({"orders"}), (), "host", "app")
OTHER_MEMBER = Member("b", WANTS)
FIRST, LATER = "1" * 32, "2" * 32


class MemberSetup(SimulatedGroup):
    """A group with a member under test, without delays.

    Attributes:
        owner: The listener of its partitions.
        catalogue: The catalogue in which it looks queues up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.owner = RecordingListener()
        self.catalogue = Catalogue(WANTS, {QUEUE: 4})
        self.made: list[GroupMember] = []

    def make(self, **changes: Any) -> GroupMember:  # noqa: ANN401 - any of its settings
        options = SessionOptions(settle=0.0, revoke_timeout=20.0, patience=20.0, draw=lambda: 0.0)._replace(**changes)
        member = GroupMember(self.coordinator, "a", self.owner, queues=self.catalogue, options=options)
        self.made.append(member)
        return member

    def see(self, member: GroupMember, count: int) -> None:
        self.catalogue.queues = {QUEUE: count}
        member.recheck()

    async def wait_until_at_rest(self, member: GroupMember) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self._is_at_rest(member):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)

    async def _is_at_rest(self, member: GroupMember) -> bool:
        """Returns whether the member is active, and its share, the tree, its table and its listener agree."""
        (count,) = self.catalogue.queues.values()
        session = self.coordinator.session.link.session
        owned = {each for number in range(1, count + 1) if self.owner_of(each := Partition(QUEUE, number)) == session}
        target = await self.target()
        share = {each for each, name in target.owners.items() if name == "a"} if target is not None else set()
        agreed = share == owned == set(member.table.held) == self.owner.have
        return member.state == "active" and agreed and await self.is_right(dict(self.catalogue.queues))


@pytest.fixture
async def setup() -> AsyncIterator[MemberSetup]:
    """A group without members, with a queue; its members are stopped at the end."""
    setup = MemberSetup()
    yield setup
    setup.owner.hurry()
    for member in setup.made:
        await member.stop()


@pytest.fixture
async def group(setup: MemberSetup) -> GroupMember:
    """A member that has all four partitions."""
    group = setup.make()
    await group.start()
    await until(lambda: setup.owner.have == PARTITIONS)
    await setup.wait_until_at_rest(group)
    return group
