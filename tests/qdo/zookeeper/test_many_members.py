"""What it costs the servers when members come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from qdo.coordination.zookeeper.driver import ZooKeeperLink
from tests.qdo.contract.zookeeper import ZooKeeperService
from tests.qdo.unit.zookeeper.test_large_groups import PATIENCE, JoinedMember, shared
from tests.replacing import replace

Reading = Callable[..., object]
PARTITIONS = 8


async def test_forty_members_that_join_read_by_their_number(service: ZooKeeperService) -> None:
    """Four times as many that join one by one ask less than five times as much; few partitions change hands."""
    cost: dict[int, int] = {}
    for count in (10, 40):
        asked = 0

        def counting(method: Reading) -> Reading:
            def counted(self: ZooKeeperLink, paths: Iterable[str], *, watch: bool = False) -> object:
                nonlocal asked
                wanted = list(paths)
                asked += len(wanted)
                return method(self, wanted, watch=watch)

            return counted

        members = []
        with ExitStack() as replaced:
            for method in (ZooKeeperLink.read, ZooKeeperLink.look, ZooKeeperLink.children):
                replaced.enter_context(replace(method, counting(method)))
            for number in range(count):
                coordinator = service.coordinator(f"of-{count}")
                member = JoinedMember(coordinator, f"m{99 - number}", PARTITIONS)
                members.append(member)
                await member.group.start()
                async with asyncio.timeout(PATIENCE):
                    while not shared(members, PARTITIONS):  # noqa: ASYNC110 - there is no event for all of it
                        await asyncio.sleep(0.01)
        cost[count] = asked
        for member in members:
            await member.group.stop()
            await member.coordinator.close()
    assert cost[40] < 5 * cost[10]
