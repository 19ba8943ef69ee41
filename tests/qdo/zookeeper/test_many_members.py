"""The cost of joins for the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from qdo.group.member import GroupMembership
from qdo.group.session_events import SessionOptions
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.link import ZooKeeperLink
from qdo.partitions import Queue, Subscription
from tests.qdo.contract.zookeeper import ZooKeeperService
from tests.qdo.unit.group.owners import Catalogue, RecordingListener
from tests.replacing import replace
from tests.waiting import until_async

Reading = Callable[..., object]
PARTITIONS = 8
QUEUE = Queue("host", "app", "orders")
PATTERN = Subscription(frozenset(), ("*",), "host", "app")


class JoinedMember:
    """A member of a group with one queue that does nothing with its partitions."""

    def __init__(self, coordinator: ZooKeeperCoordinator, name: str) -> None:
        self.coordinator = coordinator
        lookup = Catalogue(PATTERN, {QUEUE: PARTITIONS})
        self.group = GroupMembership(
            coordinator, name, RecordingListener(), queues=lookup, options=SessionOptions(settle=0.0)
        )


def is_shared_evenly(members: list[JoinedMember]) -> bool:
    sizes = [len(member.group.table.held) for member in members]
    return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1


async def test_twenty_members_that_join_read_by_their_number(service: ZooKeeperService) -> None:
    """The cost of joins is linear: four times the members cost less than five times the reads; few partitions move."""
    cost: dict[int, int] = {}
    for count in (5, 20):
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
            for method in (ZooKeeperLink.read, ZooKeeperLink.stat, ZooKeeperLink.children):
                replaced.enter_context(replace(method, counting(method)))
            for number in range(count):
                coordinator = service.coordinator(f"of-{count}")
                member = JoinedMember(coordinator, f"m{99 - number}")
                members.append(member)
                await member.group.start()
                await until_async(partial(is_shared_evenly, members))
        cost[count] = asked
        for member in members:
            await member.group.stop()
            await member.coordinator.close()
    assert cost[20] < 5 * cost[5]
