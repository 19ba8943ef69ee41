"""Members of a group in simulated time: the code of real consumers and workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from qdo import AsyncConsumer, Worker, delivery
from qdo.consumer.buffer import Batch
from qdo.errors import CoordinationLost, CoordinationRefused, MemberExists, NotOwner, QdoError, SessionLost
from qdo.partitions import Partition
from qdo.worker.failure import ExitCode
from qdo.worker.runs import Delivery
from queuey.client import AsyncClient, ClientError, Message
from tests.sim.groups.history import Stay
from tests.sim.groups.service import ServiceClient
from tests.sim.groups.tree import TreeLink

if TYPE_CHECKING:
    from tests.sim.groups.machine import Machine

HANDLING = 0.2
"""Mean seconds to handle a message."""
MAX_HANDLING_SECONDS = 1.0
"""Max seconds to handle a message."""
FAILING = 0.2
"""Fraction of a worker's attempts that fail."""
POLL = 5.0
"""Seconds for which a poll waits."""
NOT_JOINED = CoordinationLost, CoordinationRefused, MemberExists, SessionLost, ClientError
"""Errors after which a member tries again to join. A worker also ends with a refusal when it lacks a right."""


class Member:
    """A member in one life of a machine.

    Args:
        machine: Its machine.

    Attributes:
        links: Its links to a tree. The last one is of the present session.
    """

    def __init__(self, machine: Machine) -> None:
        self.links: list[TreeLink] = []
        self._machine = machine
        self._storm = machine.storm
        self._history = machine.storm.history
        self._world = machine.world
        self._stays: dict[Partition, Stay] = {}
        self._last_stays: dict[Partition, Stay] = {}
        """The stays, and those that have ended since, each until the partition is assigned again."""
        self._keyed = self._leaves = False
        self._callbacks = 0

    async def live(self) -> None:
        raise NotImplementedError

    async def leave(self) -> None:
        self._leaves = True

    def _make(self) -> AsyncConsumer:
        machine, storm = self._machine, self._storm
        client = ServiceClient(storm.service, lambda: machine.key, lambda: not machine.no_service)
        return AsyncConsumer(
            cast("AsyncClient", client),
            storm.coordinate(machine, self.links),
            queues=machine.wants,
            patterns=() if machine.wants else ("*",),
            member=machine.name if machine.static else None,
            settings=storm.settings,
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    async def _close_after_failed_join(self, consumer: AsyncConsumer) -> None:
        await consumer.coordinator.close()
        await asyncio.sleep(self._world.random_time(0.5))

    def _assigned(self, partitions: Iterable[Partition]) -> Awaitable[None]:
        session = self._storm.session_of(self._machine, self.links)
        for partition in partitions:
            self._stays[partition] = self._last_stays[partition] = Stay(session, keyed=self._keyed)
        return self._in_callback()

    def _revoked(self, partitions: Iterable[Partition]) -> Awaitable[None]:
        return self._lost(partitions)

    def _lost(self, partitions: Iterable[Partition]) -> Awaitable[None]:
        for partition in partitions:
            self._stays.pop(partition, None)
        return self._in_callback()

    async def _in_callback(self) -> None:
        """Fails as the history wants it. Callbacks of one consumer must not run beside each other."""
        if self._callbacks:
            self._history.wrong.append(f"callbacks: {self._callbacks + 1} run beside each other")
        self._callbacks += 1
        try:
            if (fault := self._storm.faults.in_callback()) is not None:
                await fault
        finally:
            self._callbacks -= 1


class ConsumerMember(Member):
    """A program that polls a consumer and commits what it has handled."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._consumer: AsyncConsumer | None = None
        self._busy = asyncio.Lock()

    async def live(self) -> None:
        consumer = self._make()
        while not await self._try_to_join(consumer):
            if self._leaves:
                self._machine.stop_member()
                return
            consumer = self._make()
        self._consumer = consumer
        if self._leaves:
            await self.leave()
        while not consumer.closing:  # bounded: the history ends, and simulated time with it
            try:
                batches = await consumer.poll(self._world.rng.randrange(1, 12), POLL)
            except CoordinationRefused:  # a right is missing until the group has removed the member
                await asyncio.sleep(POLL / 10)
                continue
            stays = [self._stays.get(batch.partition) for batch in batches]
            for batch, stay in zip(batches, stays, strict=True):
                if stay is not None:
                    await self._handle(consumer, batch, stay)

    async def leave(self) -> None:
        """Commits, leaves and stops. Before it has joined, it is only marked as leaving."""
        await super().leave()
        if self._consumer is not None:
            await self._consumer.close()
            await self._consumer.coordinator.close()
            self._machine.stop_member()

    async def _try_to_join(self, consumer: AsyncConsumer) -> bool:
        """Tries once to join. After an error that a member may get it leaves, waits a while, and returns False."""
        try:
            await consumer.start()
        except NOT_JOINED:
            await self._close_after_failed_join(consumer)
            return False
        return True

    async def _revoked(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            stay = self._stays.pop(partition, None)
            try:
                await self._in_callback()
            except asyncio.CancelledError:  # The callback ends without waiting for the message under way.
                self._history.excuse_handling(self._machine.name, partition)
                raise
            async with self._busy:
                if stay is not None and self._consumer is not None:
                    await self._commit(self._consumer, partition, stay)

    async def _handle(self, consumer: AsyncConsumer, batch: Batch, stay: Stay) -> None:
        """Handles messages one by one until the partition is taken away. Commits after the last, sometimes before.

        Handles nothing while the consumer is not connected. Records each message in the history.
        """
        partition = batch.partition
        for message in batch.messages:
            async with self._busy:
                while not consumer.connected and self._stays.get(partition) is stay:  # noqa: ASYNC110 # bounded: by the history
                    await asyncio.sleep(0.1)
                if self._stays.get(partition) is not stay:
                    return
                self._history.attempts["consumer"] += 1
                self._history.begin_handling(self._machine.name, stay, partition, message, self._world.now)
                await asyncio.sleep(min(MAX_HANDLING_SECONDS, self._world.random_time(HANDLING)))
                stay.done = message.id
                self._history.end_handling(self._machine.name, stay, partition, message)
            last = message is batch.messages[-1]
            if (last or self._world.rng.random() < 0.1) and self._stays.get(partition) is stay:
                await self._commit(consumer, partition, stay)

    async def _commit(self, consumer: AsyncConsumer, partition: Partition, stay: Stay) -> None:
        """Commits the last handled message, and records that, unless it was done.

        Ignores a lost ownership or connection. Another error is recorded as a violation, unless the partition was
        assigned again meanwhile.
        """
        done = stay.done
        if done is None or done == stay.recorded:
            return
        with suppress(NotOwner, CoordinationLost, CoordinationRefused, SessionLost):
            try:
                await consumer.commit({partition: done})
            except (NotOwner, CoordinationLost, CoordinationRefused, SessionLost):
                raise
            except QdoError as error:
                if self._last_stays[partition] is stay:
                    self._history.wrong.append(f"commit: {error!r}")
                return  # the commit was of an earlier stay whose callback was late
            self._history.check_commit(partition, done)
            stay.recorded = done


class WorkerMember(Member):
    """A worker whose handler sometimes fails."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._keyed = self._storm.work.by is not None
        self._worker: Worker | None = None

    async def live(self) -> None:
        while not await self._serve_once():
            pass
        self._machine.stop_member()

    async def leave(self) -> None:
        await super().leave()
        if self._worker is not None:
            self._worker.stop()

    async def _serve_once(self) -> bool:
        """Joins, works and leaves. Returns False if it could not join and must try again, and is not leaving.

        Records a violation if the worker ends without having been asked to, or with a failure.
        """
        consumer = self._make()
        self._worker = Worker(self._handle, consumer, settings=self._storm.work, middleware=[self])
        try:
            code = await self._worker.serve()
        except NOT_JOINED:
            await self._close_after_failed_join(consumer)
            return self._leaves
        await consumer.coordinator.close()
        if not self._leaves or code == ExitCode.FAILED:
            self._history.wrong.append(f"program: the worker of {self._machine.name} ended with {code}")
        return True

    def dead(self, message: Message, place: Delivery, _failure: Any) -> None:  # noqa: ANN401 - a hook of middleware
        if (stay := self._stays.get(place.partition)) is not None:
            self._history.record_given_up(stay, message)

    async def _handle(self, message: Message, _context: object) -> None:
        """Handles a message and records it: it may hang and succeed late, be cancelled, or fail with ValueError.

        Records only a violation if the partition is not assigned.
        """
        partition, name = delivery().partition, self._machine.name
        stay = self._stays.get(partition)
        if stay is None:
            self._history.wrong.append(f"owner: {partition} is handled by {name}, to which it is not assigned")
            return
        self._history.attempts["worker in order of keys" if self._keyed else "worker"] += 1
        self._history.begin_handling(name, stay, partition, message, self._world.now)
        if (fault := self._storm.faults.in_handler(message)) is not None:
            self._history.record_hang(name, stay, partition, message)
            await fault
            self._history.record_late_success(stay, message)
            return
        try:
            await asyncio.sleep(min(MAX_HANDLING_SECONDS, self._world.random_time(HANDLING)))
        except asyncio.CancelledError:  # a pause used up its time
            self._history.record_hang(name, stay, partition, message)
            raise
        failed = self._world.rng.random() < FAILING
        self._history.end_handling(name, stay, partition, message, failed=failed)
        if failed:
            raise ValueError(message.body)
