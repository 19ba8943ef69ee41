"""Members are notified: a ``changed`` event follows the next change after a read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from qdo.group.records import Member
from qdo.group.zookeeper.session import ZooKeeperSession
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS, Service
from tests.qdo.contract.conftest import Join, Open
from tests.qdo.contract.events import RecordedEvents, eventually
from tests.qdo.contract.samples import PARTITION


async def wait_for_change(
    heard: RecordedEvents, ask: Callable[[], Awaitable[object]], change: Awaitable[object]
) -> None:
    await ask()
    heard.forget()
    await change
    await heard.next("changed")


async def test_members_that_come_and_go_are_heard_of(join: Join, open_one: Open, service: Service) -> None:
    """Members that join, leave, or end without leaving are noticed."""
    mine, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)
    coordinator = await open_one()
    await wait_for_change(heard, mine.members, coordinator.join(Member("b"), RecordedEvents()))
    other, _ = await join("c")
    await eventually(heard, mine.members, lambda members: set(members) == {"a", "b", "c"})
    await wait_for_change(heard, mine.members, other.leave())
    ended, _ = await join("d")
    await eventually(heard, mine.members, lambda members: "d" in members)
    await wait_for_change(heard, mine.members, service.expire(ended))
    await eventually(heard, mine.members, lambda members: set(members) == {"a", "b"})


async def test_what_becomes_free_is_heard_of(join: Join, service: Service) -> None:
    """Partitions that become free are noticed: by release, by leaving, and when a session ends."""
    mine, heard = await join("a", session_timeout=RESPONSIVE_SESSION_SECONDS)

    async def own(name: str) -> ZooKeeperSession:
        session, _ = await join(name)
        assert set(await session.claim([PARTITION])) == {PARTITION}
        return session

    def claim() -> Awaitable[object]:
        return mine.claim([PARTITION])

    other = await own("b")
    await wait_for_change(heard, claim, other.release([PARTITION]))
    await other.claim([PARTITION])
    await wait_for_change(heard, claim, other.leave())
    await wait_for_change(heard, claim, service.expire(await own("c")))
    await eventually(heard, lambda: mine.claim([PARTITION]), bool)
