"""Loops of workers and consumers that ask again, against a service that fails for 50 s, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import httpx2
import pytest

from qdo.consumer.buffer import FetchBuffer
from qdo.consumer.fetcher import Fetcher
from qdo.consumer.positions import LatestStart
from qdo.group.discovery import QueueFinder
from qdo.group.offsets import PartitionOwnership
from qdo.group.records import CommittedOffset, SessionOffset
from qdo.group.refusals import Refusals
from qdo.partitions import Partition, Queue, subscribe
from qdo.settings import ConsumerSettings
from qdo.tasks.schedules import keep_schedules
from qdo.worker.rights import repeat_until_answered
from queuey.client import AsyncClient, AsyncTiming
from tests.client.outages.service import Outage
from tests.client.scripted import KEY, ONE, ok, page
from tests.qdo.worker.claiming.simulated import SimulatedTimeLoop

STORE = "0c5b5c3aa3d54f9d8a8c4d5f2b1e6f70"
PARTITION = Partition(Queue(STORE, "acme", "q"), 1)
HELLO = {"status": "ok", "version": "1", "store": "sqlite", "id": STORE, "links": {}}
BACK = 50.0
"""When the service works again, in seconds."""


def simulate(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a coroutine for at most ten simulated minutes."""

    async def limited() -> None:
        async with asyncio.timeout(600):
            await run()

    with asyncio.Runner(loop_factory=partial(SimulatedTimeLoop, 0.0)) as runner:
        runner.run(limited())


class Service(Outage):
    """The fake service in the time of the running loop, as a transport of the async client."""

    def __init__(self, fault: str) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(fault, BACK)

    @property
    def now(self) -> float:
        return self._loop.time()

    @now.setter
    def now(self, _: float) -> None:
        """Only the loop moves its time."""

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        try:
            return self(request)
        except httpx2.ReadTimeout:
            await asyncio.sleep(request.extensions["timeout"]["read"])
            raise

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == "/v1/":
            return httpx2.Response(200, json=HELLO)
        answers = {
            "_read": ok(queues=[page(1).json() | {"queue_name": "q"}]),
            "_schedules": ok(schedules=[], next=None),
            "_rights": ok(queues=[{"queue_name": "q", "actions": ["read", "work"]}]),
            "acme": ok(queues=[], patterns=["*"]),
        }
        return answers.get(path.strip("/").rsplit("/", 1)[-1]) or super().answer(request)

    def client(self) -> AsyncClient:
        timing = AsyncTiming(clock=self._loop.time)
        return AsyncClient(ONE, key=KEY, transport=httpx2.MockTransport(self.handle), timing=timing)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not reached():  # noqa: ASYNC110 - in simulated time
            await asyncio.sleep(0.1)


def nothing(*_: object) -> None:
    pass


async def ask_until_answered(client: AsyncClient) -> None:
    assert (await repeat_until_answered(client, lambda once: once.hello())).id == STORE


async def find_queues(client: AsyncClient) -> None:
    finder = make_finder(client)
    await finder.begin()
    assert finder.own_subscription.service == STORE


async def keep_finding_queues(client: AsyncClient) -> None:
    finder = make_finder(client)
    finder.own_subscription = subscribe(["q"], [], application="acme")
    finder.follow(None, frozenset())
    finding = asyncio.create_task(finder.run())
    await until(lambda: bool(finder.sight.patterns))
    finding.cancel()


def make_finder(client: AsyncClient) -> QueueFinder:
    wants = subscribe(["q"], [], application="acme")
    return QueueFinder(
        client,
        wants,
        interval=60.0,
        prepare=lambda _: asyncio.sleep(0),
        changed=nothing,
        failed=raise_error,
        refusals=Refusals(wants),
    )


def raise_error(error: Exception) -> None:
    raise error


def make_row() -> PartitionOwnership:
    row = PartitionOwnership(PARTITION, SessionOffset(PARTITION, CommittedOffset(None), 1))
    row.opened = True
    return row


async def read_partitions(client: AsyncClient) -> None:
    buffer, row = FetchBuffer(), make_row()
    row.fetch_from = "0" * 12 + "10008080808080808080"
    fetcher = Fetcher(
        client,
        buffer,
        ConsumerSettings(),
        arrived=nothing,
        missing=nothing,
        failed=raise_error,
        refusals=Refusals(subscribe(["q"], [], application="acme")),
    )
    fetcher.add(row)
    fetcher.kick()
    await until(lambda: buffer.count > 0)
    await fetcher.close()


async def begin_at_the_end(client: AsyncClient) -> None:
    begun: list[object] = []
    row = make_row()

    def begin_at(row: PartitionOwnership, position: str) -> None:
        row.fetch_from = position
        begun.append(position)

    async def record(_: object) -> frozenset[Partition]:
        return frozenset()

    await LatestStart(client, record, begin_at, is_shared=False).begin([row])
    assert len(begun) == 1


async def put_schedules(client: AsyncClient) -> None:
    await keep_schedules(client, ["q"], [])


LOOPS: dict[str, Callable[[AsyncClient], Awaitable[None]]] = {
    "requests at the start of a worker": ask_until_answered,
    "the first look-up of queues": find_queues,
    "later look-ups of queues": keep_finding_queues,
    "reads of partitions": read_partitions,
    "the first positions of partitions": begin_at_the_end,
    "the schedules of tasks": put_schedules,
}


@pytest.mark.parametrize("fault", ["is busy", "is silent"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_outlasts_an_outage(name: str, fault: str) -> None:
    """It goes on soon after the service works again, and has not stormed it meanwhile."""

    async def run() -> None:
        service = Service(fault)
        async with service.client() as client:
            await LOOPS[name](client)
        assert BACK <= service.elapsed <= BACK + 31
        assert sum(at < BACK for at in service.times) <= 60

    simulate(run)
