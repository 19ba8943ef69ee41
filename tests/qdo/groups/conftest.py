"""Members that count: each recorded id is the number after the one before, so that nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from collections.abc import Set as AbstractSet

import pytest

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.rebalance.group_member import GroupMember
from qdo.consumer.rebalance.partition_table import SessionOptions
from qdo.coordination import Coordinator, Sight
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription
from tests.qdo.contract.backends import LONG, Service
from tests.qdo.contract.conftest import backend, service

__all__ = ["Count", "Crew", "anybody", "backend", "crew", "service"]

PATIENCE = 60.0
"""Seconds after which a test gives up."""
QUEUE = Queue("host", "app", "orders")
WANTS = Subscription(frozenset({"orders"}), (), "host", "app")


class News:
    """Wakes whoever waits for something to become true."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        self._event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition holds, looking at it whenever something has changed."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._event.clear()
                await self._event.wait()


class Count:
    """A member and what it works on: it takes up each partition where the last one left it.

    Attributes:
        group: Its membership.
        coordinator: Its own, as if it were another process.
        have: For each partition the number that was recorded last.
        notified: All that it was told, in order.
        slow: Partitions that it does not give up before the event.
        found: The queues that there are.
        own: What it wants.
        sight: What it may see.
        unseen: When it leads: what no member may see.
        counted: How often it recorded a number, for each partition.
        unknown: How often it does not know whether it did.
    """

    def __init__(self, coordinator: Coordinator, name: str, news: News, *, static: bool, grace: float) -> None:
        self.coordinator = coordinator
        self.have: dict[Partition, int] = {}
        self.notified: list[tuple[str, frozenset[Partition]]] = []
        self.slow: dict[Partition, asyncio.Event] = {}
        self.counted: dict[Partition, int] = {}
        self.unknown: dict[Partition, int] = {}
        self._news = news
        self._counting = asyncio.Lock()
        self.found: Mapping[Queue, int] | None = {}
        self.own = WANTS
        self.sight = Sight(("*",))
        self.unseen: AbstractSet[Queue] = frozenset()
        self.group = GroupMember(
            coordinator, name, self, queues=self, static=static, options=SessionOptions(0.02, grace)
        )

    def look_up(self, wanted: Collection[Subscription], held: AbstractSet[Queue]) -> None:
        """See the protocol of what looks queues up: here everybody says what there is."""

    def follow(self, leader: Sight | None) -> None:
        """See there."""

    def warn(self, unseen: AbstractSet[Queue]) -> None:
        """See there."""
        self.unseen = unseen

    def times(self, what: str) -> set[Partition]:
        """Returns the partitions of everything that it was told of a kind."""
        return set[Partition]().union(*(partitions for notified, partitions in self.notified if notified == what))

    async def count(self, partitions: frozenset[Partition] | None = None) -> None:
        """Records the next number of partitions, or of all that it has; one after the other."""
        async with self._counting:
            wanted = {
                partition: number + 1
                for partition, number in self.have.items()
                if partitions is None or partition in partitions
            }
            for partition in wanted:
                self.unknown[partition] = self.unknown.get(partition, 0) + 1
            refused = await self.group.table.record({partition: str(number) for partition, number in wanted.items()})
            for partition, number in wanted.items():
                self.unknown[partition] -= 1
                if partition not in refused:
                    self.counted[partition] = self.counted.get(partition, 0) + 1
                if partition not in refused and self.have.get(partition) == number - 1:
                    self.have[partition] = number

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        new = {row.partition: int(row.recorded or "0") for row in rows}
        assert not new.keys() & self.have.keys()
        self.have |= new
        self._note("assigned", frozenset(new))

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol. It counts until it gives up."""

    async def revoke(self, row: OwnedPartition) -> None:
        """See the protocol. Counts once more before it gives up."""
        only = frozenset([row.partition])
        self._note("revoke", only)
        if row.partition in self.slow:
            await self.slow[row.partition].wait()
        await self.count(only)
        self._drop(only)

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        partitions = frozenset(row.partition for row in rows)
        self._drop(partitions)
        self._note("lost", partitions)

    def refused(self, error: CoordinationRefused) -> None:
        """See the protocol."""
        raise AssertionError(error)

    def suspended(self) -> None:
        """See the protocol."""
        self._note("suspended", frozenset())

    def resumed(self) -> None:
        """See the protocol."""
        self._note("resumed", frozenset())

    def _drop(self, partitions: frozenset[Partition]) -> None:
        for partition in partitions:
            self.have.pop(partition, None)
        self._news.tell()

    def _note(self, what: str, partitions: frozenset[Partition]) -> None:
        self.notified.append((what, partitions))
        self._news.tell()


class Crew:
    """The members of a group.

    Attributes:
        members: Those that run, by name.
        gone: Those that were stopped.
        news: Told of whatever any of them is told.
    """

    def __init__(self, service: Service, session_timeout: float) -> None:
        self.members: dict[str, Count] = {}
        self._seen: dict[str, int] = {}
        self._expired: set[int] = set()
        self.gone: list[Count] = []
        self.news = News()
        self._service = service
        self._session_timeout = session_timeout

    async def join(self, name: str, count: int = 12, *, static: bool = False, grace: float = 0.0) -> Count:
        """Has a member join that sees a queue with so many partitions."""
        coordinator = self._service.coordinator(session_timeout=self._session_timeout)
        member = Count(coordinator, name, self.news, static=static, grace=grace)
        self.members[name] = member
        self.see(name, count)
        await member.group.start()
        return member

    def see(self, name: str, count: int) -> None:
        """Has a member say that there are so many partitions."""
        self._seen[name] = count
        self._find()

    def _find(self) -> None:
        """Has all members find what any of them says that there is."""
        most = max((self._seen[each] for each in self.members), default=0)
        for member in self.members.values():
            member.found = {QUEUE: most}
            member.group.recheck()

    async def leave(self, name: str) -> Count:
        """Has a member leave."""
        member = self.members.pop(name)
        self.gone.append(member)
        self._find()
        await member.group.stop()
        await member.coordinator.close()
        return member

    async def expire(self, name: str) -> None:
        """Has the service end the session of a member, if it has one that has not ended."""
        group = self.members[name].group
        if (
            group.state == "active"
            and group._group_session is not None
            and id(group._group_session) not in self._expired
        ):
            self._expired.add(id(group._group_session))
            await self._service.expire(group._group_session._session)

    def shared(self) -> bool:
        """Tells whether everything that anybody sees is owned, nothing twice, and evenly."""
        count = max(self._seen[name] for name in self.members)
        sizes = [len(member.have) for member in self.members.values()]
        return (
            sum(sizes) == count == len(set[Partition]().union(*(member.have for member in self.members.values())))
            and max(sizes) - min(sizes) <= 1
        )

    async def agree(self) -> None:
        """Waits until everything is shared out."""
        await self.news.until(self.shared)

    async def check(self) -> None:
        """Checks that nothing that was recorded was lost, and nothing was recorded twice."""
        everybody = [*self.members.values(), *self.gone]
        recorded = await anybody(self).coordinator.offsets()
        for partition, offset in recorded.items():
            counted = sum(member.counted.get(partition, 0) for member in everybody)
            unknown = sum(member.unknown.get(partition, 0) for member in everybody)
            assert counted <= int(offset.id or "0") <= counted + unknown


def anybody(crew: Crew) -> Count:
    """Returns some member."""
    return next(iter(crew.members.values()))


@pytest.fixture
async def crew(service: Service) -> AsyncIterator[Callable[..., Awaitable[Crew]]]:
    """Makes crews, each of some members that have shared everything out."""
    async with contextlib.AsyncExitStack() as made:

        async def crew(*names: str, session_timeout: float = LONG) -> Crew:
            result = Crew(service, session_timeout)
            made.push_async_callback(dismiss, result)
            for name in names:
                await result.join(name)
            if names:
                await result.agree()
            return result

        yield crew


async def dismiss(crew: Crew) -> None:
    """Has all members leave."""
    for name in list(crew.members):
        await crew.leave(name)
