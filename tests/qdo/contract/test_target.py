"""The target: one value with a version, set by any member at the version it read."""

from __future__ import annotations

import asyncio

import pytest

from qdo.coordination import Session, Target
from qdo.errors import CoordinationIncompatible
from qdo.partitions import Queue
from tests.qdo.contract.backends import Service
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.samples import ONE, some


async def test_a_group_begins_without_a_target(join: Join, open_one: Open) -> None:
    """Nobody has set one: None at version -1, and looking at it sets none."""
    session, _ = await join("a")
    assert await session.target() == (None, -1)
    assert await (await open_one()).target() is None
    assert await (await open_one("unknown")).target() is None
    assert await session.target() == (None, -1)


async def test_a_target_is_set_at_the_version_that_was_read(join: Join, open_one: Open) -> None:
    """Only who has read the present one replaces it; a refusal changes nothing."""
    mine, _ = await join("a")
    other, _ = await join("b")
    first, second = Target({ONE: "a"}), Target({ONE: "b"}, {"c": 1.25}, frozenset({"c", "d"}))
    assert await mine.set_target(first, -1)
    assert not await other.set_target(second, -1)
    found, version = await other.target()
    assert found == first
    assert await other.set_target(second, version)
    assert not await mine.set_target(first, version)
    assert not await mine.set_target(first, version + 10)
    assert (await mine.target()).target == second
    assert (await mine.target()).version not in {-1, version}
    assert await (await open_one()).target() == second


async def test_an_empty_target_is_a_target(join: Join) -> None:
    """One that gives nobody anything is not the same as none."""
    session, _ = await join("a")
    assert await session.set_target(Target(), -1)
    found, version = await session.target()
    assert found == Target()
    assert version != -1


async def count(session: Session, times: int) -> None:
    """Adds one to a number in the target, so many times."""
    done = 0
    while done < times:
        target, version = await session.target()
        present = target.absent["n"] if target else 0.0
        done += await session.set_target(Target({}, {"n": present + 1}), version)


async def test_no_change_of_a_target_is_lost_under_contention(join: Join) -> None:
    """Of all that set it at one version exactly one does, so members that count together lose nothing."""
    sessions = [(await join(f"m{number}"))[0] for number in range(6)]
    async with asyncio.TaskGroup() as group:
        for session in sessions:
            group.create_task(count(session, 8))
    target, _ = await sessions[0].target()
    assert target is not None
    assert target.absent["n"] == 48


async def test_a_target_outlives_the_members(join: Join, open_one: Open) -> None:
    """It is still there when all have left: the next members begin with who owned what."""
    mine, _ = await join("a")
    await mine.set_target(Target({ONE: "a"}), -1)
    await mine.leave()
    assert await (await open_one()).target() == Target({ONE: "a"})
    later, _ = await join("b")
    assert (await later.target()).target == Target({ONE: "a"})


async def test_a_target_may_be_large(join: Join) -> None:
    """Ten thousand partitions of a hundred queues and a thousand members fit."""
    queues = [Queue("queuey.example.org:5000", "socorro", f"crashes-{number * 7919:x}") for number in range(100)]
    members = [f"worker-{number}.example.org-{number * 104_729:x}" for number in range(1000)]
    partitions = [partition for queue in queues for partition in some(100, queue)]
    target = Target({partition: members[place * 31 % 1000] for place, partition in enumerate(partitions)})
    session, _ = await join("a")
    assert await session.set_target(target, -1)
    assert (await session.target()).target == target


async def test_a_target_of_a_newer_program_is_not_guessed_at(join: Join, open_one: Open, service: Service) -> None:
    """What a newer program has written, or nobody, is refused rather than misread."""
    session, _ = await join("a")
    await session.set_target(Target(), -1)
    for data in (b"qdo2=later", b"", b"{}"):
        await service.write_target("group", data)
        with pytest.raises(CoordinationIncompatible):
            await session.target()
        with pytest.raises(CoordinationIncompatible):
            await (await open_one()).target()
