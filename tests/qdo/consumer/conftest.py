"""A real service, simulated coordination, and consumers that end with their test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

import pytest
from httpx2 import AsyncBaseTransport

from qdo.consumer.buffer import Batch
from qdo.consumer.consumer import AsyncConsumer
from qdo.group.records import CommittedOffset
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings
from queuey.client import AsyncClient, AsyncTiming, Message, Outgoing, RetryPolicy
from queuey.client.credentials.profile import Profile
from tests.qdo.consumer.controlled_transport import PATIENCE, ControlledTransport
from tests.qdo.contract.backends import Service
from tests.qdo.contract.in_service import ServiceGroups
from tests.qdo.contract.simulated import SimulatedService
from tests.servers.served import Served
from tests.waiting import until_async

until = until_async
POLL_SECONDS = 2.0
"""Seconds that the service holds a poll; a poll that a test leaves behind keeps its place for this long."""
NO_RETRIES = RetryPolicy(deadline=0)
"""Client options that leave retries to the consumer."""


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the environment of the person who runs the tests out of them."""
    for name in ("QUEUEY_URL", "QUEUEY_KEY", "QUEUEY_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("service"), ["--wait-slots", "200"]) as service:
        yield service


@pytest.fixture
def profile(running: Served) -> Profile:
    return running.profile


class System:
    """A service, a coordination service, and consumers of both.

    Attributes:
        client: A client apart from the consumers, to send and check.
        store: The id of the service's store.
        transport: Carries the consumers' requests to the service.
        service: The coordination service.
        profile: The profile of clients of the service.
    """

    def __init__(self, client: AsyncClient, store: str, profile: Profile, opened: contextlib.AsyncExitStack) -> None:
        self.client = client
        self.store = store
        self.profile = profile
        self.service: Any = SimulatedService()
        self.transport = ControlledTransport()
        self._opened = opened

    def use(self, service: Service | ServiceGroups) -> None:
        """Has consumers coordinate by another service, which is closed at the end."""
        self.service = service
        self._opened.push_async_callback(service.close)

    async def queue(self, partitions: int = 1, **fields: Any) -> Queue:  # noqa: ANN401 - of a queue
        created = await self.client.create_queue(partitions=partitions, **fields)
        return self.refer_to(created.name)

    def refer_to(self, name: str) -> Queue:
        return Queue(self.store, self.client.application, name)

    async def send(self, queue: Queue, count: int, partition: int = 1, first: int = 1) -> list[str]:
        """Stores messages with the bodies "<partition>:<number>" and returns their ids."""
        bodies = [f"{partition}:{number}" for number in range(first, first + count)]
        receipts = await self.client.send_many(queue.name, [Outgoing(body, partition=partition) for body in bodies])
        return [receipt.id for receipt in receipts]

    def connect(
        self,
        *,
        retry: RetryPolicy = NO_RETRIES,
        url: str | None = None,
        key: str | None = None,
        transport: AsyncBaseTransport | None = None,
        timing: AsyncTiming | None = None,
    ) -> AsyncClient:
        """Creates a client on the controlled transport, or on another one; it is closed at the end."""
        client = AsyncClient(
            url or self.profile.url,
            key=self.profile.key if key is None else key,
            transport=transport or self.transport,
            retry=retry,
            timing=timing,
        )
        self._opened.push_async_callback(client.close)
        return client

    async def coordinator(self, group: str = "group", *, session_timeout: float = 20.0) -> Any:  # noqa: ANN401 - of either kind
        coordinator = self.service.coordinator(group, session_timeout=session_timeout)
        self._opened.push_async_callback(coordinator.close)
        await coordinator.open()
        return coordinator

    async def consumer(
        self,
        *queues: Queue,
        group: str = "group",
        client: AsyncClient | None = None,
        session_timeout: float = 20.0,
        owns: Collection[Partition] | None = None,
        callbacks: dict[str, Any] | None = None,
        patterns: Collection[str] = (),
        member: str | None = None,
        **settings: Any,  # noqa: ANN401 - of ConsumerSettings
    ) -> AsyncConsumer:
        """Starts a consumer that is closed at the end.

        Waits until it owns something, unless it has no queues, or until it owns exactly the given partitions.
        """
        consumer = AsyncConsumer(
            client or self.connect(),
            await self.coordinator(group, session_timeout=session_timeout),
            queues=[queue.name for queue in queues],
            patterns=patterns,
            member=member,
            settings=ConsumerSettings(**{"settle": 0.0, "wait": POLL_SECONDS, **settings}),
            **(callbacks or {}),
        )
        self._opened.push_async_callback(consumer.close)
        await consumer.start()
        if owns is None:
            await until(lambda: bool(consumer.assignment) or not queues)
        else:
            await until(lambda: consumer.assignment == frozenset(owns))
        return consumer

    async def offsets(self, group: str = "group") -> dict[Partition, str | None]:
        offsets: dict[Partition, CommittedOffset] = await (await self.coordinator(group)).offsets()
        return {partition: offset.id for partition, offset in offsets.items()}


@pytest.fixture
async def system(profile: Profile) -> AsyncIterator[System]:
    """A service, coordination, and a controlled way to the service."""
    async with contextlib.AsyncExitStack() as opened:
        client = await opened.enter_async_context(AsyncClient(profile.url, key=profile.key))
        yield System(client, (await client.hello()).id, profile, opened)


async def collect(consumer: AsyncConsumer, count: int, **options: Any) -> list[Message]:  # noqa: ANN401 - of poll
    messages: list[Message] = []
    async with asyncio.timeout(PATIENCE):
        while len(messages) < count:
            messages += flat(await consumer.poll(**options))
    return messages


def session_of(consumer: AsyncConsumer) -> ZooKeeperSession:
    group: Any = consumer._group
    session: ZooKeeperSession = group._group_session._session
    return session


def prefetched(consumer: AsyncConsumer) -> int:
    """Returns how many messages the consumer holds that it has not handed out."""
    return consumer._buffer.count


def flat(batches: list[Batch]) -> list[Message]:
    return [message for batch in batches for message in batch.messages]


def body_numbers(messages: list[Message], partition: int = 1) -> list[int]:
    return [int(message.body.partition(":")[2]) for message in messages if message.partition == partition]
