"""Fixtures of the tests of groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.consumer.rebalance.partition_table import SessionOptions
from tests.qdo.unit.group.group_samples import PARTITIONS, SEEN, WANTS, Make
from tests.qdo.unit.group.scripted import Catalogue, Diary, Scripted, until


@pytest.fixture
def service() -> Scripted:
    """A service without members, with a queue."""
    made = Scripted()
    made.queues = dict(SEEN)
    return made


@pytest.fixture
def catalogue(service: Scripted) -> Catalogue:
    """What looks queues up."""
    return Catalogue(service, WANTS)


@pytest.fixture
def owner() -> Diary:
    """Who is told."""
    return Diary()


@pytest.fixture
async def make(service: Scripted, owner: Diary, catalogue: Catalogue) -> AsyncIterator[Make]:
    """Makes groups that lose no time, and stops them."""
    made = []

    def make(*, static: bool = False, **changes: Any) -> GroupMember:  # noqa: ANN401 - any of its terms
        options = SessionOptions(settle=0.0, revoke_timeout=20.0, patience=20.0, draw=lambda: 0.0)._replace(**changes)
        group = GroupMember(service, "a", owner, queues=catalogue, static=static, options=options)
        made.append(group)
        return group

    yield make
    owner.hurry()
    for group in made:
        await group.stop()


@pytest.fixture
async def group(make: Make, service: Scripted, owner: Diary) -> GroupMember:
    """A group whose only member has all four partitions."""
    group = make()
    await group.start()
    await until(lambda: owner.have == PARTITIONS and service.right())
    return group
