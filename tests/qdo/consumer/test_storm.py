"""Members that join, leave and lose their sessions at random while messages come in."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.errors import CoordinationError, NotOwner
from qdo.partitions import Partition, Queue
from queuey.client import order_of
from tests.qdo.consumer.conftest import Site, until

PARTITIONS = 5
MEMBERS = 3


class Life:
    """A member that polls and commits until it is closed, and looks whether what it gets is in order.

    Attributes:
        wrong: What must not happen and did.
    """

    def __init__(self, chance: random.Random, seen: set[str]) -> None:
        self.wrong: list[str] = []
        self.consumer: AsyncConsumer | None = None
        self._chance = chance
        self._seen = seen
        self._last: dict[Partition, str] = {}

    def on_assign(self, partitions: frozenset[Partition]) -> None:
        """Begins anew after what was committed."""
        assert self.consumer is not None
        for partition in partitions:
            committed = self.consumer.committed(partition)
            self._last.pop(partition, None)
            if committed is not None:
                self._last[partition] = committed

    async def run(self) -> None:
        """Polls and commits."""
        assert self.consumer is not None
        while not self.consumer.closing:
            for partition, messages in await self.consumer.poll(self._chance.randint(1, 20), 0.05):
                for message in messages:
                    before = self._last.get(partition)
                    if before is not None and order_of(message.id) <= order_of(before):
                        self.wrong.append(f"{partition.number}: {message.id} after {before}")
                    self._last[partition] = message.id
                    self._seen.add(message.id)
            if self._chance.random() < 0.5:
                with contextlib.suppress(NotOwner, CoordinationError):
                    await self.consumer.commit()


class Storm:
    """A queue, members that handle it, and what happens to them."""

    def __init__(self, site: Site, queue: Queue, seed: int) -> None:
        self.lives: list[Life] = []
        self.seen: set[str] = set()
        self.sent: list[str] = []
        self._site = site
        self._queue = queue
        self._chance = random.Random(seed)
        self._running: list[tuple[Life, asyncio.Task[None]]] = []

    async def join(self) -> None:
        """One more member."""
        life = Life(random.Random(self._chance.random()), self.seen)
        joined = asyncio.Event()

        async def on_assign(partitions: frozenset[Partition]) -> None:
            await joined.wait()
            life.on_assign(partitions)

        life.consumer = await self._site.consumer(
            self._queue,
            callbacks={"on_assign": on_assign},
            owns=None if not self._running else frozenset(),
            page=self._chance.choice([3, 10, 1000]),
            prefetch_messages=40,
        )
        joined.set()
        self.lives.append(life)
        self._running.append((life, asyncio.create_task(life.run())))

    async def leave(self) -> None:
        """One member fewer; the last one is followed by another at once."""
        life, task = self._running.pop(self._chance.randrange(len(self._running)))
        assert life.consumer is not None
        await life.consumer.close()
        await task
        if not self._running:
            await self.join()

    async def expire(self) -> None:
        """All sessions are over."""
        with self._site.service.writing() as tx:
            tx.execute("UPDATE sessions SET expires = 0")

    async def send(self) -> None:
        """Messages come."""
        partition = self._chance.randint(1, PARTITIONS)
        self.sent += await self._site.send(self._queue, self._chance.randint(1, 30), partition)

    async def blow(self, events: int) -> None:
        """Lets things happen."""
        await self.join()
        for _ in range(events):
            await self.send()
            choices = [self.send, self.send, self.leave, self.expire]
            if len(self._running) < MEMBERS:
                choices += [self.join, self.join]
            await self._chance.choice(choices)()
            await asyncio.sleep(self._chance.random() / 20)
        await until(lambda: self.seen >= set(self.sent))
        while len(self._running) > 1:
            await self.leave()
        life, task = self._running.pop()
        assert life.consumer is not None
        await life.consumer.close()
        await task


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_storm_loses_nothing_and_keeps_order(site: Site, seed: int) -> None:
    """Everything is handed out, each member gets it in order, and nothing that was committed before it came."""
    storm = Storm(site, await site.queue(partitions=PARTITIONS), seed)
    await storm.blow(25)
    assert storm.seen == set(storm.sent)
    assert [life.wrong for life in storm.lives if life.wrong] == []
