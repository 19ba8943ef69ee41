"""A machine on which members of a group live, one after another, each with the code of a real consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from qdo import AsyncConsumer, Coordinator
from qdo.consumer.fetch.fetch_buffer import Batch
from qdo.errors import CoordinationLost, MemberExists, NotOwner, QdoError, SessionLost
from qdo.partitions import Partition
from queuey.client import AsyncClient, ClientError
from tests.sim.groups.history import Stay
from tests.sim.groups.loop import MemberLoop
from tests.sim.groups.service import Key, ServiceClient
from tests.sim.groups.tree import TIMEOUT, TreeLink
from tests.sim.world import Process

if TYPE_CHECKING:
    from tests.sim.groups.storm import Storm

HANDLING = 0.2
"""Seconds that a message takes, on average."""
LATENCIES = 0.004, 0.004, 0.02, 0.1
"""Seconds on the way to the tree, on average."""
POLL = 5.0
"""Seconds for which a poll waits."""


class Machine(Process):
    """Where a member lives.

    Args:
        storm: What it lives in.
        name: Its name, which its members have if they are static.
        static: They are.
        wants: Names of queues; none: all queues.
        key: What its credential may do.

    Attributes:
        up: A member lives there.
        gone: None will live there any more.
        no_tree: Its packets do not reach the tree.
        no_service: Nor the service.
        latency: Seconds on the way to the tree, on average.
        usual_latency: The same without trouble.
        loses_claim: The answer to the next claim is lost.
    """

    def __init__(self, storm: Storm, name: str, *, static: bool, wants: tuple[str, ...], key: Key) -> None:
        super().__init__(storm.world, storm.world.rng.uniform(-0.5, 0.5))
        self.name = name
        self.static = static
        self.wants = wants
        self.key = key
        self.up = self.gone = self.no_tree = self.no_service = self.loses_claim = False
        self.latency = self.usual_latency = storm.world.rng.choice(LATENCIES)
        self.links: list[TreeLink] = []
        self._storm = storm
        self._consumer: AsyncConsumer | None = None
        self._stays: dict[Partition, Stay] = {}
        self._busy = asyncio.Lock()
        self.loop = MemberLoop(self)  # type: ignore[abstract]  # much of it is not needed

    def begin(self) -> None:
        """Begins a life."""
        if self.gone:
            return
        self.up = True
        self.loop = MemberLoop(self)  # type: ignore[abstract]
        self.links, self._stays, self._busy, self._consumer = [], {}, asyncio.Lock(), None
        with self.loop.running():
            self._start(self._live())

    def crash(self) -> None:
        """See the base class. The tree hears nothing of it."""
        super().crash()
        self.up = False
        for link in self.links:
            link.cut(0.0)

    def cut(self, notice: float) -> None:
        """Its connections to the tree break."""
        for link in self.links:
            link.cut(notice)

    def claimed(self, link: TreeLink, queue: str) -> None:
        """The tree has carried out a claim of its member, and answers."""
        if not self.loses_claim:
            return
        self.loses_claim = False
        self.no_tree = True
        link.cut(self.world.some(0.2))
        self._storm.remove(queue)  # so it may not have the partition any more when it comes back

        def heal() -> None:
            self.no_tree = False

        self.world.at(1.0 + self.world.some(2.0), heal)

    def speed_up(self) -> None:
        """Ends a time for which the way to the tree took long."""
        self.latency = self.usual_latency

    def wake(self) -> None:
        """Ends a pause."""
        self.paused_until = 0.0

    def leave(self) -> None:
        """Ends its life in order."""
        if self.up and (consumer := self._consumer) is not None:
            with self.loop.running():
                self._start(self._close(consumer))

    def takes(self, name: str) -> bool:
        """Returns whether its member wants a queue and may read it."""
        return self.up and (not self.wants or name in self.wants) and self.key.reads(name)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._storm.history.wrong.append(f"program: {self.name} ended with {error!r}")

        task = self.loop.create_task(work)
        task.add_done_callback(ended)
        self.threads.append(task)

    def _link(self, _outlast: float) -> TreeLink:
        link = TreeLink(self._storm.tree, self)
        self.links.append(link)
        return link

    async def _live(self) -> None:
        consumer = None
        while consumer is None:
            consumer = await self._join()
        self._consumer = consumer
        while not consumer.closing:
            batches = await consumer.poll(self.world.rng.randrange(1, 12), POLL)
            stays = [self._stays.get(batch.partition) for batch in batches]
            for batch, stay in zip(batches, stays, strict=True):
                if stay is not None:
                    await self._handle(consumer, batch, stay)

    async def _join(self) -> AsyncConsumer | None:
        clock = self.clock
        coordinator = Coordinator("group", self._link, TIMEOUT, clock=clock, new_mark=self._storm.mark)
        client = ServiceClient(self._storm.service, lambda: self.key, lambda: not self.no_service)
        consumer = AsyncConsumer(
            cast("AsyncClient", client),
            coordinator,
            queues=self.wants,
            patterns=() if self.wants else ("*",),
            member=self.name if self.static else None,
            settings=self._storm.settings,
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        try:
            await consumer.start()
        except (CoordinationLost, MemberExists, SessionLost, ClientError):
            await coordinator.close()
            await asyncio.sleep(self.world.some(0.5))
            return None
        return consumer

    async def _close(self, consumer: AsyncConsumer) -> None:
        await consumer.close()
        await consumer.coordinator.close()
        super().crash()
        self.up = False

    def _assigned(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._stays[partition] = Stay(self.links[-1].session)

    async def _revoked(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            stay = self._stays.pop(partition, None)
            async with self._busy:
                if stay is not None and self._consumer is not None:
                    await self._commit(self._consumer, partition, stay)

    def _lost(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._stays.pop(partition, None)

    async def _handle(self, consumer: AsyncConsumer, batch: Batch, stay: Stay) -> None:
        partition = batch.partition
        for message in batch.messages:
            async with self._busy:
                while not consumer.connected and self._stays.get(partition) is stay:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.1)
                if self._stays.get(partition) is not stay:
                    return
                storm = self._storm
                storm.history.handles(self.name, stay, partition, message, self.world.now)
                await asyncio.sleep(self.world.some(HANDLING))
                stay.done = message.id
                storm.history.handled(self.name, partition)
            last = message is batch.messages[-1]
            if (last or self.world.rng.random() < 0.1) and self._stays.get(partition) is stay:
                await self._commit(consumer, partition, stay)

    async def _commit(self, consumer: AsyncConsumer, partition: Partition, stay: Stay) -> None:
        done = stay.done
        if done is None or done == stay.recorded:
            return
        with suppress(NotOwner, CoordinationLost, SessionLost):
            try:
                await consumer.commit({partition: done})
            except (NotOwner, CoordinationLost, SessionLost):
                raise
            except QdoError as error:
                self._storm.history.wrong.append(f"commit: {error!r}")
                return
            self._storm.history.committed(partition, done)
            stay.recorded = done
