"""Leaving a group, at any moment."""

from __future__ import annotations

import asyncio

import pytest

from qdo.consumer.rebalance.group_member import GroupMember
from qdo.errors import SessionLost
from tests.qdo.unit.group.group_samples import (
    PARTITIONS,
    Make,
    rest,
)
from tests.qdo.unit.group.scripted import Diary, Scripted, until


async def test_stopping_before_the_start(make: Make) -> None:
    """There is nothing to do."""
    group = make()
    await group.stop()
    assert group.state == "left"


@pytest.mark.parametrize("call", ["open", "join"])
async def test_stopping_during_the_start(make: Make, service: Scripted, call: str) -> None:
    """The start fails, and a session that comes too late is ended."""
    service.held_up[call] = asyncio.Event()
    group = make()
    starting = asyncio.create_task(group.start())
    await until(lambda: call in service.calls)
    stopping = asyncio.create_task(group.stop())
    await asyncio.sleep(0)
    service.held_up.pop(call).set()
    with pytest.raises(SessionLost):
        await starting
    await stopping
    assert group.state == "left"
    assert service.there == {}


async def test_a_cancelled_start_leaves_the_group(make: Make, service: Scripted) -> None:
    """Nobody would stop it."""
    service.held_up["join"] = asyncio.Event()
    group = make()
    starting = asyncio.create_task(group.start())
    await until(lambda: "join" in service.calls)
    starting.cancel()
    service.held_up.pop("join").set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert group.state == "left"
    assert service.there == {}


async def test_stopping_while_partitions_are_taken(make: Make, service: Scripted, owner: Diary) -> None:
    """What is taken meanwhile is given back like the rest."""
    service.held_up["take"] = asyncio.Event()
    group = make()
    await group.start()
    await until(lambda: "take" in service.calls)
    stopping = asyncio.create_task(group.stop())
    await asyncio.sleep(0)
    service.held_up.pop("take").set()
    await stopping
    assert service.owned == {}
    assert owner.have == set()
    assert owner.wrong == []


async def test_stopping_while_the_session_is_lost(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """What could not be given back is lost, and nothing joins any more."""
    owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    stopping = asyncio.create_task(group.stop())
    await until(lambda: len(owner.times("revoke")) == 4)
    service.expire(service.session)
    await stopping
    assert owner.times("lost") == [PARTITIONS]
    assert service.there == {}
    assert service.calls.count("join") == 1


async def test_stopping_while_joining_again(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """It joins no more, or leaves at once."""
    service.held_up["join"] = asyncio.Event()
    service.expire(service.session)
    await until(lambda: service.calls.count("join") == 2)
    stopping = asyncio.create_task(group.stop())
    await asyncio.sleep(0)
    service.held_up.pop("join").set()
    await stopping
    assert service.there == {}
    assert owner.times("lost") == [PARTITIONS]
    assert owner.have == set()


async def test_stopping_takes_no_longer_than_allowed(make: Make, service: Scripted, owner: Diary) -> None:
    """An owner that never gives up loses its partitions, and the member leaves."""
    group = make(revoke_timeout=0.01, patience=0.01)
    await group.start()
    await rest(group, service, owner)
    owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    service.held_up["release"] = asyncio.Event()
    await group.stop()
    assert group.state == "left"
    assert set().union(*owner.times("lost")) == PARTITIONS
    assert service.there == {}


async def test_a_cancelled_stop_goes_on(group: GroupMember, service: Scripted, owner: Diary) -> None:
    """Whoever waits for it again finds it done."""
    owner.slow = {partition: asyncio.Event() for partition in PARTITIONS}
    stopping = asyncio.create_task(group.stop())
    await until(lambda: len(owner.times("revoke")) == 4)
    stopping.cancel()
    owner.hurry()
    await group.stop()
    assert service.there == {}
    assert owner.times("lost") == []
