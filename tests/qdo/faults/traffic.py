"""Producers of messages in an experiment, and an observer of its offsets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from qdo.errors import CoordinationError
from qdo.group.opening import open_coordinator
from qdo.group.protocol import Coordinator
from qdo.group.service import ServiceCoordinator
from qdo.partitions import Partition
from queuey.client import AsyncClient, Client, Outgoing, ServiceUnavailable, TransportError
from queuey.client.credentials.profile import Profile
from tests.harness.checking.records import CREATED, OK, ONLY_SENT, Observed, Outcome, Post, Read, Sent, Shown, place_of
from tests.harness.history import Journal, now
from tests.waiting import until

LOOK_SECONDS = 0.3
RETRY_SECONDS = 0.5
"""Interval between attempts to change a queue while the service restarts."""
MORE = 2
"""Partitions that a queue gets when it grows."""


class Queues:
    """The queues of an experiment, which it creates.

    Args:
        client: A client of the service.
        counts: The initial number of partitions by queue.
    """

    def __init__(self, client: Client, counts: Mapping[str, int]) -> None:
        self.client = client
        self.counts = dict(counts)
        for name, count in counts.items():
            client.create_queue(name, partitions=count)

    def grow(self, slot: str = "", seconds: float = 0.0) -> None:
        """Gives the smallest queue more partitions; a fault like the others. Retries while the service restarts."""
        name = min(self.counts, key=lambda each: (self.counts[each], each))
        count = self.counts[name] + MORE

        def update() -> bool:
            with contextlib.suppress(TransportError, ServiceUnavailable):
                return self.client.update_queue(name, partitions=count).partitions == count
            return False

        until(update, every=RETRY_SECONDS)
        self.counts[name] = count

    def content(self) -> Iterator[Read]:
        for name, count in self.counts.items():
            start, partitions = now(), tuple(range(1, count + 1))
            shown = [Shown(one.partition, one.id, one.body) for one in self.client.read_all(name, limit=1000)]
            yield Read(start, now(), "", "content", name, partitions, OK, shown=tuple(shown), final=1)


@dataclass
class Producer:
    """Posts messages with unique bodies.

    Args:
        name: Its name, in the bodies.
        queues: The queues to post to.
        journal: Records the posts.
        seed: Decides the partitions and the numbers of messages.
        pause: Mean seconds between two posts.
    """

    name: str
    queues: Queues
    journal: Journal
    seed: int
    pause: float

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.seed} {self.name}")
        self._count = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self._rng.uniform(0.5, 1.5) * self.pause):
            self.post(self._rng.choice((1, 1, 2, 5, 20)))

    def post(self, count: int, place: str | None = None) -> None:
        """Posts messages to one partition, by default a random one, and records them with their outcome.

        The outcome is unknown if there was no answer.
        """
        queue = self._rng.choice(sorted(self.queues.counts))
        place = place or f"{queue}/{self._rng.randint(1, self.queues.counts[queue])}"
        name, _, number = place.rpartition("/")
        bodies = [f"{self.name}-{self._count + each}" for each in range(count)]
        self._count += count
        posted_at = now()
        ids: list[str] = []
        with contextlib.suppress(TransportError, ServiceUnavailable):
            receipts = self.queues.client.send_many(name, [Outgoing(body, partition=int(number)) for body in bodies])
            ids = [receipt.id for receipt in receipts]
        sent = tuple(Sent(body, int(number)) for body in bodies)
        status = CREATED if ids else ONLY_SENT
        outcome: Outcome = "acknowledged" if ids else "unknown"
        self.journal.add(Post(posted_at, now(), "", self.name, name, sent, status, (outcome,) * count, tuple(ids)))


@dataclass
class Observer:
    """Reads a group's offsets from outside, also those of partitions that the group no longer shows.

    Args:
        url: The URL of the coordination service; empty for a group of the service.
        group: The group.
        journal: Records the offsets.
        profile: The profile of the service.
    """

    url: str
    group: str
    journal: Journal
    profile: Profile

    def watch(self, stop: threading.Event) -> None:
        asyncio.run(self._watch(stop))

    def look(self) -> None:
        asyncio.run(self._watch(None))

    async def _watch(self, stop: threading.Event | None) -> None:
        profile = self.profile
        async with AsyncClient(profile.url, key=profile.key, application=profile.application) as client:
            coordinator = open_coordinator(self.url, self.group) if self.url else ServiceCoordinator(client, self.group)
            await self._watch_offsets(coordinator, stop)

    async def _watch_offsets(self, coordinator: Coordinator, stop: threading.Event | None) -> None:
        """Opens the coordinator, and records the offsets again and again until ``stop``, or once without it.

        An error of the coordination is ignored, unless it reads once.
        """
        try:
            await coordinator.open()
            seen: set[Partition] = set()
            while stop is None or not stop.is_set():  # bounded: the run sets it when its clients have ended
                start = now()
                try:
                    offsets = dict(await coordinator.offsets())
                    # A group of the service shows only the queues of its present members.
                    if missing := seen - offsets.keys():
                        offsets |= await coordinator.offsets(missing)
                except CoordinationError:
                    if stop is None:
                        raise
                else:
                    seen |= offsets.keys()
                    ids = {place_of(each): offset.id for each, offset in offsets.items() if offset.id is not None}
                    self.journal.add(Observed(start, now(), ids))
                if stop is None:
                    return
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await coordinator.close()
