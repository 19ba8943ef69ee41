"""Members are notified: a ``changed`` event follows the next change after a read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from qdo.coordination import Member, Session, TargetAssignment
from tests.qdo.contract.backends import LONG_ENOUGH, Service
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.events import Heard, eventually
from tests.qdo.contract.samples import ONE, some


async def told(heard: Heard, ask: Callable[[], Awaitable[object]], change: Awaitable[object]) -> None:
    """Reads, makes a change, and waits for the event."""
    await ask()
    heard.forget()
    await change
    await heard.next("changed")


async def test_members_that_come_and_go_are_heard_of(join: Join, open_one: Open, service: Service) -> None:
    """Members that join, leave, or end without leaving are noticed."""
    mine, heard = await join("a", session_timeout=LONG_ENOUGH)
    coordinator = await open_one()
    await told(heard, mine.members, coordinator.join(Member("b"), Heard()))
    other, _ = await join("c")
    await eventually(heard, mine.members, lambda members: set(members) == {"a", "b", "c"})
    await told(heard, mine.members, other.leave())
    ended, _ = await join("d")
    await eventually(heard, mine.members, lambda members: "d" in members)
    await told(heard, mine.members, service.expire(ended))
    await eventually(heard, mine.members, lambda members: set(members) == {"a", "b"})


async def test_a_target_is_heard_of(join: Join) -> None:
    """The first target and each replacement are noticed."""
    mine, heard = await join("a")
    other, _ = await join("b")
    for _ in range(3):
        _, version = await other.target()
        await told(heard, mine.target, other.set_target(TargetAssignment({ONE: "a"}), version))


async def test_what_becomes_free_is_heard_of(join: Join, service: Service) -> None:
    """Partitions that become free are noticed: by release, by leaving, and when a session ends."""
    mine, heard = await join("a", session_timeout=LONG_ENOUGH)

    async def own(name: str) -> Session:
        session, _ = await join(name)
        assert set(await session.claim([ONE])) == {ONE}
        return session

    def claim() -> Awaitable[object]:
        return mine.claim([ONE])

    other = await own("b")
    await told(heard, claim, other.release([ONE]))
    await other.claim([ONE])
    await told(heard, claim, other.leave())
    await told(heard, claim, service.expire(await own("c")))
    await eventually(heard, lambda: mine.claim([ONE]), bool)


async def test_no_partition_that_becomes_free_is_missed(join: Join) -> None:
    """Members that pass partitions on, each claiming when notified, all get each partition in the end."""
    partitions = some(5)
    members = [await join(f"m{number}") for number in range(4)]

    async def pass_on(session: Session, heard: Heard) -> None:
        missing = set(partitions)
        while missing:
            claimed = await session.claim(missing)
            await session.release(claimed)
            missing -= set(claimed)
            if missing and not claimed:
                await heard.next("changed")

    async with asyncio.TaskGroup() as group:
        for session, heard in members:
            group.create_task(pass_on(session, heard))
