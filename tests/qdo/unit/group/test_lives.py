"""Whole lives of a member, with a fault at every call, and with everything at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, get_args

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.consumer.rebalance.partition_table import SessionOptions
from qdo.errors import CoordinationRefused, SessionLost
from qdo.partitions import Partition
from tests.qdo.unit.group.group_samples import (
    FIRST,
    LATER,
    OTHER,
    PARTITIONS,
    SEEN,
    WANTS,
    at_rest,
    rest,
    see,
    share,
)
from tests.qdo.unit.group.scripted import Catalogue, Diary, Fault, Scripted, until


def group_of(service: Scripted, owner: Diary, **options: Any) -> GroupMember:  # noqa: ANN401 - any of its terms
    """Makes a group that loses no time."""
    return GroupMember(
        service, "a", owner, queues=Catalogue(service, WANTS), options=SessionOptions(settle=0.0, **options)
    )


async def live(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """Lives through everything that usually happens, waiting each time until it has come to rest."""
    await group.start()
    await rest(group, service, owner)
    await commit(group, service, owner, FIRST)
    service.say(OTHER)
    await rest(group, service, owner)
    see(group, service, 6)
    await until(lambda: len(share(service)) == 3 and at_rest(group, service, owner))
    await commit(group, service, owner, LATER)
    service.say()
    await rest(group, service, owner)
    owner.on_revoke = lambda partitions: group.table.record(dict.fromkeys(partitions, LATER))
    await group.stop()


async def commit(group: GroupMember, service: Scripted, owner: Diary, identifier: str) -> None:
    """Commits all that is held until it is recorded, as a worker would do that is lost and comes back."""
    while True:
        await rest(group, service, owner)
        held = set(group.table.held)
        try:
            if not await group.table.record(dict.fromkeys(held, identifier)):
                break
        except (SessionLost, RuntimeError, CoordinationRefused):
            continue
    assert all(service.recorded[partition][0] == identifier for partition in held)


CALLS = 55
"""So many calls a life has at most; the last places find none to spoil."""


def member(service: Scripted, owner: Diary, **options: Any) -> GroupMember:  # noqa: ANN401 - any of its terms
    """A member that sees everything at once, without pauses."""
    service.queues = dict(SEEN)
    return group_of(service, owner, draw=lambda: 0.0, **options)


@pytest.mark.parametrize("fault", get_args(Fault))
async def test_a_fault_at_any_call_is_lived_through(fault: Fault) -> None:
    """Wherever it strikes: everything comes to rest, the owner is told in order, and in the end nothing is left."""
    struck = 0
    for place in range(1, CALLS):
        service, owner = Scripted(), Diary()
        group = member(service, owner, recheck=0.01 if "in" in fault else 60.0)
        service.faults[place] = fault
        await live(group, service, owner)
        struck += not service.faults
        assert group.state == "left"
        assert owner.wrong == [], f"at {place}, {service.calls}"
        assert owner.have == set()
        assert service.owned == {}
        assert service.there == {}
    assert 15 < struck < CALLS - 1


async def storm(chance: random.Random, group: GroupMember, service: Scripted, owner: Diary) -> None:
    """Does everything at once to a member: faults, others that come and go, lost sessions, slow owners, commits."""
    commits: list[asyncio.Task[frozenset[Partition]]] = []
    events: list[Callable[[], object]] = [
        lambda: service.say(OTHER),
        service.say,
        lambda: see(group, service, chance.randrange(1, 9)),
        lambda: service.expire(service.session, tell=chance.random() < 0.5),
        service.suspend,
        lambda: service.suspend(suspended=False),
        lambda: owner.slow.update({partition: asyncio.Event() for partition in PARTITIONS}),
        owner.hurry,
        lambda: commits.append(asyncio.create_task(group.table.record(dict.fromkeys(group.table.held, FIRST)))),
        lambda: commits and chance.choice(commits).cancel(),
    ]
    kinds: tuple[Fault, ...] = ("refused", "in doubt", "expired", "silently expired", "stuck", "broken")
    for _ in range(60):
        if chance.random() < 0.2:
            service.faults[len(service.calls) + chance.randrange(3)] = chance.choice(kinds)
        chance.choice(events)()
        for _ in range(chance.randrange(12)):
            await asyncio.sleep(0)
    service.faults.clear()
    service.suspend(suspended=False)
    service.tell("changed")
    for session in service.untold:
        session.listen("lost")
    owner.hurry()
    await asyncio.gather(*commits, return_exceptions=True)


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_comes_together_it_ends_well(seed: int) -> None:
    """When it is over all is as it should be, and the owner was told everything in order."""
    chance = random.Random(seed)
    service, owner = Scripted(), Diary()
    group = member(service, owner, revoke_timeout=chance.choice([0.0, 5.0]))
    await group.start()
    await storm(chance, group, service, owner)
    if chance.random() < 0.5:
        await rest(group, service, owner)
        assert set(group.table.held) == share(service)
    await group.stop()
    for ghost in service.ghosts:
        service.expire(ghost)
    assert owner.wrong == []
    assert owner.have == set()
    assert service.owned == {}
    assert service.there.keys() <= {"b"}
