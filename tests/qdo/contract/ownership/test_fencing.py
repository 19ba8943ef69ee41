"""Commits of partitions, which only their owner may make."""

from __future__ import annotations

import signal
import time

import pytest

from qdo.errors import SessionLost
from qdo.group.records import SessionOffset
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.partitions import Partition
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, Service, from_outside
from tests.qdo.contract.conftest import Hold, Join
from tests.qdo.contract.events import eventually
from tests.qdo.contract.processes import Refused
from tests.qdo.contract.samples import PARTITION, first_partitions


async def read_recorded(coordinator: ZooKeeperCoordinator, partition: Partition = PARTITION) -> str | None:
    offset = (await coordinator.offsets([partition])).get(partition)
    return None if offset is None else offset.id


async def commit_and_check(session: ZooKeeperSession, held: SessionOffset, identifier: str) -> SessionOffset:
    after = (await session.commit([(held, identifier)]))[held.partition]
    assert after is not None
    return after


async def test_a_commit_is_recorded(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """A commit records id, owner and time, and returns the version for the next commit."""
    session, _ = await join("a")
    held = (await session.claim([PARTITION]))[PARTITION]
    for identifier in ("1", "2", "3"):
        before = time.time()
        held = await commit_and_check(session, held, identifier)
        offset = (await coordinator.offsets())[PARTITION]
        assert (offset.id, offset.member) == (identifier, "a")
        assert before - 60 < offset.at < time.time() + 60
        assert held.offset == offset


async def test_only_the_latest_version_commits(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """Versions from before a commit, or before another claim, commit nothing."""
    session, _ = await join("a")
    first = (await session.claim([PARTITION]))[PARTITION]
    second = await commit_and_check(session, first, "1")
    assert await session.commit([(first, "2")]) == {PARTITION: None}
    third = (await session.claim([PARTITION]))[PARTITION]
    assert await session.commit([(second, "3")]) == {PARTITION: None}
    assert await read_recorded(coordinator) == "1"
    await commit_and_check(session, third, "4")


async def test_each_partition_is_committed_for_itself(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """A refused commit does not affect those of other partitions."""
    session, _ = await join("a")
    other, _ = await join("b")
    partitions = first_partitions(4)
    held = await session.claim(partitions)
    await commit_and_check(session, held[partitions[0]], "1")
    await session.release(partitions[1:3])
    await other.claim(partitions[1:2])
    answer = await session.commit([(each, "2") for each in held.values()])
    assert {partition: each is not None for partition, each in answer.items()} == dict(
        zip(partitions, [False, False, False, True], strict=True)
    )
    assert [await read_recorded(coordinator, partition) for partition in partitions] == ["1", None, None, "2"]


async def test_nothing_is_committed_after_the_release(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """After a release a commit is refused, whether the partition is free, has another owner, or is its own again."""
    mine, _ = await join("a")
    other, _ = await join("b")
    old = (await mine.claim([PARTITION]))[PARTITION]
    await mine.release([PARTITION])
    assert await mine.commit([(old, "1")]) == {PARTITION: None}
    theirs = (await other.claim([PARTITION]))[PARTITION]
    assert await mine.commit([(old, "2")]) == await mine.commit([(theirs, "2")]) == {PARTITION: None}
    await commit_and_check(other, theirs, "3")
    await other.release([PARTITION])
    back = (await mine.claim([PARTITION]))[PARTITION]
    assert await mine.commit([(old, "4")]) == {PARTITION: None}
    assert await read_recorded(coordinator) == "3"
    await commit_and_check(mine, back, "5")


async def test_no_version_comes_back(join: Join, coordinator: ZooKeeperCoordinator) -> None:
    """After an offset was removed from outside, old versions commit nothing, also after later claims."""
    mine, _ = await join("a")
    other, _ = await join("b")
    old = [(await mine.claim([PARTITION]))[PARTITION]]
    old.append(await commit_and_check(mine, old[0], "1"))
    await mine.release([PARTITION])
    await coordinator.set_offsets({PARTITION: None})
    for taker in (other, mine, other, mine):
        held = (await taker.claim([PARTITION]))[PARTITION]
        assert held.version not in {each.version for each in old}
        assert await mine.commit([(old[0], "x")]) == {PARTITION: None}
        assert await mine.commit([(old[1], "x")]) == {PARTITION: None}
        await taker.release([PARTITION])


@pytest.mark.parametrize("taken_over", [False, True])
async def test_an_ended_session_commits_nothing(
    join: Join, coordinator: ZooKeeperCoordinator, service: Service, *, taken_over: bool
) -> None:
    """An ended session commits nothing, even if its version is the latest; after a takeover the new offset stays."""
    old, _ = await join("old")
    held = await commit_and_check(old, (await old.claim([PARTITION]))[PARTITION], "1")
    new, _ = await join("new")
    await service.expire(old)
    if taken_over:
        await commit_and_check(new, (await new.claim([PARTITION]))[PARTITION], "5")
    with pytest.raises(SessionLost):
        await old.commit([(held, "2")])
    assert await read_recorded(coordinator) == ("5" if taken_over else "1")


async def test_a_name_does_not_commit_for_its_earlier_life(
    join: Join, coordinator: ZooKeeperCoordinator, service: Service
) -> None:
    """A static member that restarts has a new session; versions of its earlier one commit nothing."""
    earlier, _ = await join("a", static=True)
    old = (await earlier.claim([PARTITION]))[PARTITION]
    await service.expire(earlier)
    later, _ = await join("a", static=True)
    new = (await later.claim([PARTITION]))[PARTITION]
    assert await later.commit([(old, "1")]) == {PARTITION: None}
    with pytest.raises(SessionLost):
        await earlier.commit([(new, "2")])
    assert await read_recorded(coordinator) is None


@from_outside
@pytest.mark.parametrize(("claimed", "max_blocked_seconds"), [(False, 0.0), (True, 0.0), (True, 600.0)])
async def test_a_process_that_was_stopped_for_longer_commits_nothing(
    hold: Hold,
    join: Join,
    coordinator: ZooKeeperCoordinator,
    service: Service,
    *,
    claimed: bool,
    max_blocked_seconds: float,
) -> None:
    """A process stopped for longer than its session learns so at its next commit, after a takeover or without one.

    The helper process keeps a session while the interpreter is blocked, but not while the process is stopped.
    """
    process = await hold("stopped", session_timeout=service.short, max_blocked_seconds=max_blocked_seconds)
    mine, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    process.signal(signal.SIGSTOP)
    process.send_request("commit", {str(PARTITION): "2"})
    await eventually(heard, mine.members, lambda members: "stopped" not in members)
    if claimed:
        await commit_and_check(mine, (await mine.claim([PARTITION]))[PARTITION], "5")
    process.signal(signal.SIGCONT)
    with pytest.raises(Refused, match="SessionLost"):
        await process.answer()
    with pytest.raises(Refused, match="SessionLost"):
        await process.ask("claim", [str(PARTITION)])
    assert await read_recorded(coordinator) == ("5" if claimed else None)
