"""The target: set atomically at the version that was read; each member learns its own part."""

from __future__ import annotations

import asyncio

import pytest

from qdo.errors import CoordinationIncompatible
from qdo.group.records import TargetAssignment
from qdo.partitions import Queue
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, Service, once
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.events import eventually
from tests.qdo.contract.samples import OTHER_QUEUE, PARTITION, first_partitions


@once
async def test_a_target_is_set_at_the_version_that_was_read(join: Join, open_one: Open) -> None:
    """Only a caller that has read the current target replaces it; a refusal changes nothing."""
    mine, _ = await join("a")
    other, _ = await join("b")
    first, second = (
        TargetAssignment({PARTITION: "a"}),
        TargetAssignment({PARTITION: "b"}, {"c": 1.25}, frozenset({"c", "d"})),
    )
    assert await mine.set_target(TargetAssignment(), -1)
    target, version = await mine.target()
    assert (target, version == -1) == (TargetAssignment(), False), "it assigns nothing, and is there"
    assert await mine.set_target(first, version)
    assert not await other.set_target(second, -1)
    target, version = await other.target()
    assert target == first
    assert await other.set_target(second, version)
    assert not await mine.set_target(first, version)
    assert not await mine.set_target(first, version + 10)
    assert (await mine.target()).target == second
    assert (await mine.target()).version not in {-1, version}
    assert await (await open_one()).target() == second


@once
async def test_a_target_outlives_the_members(join: Join, open_one: Open) -> None:
    """The target is kept when all members have left, so that the next ones begin with the former owners."""
    mine, _ = await join("a")
    await mine.set_target(TargetAssignment({PARTITION: "a"}), -1)
    await mine.leave()
    assert await (await open_one()).target() == TargetAssignment({PARTITION: "a"})
    later, _ = await join("b")
    assert (await later.target()).target == TargetAssignment({PARTITION: "a"})


async def test_a_target_may_be_large(join: Join) -> None:
    """Ten thousand partitions of a hundred queues and a thousand members fit."""
    queues = [Queue("queuey.example.org:5000", "socorro", f"crashes-{number * 7919:x}") for number in range(100)]
    members = [f"worker-{number}.example.org-{number * 104_729:x}" for number in range(1000)]
    partitions = [partition for queue in queues for partition in first_partitions(100, queue)]
    target = TargetAssignment({partition: members[place * 31 % 1000] for place, partition in enumerate(partitions)})
    session, _ = await join("a")
    assert await session.set_target(target, -1)
    assert (await session.target()).target == target


@once
async def test_a_target_of_a_newer_program_is_not_guessed_at(join: Join, open_one: Open, service: Service) -> None:
    """A target of a newer program, or an invalid one, is refused rather than misread."""
    session, _ = await join("a")
    await session.set_target(TargetAssignment({PARTITION: "a"}), -1)
    for data in (b"qdo9=later", b"", b"{}"):
        await service.write_target("group", data)
        with pytest.raises(CoordinationIncompatible):
            await session.target()
        with pytest.raises(CoordinationIncompatible):
            await (await open_one()).target()


@once
async def test_a_member_is_told_what_it_is_to_own(join: Join) -> None:
    """A member is notified of its own part of the target, as soon as the target is set."""
    mine, _ = await join("a")
    other, heard = await join("b")
    assert await mine.assignment() == await other.assignment() == frozenset()
    assert await mine.set_target(
        TargetAssignment({PARTITION: "a", **dict.fromkeys(first_partitions(3, OTHER_QUEUE), "b")}), -1
    )
    assert await mine.assignment() == {PARTITION}
    assert await eventually(heard, other.assignment, bool) == set(first_partitions(3, OTHER_QUEUE))
    version = (await mine.target()).version
    assert await mine.set_target(
        TargetAssignment({PARTITION: "b", **dict.fromkeys(first_partitions(2, OTHER_QUEUE), "b")}), version
    )
    assert await mine.assignment() == frozenset()
    expected = {PARTITION, *first_partitions(2, OTHER_QUEUE)}
    await eventually(heard, other.assignment, lambda given: given == expected)
    later, _ = await join("c")
    assert await later.assignment() == frozenset()


async def test_no_change_of_an_assignment_is_missed(join: Join) -> None:
    """A member that reads again after each event ends up with its part of the last target."""
    writer, _ = await join("writer")
    watchers = {name: await join(name) for name in "abc"}
    last = {each: "abc"[(each.number + 19) % 3] for each in first_partitions(6)}

    async def write() -> None:
        for number in range(20):
            _, version = await writer.target()
            assert await writer.set_target(
                TargetAssignment({each: "abc"[(each.number + number) % 3] for each in first_partitions(6)}), version
            )

    async with asyncio.TaskGroup() as group:
        for name, (session, heard) in watchers.items():
            wanted = {each for each, owner in last.items() if owner == name}
            group.create_task(eventually(heard, session.assignment, lambda given, wanted=wanted: given == wanted))  # type: ignore[misc] # one for each member
        group.create_task(write())


async def test_one_leads_until_it_is_gone(join: Join, service: Service) -> None:
    """At most one member leads; the next one is notified, also when a session ends without leaving."""
    members = {name: await join(name, session_timeout=RESPONSIVE_SESSION_SECONDS) for name in "bca"}

    async def leading() -> list[str]:
        return [name for name, (session, _) in members.items() if await session.lead()]

    for how in ("leave", "expire"):
        (name,) = await leading()
        assert await leading() == [name]
        session, _ = members.pop(name)
        for _, heard in members.values():
            heard.forget()
        await (session.leave() if how == "leave" else service.expire(session))
        await eventually(next(iter(members.values()))[1], leading, bool)
    assert len(await leading()) == len(members) == 1


@once
async def test_a_member_that_retires_leads_no_more_and_keeps_what_it_has(join: Join) -> None:
    """The others see that a member retires, another one leads, and the retired member can still commit and release."""
    members = {name: await join(name) for name in "ab"}
    (name,) = [name for name, (session, _) in members.items() if await session.lead()]
    retiring, _ = members.pop(name)
    ((other, heard),) = members.values()
    held = await retiring.claim([PARTITION])
    assert not await other.lead()
    await other.members()
    await retiring.retire()
    await eventually(heard, other.lead, bool)
    assert not await retiring.lead()
    await eventually(heard, other.members, lambda found: [each.id for each in found.values() if each.leaving] == [name])
    assert (await retiring.commit([(held[PARTITION], "1")]))[PARTITION]
    assert await other.claim([PARTITION]) == {}
    await retiring.release([PARTITION])
    await eventually(heard, lambda: other.claim([PARTITION]), bool)
