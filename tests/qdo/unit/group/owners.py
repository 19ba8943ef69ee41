"""Who owns the partitions of a group in tests, and who looks its queues up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.coordination import Sight
from qdo.errors import CoordinationRefused
from qdo.partitions import Partition, Queue, Subscription

PATIENCE = 60.0
"""Seconds after which a test gives up."""


async def until(condition: Callable[[], bool]) -> None:
    """Lets others run until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the condition is over everything that runs here
            await asyncio.sleep(0)


@contextlib.contextmanager
def standing_time() -> Iterator[Callable[[float], None]]:
    """Has the time of the running loop stand still, so that nothing is late before a test lets so many seconds pass."""
    loop = asyncio.get_running_loop()
    now = loop.time()

    def skip(seconds: float) -> None:
        nonlocal now
        now += seconds

    loop.time = lambda: now  # type: ignore[method-assign] # all that waits asks it
    try:
        yield skip
    finally:
        del loop.time


class Catalogue:
    """Looks queues up, which are there as soon as somebody says so.

    Attributes:
        own: What the member itself wants.
        queues: Those that there are, with their partitions.
        sight: What it may see.
        away: The service cannot say.
        wanted: What is to be looked up.
        leader: What the leader may see, if that is another member.
        unseen: What no member may see.
    """

    def __init__(self, own: Subscription, queues: Mapping[Queue, int]) -> None:
        self.own = own
        self.queues = queues
        self.away = False
        self.sight = Sight(("*",))
        self.wanted: Collection[Subscription] = ()
        self.leader: Sight | None = None
        self.unseen: AbstractSet[Queue] = frozenset()

    @property
    def found(self) -> Mapping[Queue, int] | None:
        """See the protocol."""
        return None if self.away else self.queues

    def look_up(self, wanted: Collection[Subscription], _held: AbstractSet[Queue]) -> None:
        """See the protocol."""
        self.wanted = wanted

    def follow(self, leader: Sight | None, _held: AbstractSet[Queue]) -> None:
        """See the protocol."""
        self.wanted, self.leader = (), leader

    def warn(self, unseen: AbstractSet[Queue]) -> None:
        """See the protocol."""
        self.unseen = unseen


class Diary(PartitionListener):
    """An owner that writes down what it is told.

    Attributes:
        have: What it believes to own.
        notified: All that it was told, in order.
        stopped: Rows of which it is to hand out nothing more.
        refusals: What was refused.
        slow: Partitions that it does not give up before the event.
        assigning: What it waits for whenever it is assigned something.
        on_revoke: What it does when it gives something up; a coroutine is awaited.
        cancelled: The calls that were cancelled.
        wrong: What it was told out of order.
        recorded_offsets: What was recorded, in order.
        commit_failures: Why something was not.
    """

    def __init__(self) -> None:
        self.have: set[Partition] = set()
        self.notified: list[tuple[str, frozenset[Partition]]] = []
        self.stopped: set[OwnedPartition] = set()
        self.refusals: list[CoordinationRefused] = []
        self.slow: dict[Partition, asyncio.Event] = {}
        self.assigning: asyncio.Event | None = None
        self.on_revoke: Callable[[frozenset[Partition]], object] | None = None
        self.cancelled: list[str] = []
        self.wrong: list[str] = []
        self.recorded_offsets: list[Mapping[Partition, tuple[str, bool]]] = []
        self.commit_failures: list[Exception] = []

    def hurry(self) -> None:
        """It gives up what it was slow to give up, and is slow no more."""
        for given_up in self.slow.values():
            given_up.set()
        self.slow.clear()

    def times(self, what: str) -> list[frozenset[Partition]]:
        """Returns the partitions of everything that it was told of a kind."""
        return [partitions for notified, partitions in self.notified if notified == what]

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        partitions = self._note("assigned", rows)
        if self.have & partitions:
            self.wrong.append(f"{partitions} assigned twice")
        self.have |= partitions
        if self.assigning is not None:
            await self._wait("assigned", self.assigning)

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        self.wrong += [f"{row.partition} stopped while it is owned" for row in rows if row.state == "owned"]
        self.stopped |= set(rows)

    async def revoke(self, row: OwnedPartition) -> None:
        """See the protocol."""
        partitions = self._note("revoke", [row])
        if not partitions <= self.have or row not in self.stopped:
            self.wrong.append(f"{partitions} revoked, but not had or not stopped")
        for partition in partitions & self.slow.keys():
            await self._wait("revoke", self.slow[partition])
        if self.on_revoke is not None:
            result = self.on_revoke(partitions)
            if asyncio.iscoroutine(result):
                await result
        self.have -= partitions

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        partitions = self._note("lost", rows)
        if not partitions <= self.have or not self.stopped.issuperset(rows):
            self.wrong.append(f"{partitions} lost, but not had or not stopped")
        self.have -= partitions

    def refused(self, error: CoordinationRefused) -> None:
        """See the protocol."""
        self.refusals.append(error)

    def recorded(self, offsets: Mapping[Partition, tuple[str, bool]]) -> None:
        """See the protocol."""
        self.recorded_offsets.append(offsets)

    def not_recorded(self, error: Exception) -> None:
        """See the protocol."""
        self.commit_failures.append(error)

    def suspended(self) -> None:
        """See the protocol."""
        self._note("suspended", ())

    def resumed(self) -> None:
        """See the protocol."""
        self._note("resumed", ())

    def _note(self, what: str, rows: Collection[OwnedPartition]) -> frozenset[Partition]:
        partitions = frozenset(row.partition for row in rows)
        self.notified.append((what, partitions))
        return partitions

    async def _wait(self, what: str, event: asyncio.Event) -> None:
        try:
            await event.wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
