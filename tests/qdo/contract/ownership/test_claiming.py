"""Claiming and releasing partitions: one owner at a time."""

from __future__ import annotations

import asyncio
import signal

import pytest

from qdo.coordination import CommittedOffset, Coordinator, Member, OwnedOffset, Session
from qdo.coordination.session import Standing
from qdo.partitions import Partition
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, Service, from_outside
from tests.qdo.contract.conftest import Join, Open, Start
from tests.qdo.contract.events import RecordedEvents, eventually
from tests.qdo.contract.samples import PARTITION, first_partitions
from tests.replacing import replace

FOUR = first_partitions(4)


async def test_a_free_partition_is_taken(join: Join, open_one: Open) -> None:
    """A free partition is claimed at its recorded offset, at first none."""
    session, _ = await join("a")
    held = await session.claim([PARTITION])
    assert held[PARTITION].partition == PARTITION
    assert held[PARTITION].offset == CommittedOffset()
    assert await (await open_one()).owners() == {PARTITION: "a"}


async def test_each_partition_is_taken_for_itself(join: Join, open_one: Open) -> None:
    """Partitions of other members are left out of a claim; the others are claimed."""
    mine, _ = await join("a")
    other, _ = await join("b")
    await mine.claim(FOUR[1:3])
    assert set(await other.claim(FOUR)) == {FOUR[0], FOUR[3]}
    assert await (await open_one()).owners() == dict(zip(FOUR, "baab", strict=True))
    assert await other.claim(FOUR[1:3]) == {}
    assert await other.claim([]) == {}


async def test_taking_again_gives_a_new_version(join: Join) -> None:
    """A repeated claim answers with the owned partitions, at a new version."""
    session, _ = await join("a")
    versions = [(await session.claim([PARTITION]))[PARTITION].version for _ in range(5)]
    assert len(set(versions)) == 5


async def test_what_is_released_is_free(join: Join, open_one: Open) -> None:
    """Only released partitions change hands."""
    mine, _ = await join("a")
    other, _ = await join("b")
    await mine.claim(FOUR)
    await mine.release(FOUR[:2])
    assert await (await open_one()).owners() == dict.fromkeys(FOUR[2:], "a")
    assert set(await other.claim(FOUR)) == set(FOUR[:2])


async def test_what_is_not_owned_is_not_released(join: Join, open_one: Open) -> None:
    """Releasing a free partition, or another member's, does nothing."""
    mine, _ = await join("a")
    other, _ = await join("b")
    await mine.claim(FOUR[:2])
    await other.release(FOUR)
    await other.release(FOUR)
    await mine.release(FOUR[1:])
    assert await (await open_one()).owners() == {FOUR[0]: "a"}


async def test_a_partition_has_one_owner_in_a_race(join: Join, open_one: Open) -> None:
    """When members claim the same partitions at once, each is told exactly those that it owns."""
    partitions = first_partitions(100)
    sessions = {name: (await join(name))[0] for name in "abcdef"}
    looking = await open_one()
    for _ in range(3):
        orders = [partitions[shift:] + partitions[:shift] for shift in range(0, 96, 16)]
        claimed = await asyncio.gather(
            *(session.claim(order) for session, order in zip(sessions.values(), orders, strict=True))
        )
        said = {partition: name for name, held in zip(sessions, claimed, strict=True) for partition in held}
        assert sum(map(len, claimed)) == len(said) == 100
        assert await looking.owners() == said
        await asyncio.gather(*(session.release(partitions) for session in sessions.values()))
        assert await looking.owners() == {}


@from_outside
async def test_processes_that_take_turns_lose_no_count(start: Start, open_one: Open) -> None:
    """Four processes that each claim, read the offset, commit one more and release arrive at the sum."""
    processes = [await start(f"p{number}") for number in range(4)]
    for process in processes:
        process.send_request("count", [str(PARTITION)], 25)
    assert [await process.answer() for process in processes] == [25] * 4
    assert (await (await open_one()).offsets())[PARTITION].id == "100"


async def test_an_ended_session_owns_nothing(join: Join, open_one: Open, service: Service) -> None:
    """Partitions of an ended session are free; the first claim gets them."""
    mine, _ = await join("a")
    other, _ = await join("b")
    await mine.claim(FOUR)
    await service.expire(mine)
    assert await (await open_one()).owners() == {}
    assert set(await (await open_one()).members()) == {"b"}
    assert set(await other.claim(FOUR)) == set(FOUR)


async def test_a_replacement_takes_nothing_that_another_member_has_claimed(join: Join, open_one: Open) -> None:
    """A member with the name of the former owner leaves a partition to who claims it between its reads."""
    first, _ = await join("a", static=True)
    other, _ = await join("b")
    await first.claim([PARTITION])
    again = await (await open_one()).join(Member("a", static=True), RecordedEvents(), replace=True)
    read_owners, claimed = Session._read_owners, dict[Partition, OwnedOffset]()

    async def read_owners_before_takeover(
        session: Session, todo: dict[Partition, Standing]
    ) -> dict[Partition, Standing]:
        standings = await read_owners(session, todo)
        if session is again and "former" in standings.values():
            await first.leave()
            claimed.update(await other.claim([PARTITION]))
        return standings

    with replace(Session._read_owners, read_owners_before_takeover):
        assert await again.claim([PARTITION]) == {}
    assert await (await open_one()).owners() == {PARTITION: "b"}
    assert (await other.commit([(claimed[PARTITION], "1")]))[PARTITION]


@from_outside
async def test_a_killed_process_owns_nothing(join: Join, start: Start) -> None:
    """When a process is killed its partitions become free, and members that could not claim them are notified."""
    process = await start("killed", session_timeout=RESPONSIVE_SESSION_SECONDS)
    mine, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    assert len(await process.ask("claim", [str(partition) for partition in FOUR])) == 4
    assert await mine.claim(FOUR) == {}
    process.signal(signal.SIGKILL)
    await eventually(heard, lambda: mine.claim(FOUR), lambda held: set(held) == set(FOUR))
    await eventually(heard, mine.members, lambda members: set(members) == {"a"})


async def test_a_thousand_partitions_change_hands(join: Join, open_one: Open) -> None:
    """A thousand partitions are claimed, committed, released and claimed by another member, in one call each."""
    partitions = first_partitions(1000)
    mine, _ = await join("a")
    other, _ = await join("b")
    held = await mine.claim(partitions)
    assert set(held) == set(partitions)
    committed = await mine.commit([(each, f"id{partition.number}") for partition, each in held.items()])
    assert all(committed.values())
    assert await other.claim(partitions) == {}
    await mine.release(partitions)
    claimed = await other.claim(partitions)
    assert {partition: each.offset.id for partition, each in claimed.items()} == {
        partition: f"id{partition.number}" for partition in partitions
    }
    assert len(await (await open_one()).owners()) == 1000


async def test_a_take_that_was_cancelled_is_released(join: Join, coordinator: Coordinator) -> None:
    """Partitions of a cancelled claim are released with the rest, although no caller learned of them."""
    session, _ = await join("a")
    partitions = first_partitions(300)
    await session.claim(partitions)
    await session.release(partitions)
    for pause in (0.0, 0.01, 0.02, 0.04, 0.06, 0.08):
        taking = asyncio.ensure_future(session.claim(partitions))
        await asyncio.sleep(pause)
        taking.cancel()
        await asyncio.wait({taking})
        await session.release(partitions)
        assert await coordinator.owners() == {}


async def test_an_offset_that_cannot_be_read_is_left_out(
    join: Join, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition with an unreadable offset is left out, and logged once; the others are claimed."""
    first, _ = await join("a")
    await first.claim(first_partitions(3))
    await first.leave()
    for strange in (b"qdo9={}", b"\xff"):
        await service.write(first._paths.offset(PARTITION), strange)
        session, _ = await join("b")
        for _ in range(2):
            assert set(await session.claim(first_partitions(3))) == set(first_partitions(3)[1:])
        await session.leave()
    assert len([record for record in caplog.records if f"{PARTITION} is skipped" in record.message]) == 2
