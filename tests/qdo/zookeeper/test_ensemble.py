"""An ensemble of three whose servers are killed and stopped while members work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from deploy.local import ZooKeeperNode
from qdo.coordination import Coordinator, Member, OwnedOffset, Session
from qdo.coordination.opening import open_coordinator
from qdo.coordination.zookeeper.driver.link import ZooKeeperLink
from qdo.errors import CoordinationLost, MemberExists
from qdo.partitions import Partition
from tests.qdo.contract.events import PATIENCE, RecordedEvents
from tests.qdo.contract.samples import PARTITION, first_partitions
from tests.qdo.contract.zookeeper import until
from tests.servers.plugin import ZooKeeperEnsemble, unique_name

T = TypeVar("T")
Open = Callable[..., Awaitable[Coordinator]]

SESSION = 16.0
"""Session timeout in seconds; a connection counts as broken after two thirds; servers elect a leader in three."""
SHORT = 6.0


@pytest.fixture
async def open_one(zookeeper_nodes: ZooKeeperEnsemble) -> AsyncIterator[Open]:
    """Opens coordinators of one chroot and closes them at the test's end."""
    root, opened = f"/{unique_name('qdo')}", []

    async def open_one(session_timeout: float = SESSION) -> Coordinator:
        url = f"zookeeper://{zookeeper_nodes.connect_string}{root}?connect_timeout=30"
        coordinator = open_coordinator(url, "group", session_timeout=session_timeout)
        opened.append(coordinator)
        await coordinator.open()
        return coordinator

    yield open_one
    await asyncio.gather(*(coordinator.close() for coordinator in opened))


async def retry_call(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call that fails because the connection is lost or a former member still exists; returns its result."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except (CoordinationLost, MemberExists):
                await asyncio.sleep(0.05)


async def run_in_thread(call: Callable[[], T]) -> T:
    return await asyncio.to_thread(call)


def leader(ensemble: ZooKeeperEnsemble) -> ZooKeeperNode:
    leading = ensemble.leader
    assert leading is not None
    return leading


def server_of(session: Session, ensemble: ZooKeeperEnsemble) -> ZooKeeperNode:
    assert isinstance(session.link, ZooKeeperLink)
    _, port = session.link._client._connection._socket.getpeername()
    return next(node for node in ensemble.nodes if node.port == port)


class Worker:
    """Counts up in the offsets of partitions and records its events.

    Attributes:
        acknowledged: The last number whose commit was answered, by partition.
        doubts: The number of commits whose outcome is unknown.
    """

    def __init__(self, session: Session, partitions: list[Partition]) -> None:
        self._session = session
        self._partitions = partitions
        self._held: dict[Partition, OwnedOffset] = {}
        self.acknowledged = dict.fromkeys(partitions, 0)
        self.doubts = 0

    async def claim(self) -> None:
        """Claims everything; checks that recorded numbers are acknowledged, or the one commit in doubt after those."""
        self._held = await retry_call(lambda: self._session.claim(self._partitions))
        assert set(self._held) == set(self._partitions)
        for partition, held in self._held.items():
            recorded = int(held.offset.id or 0)
            assert recorded in {self.acknowledged[partition], self.acknowledged[partition] + 1}
            self.acknowledged[partition] = recorded

    async def work(self, stop: asyncio.Event) -> None:
        """Commits ever higher offsets until `stop`; claims again when an answer is lost."""
        await self.claim()
        while not stop.is_set():
            offsets = [(held, str(self.acknowledged[partition] + 1)) for partition, held in self._held.items()]
            try:
                answer = await self._session.commit(offsets)
            except CoordinationLost:
                self.doubts += 1
                await self.claim()
                continue
            for partition, held in answer.items():
                assert held is not None
                self._held[partition] = held
                self.acknowledged[partition] += 1


async def wait_until_all_commit(workers: list[Worker]) -> None:
    before = [dict(worker.acknowledged) for worker in workers]
    await until(lambda: all(worker.acknowledged != then for worker, then in zip(workers, before, strict=True)))


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
async def test_leaders_are_killed_under_members_that_commit(
    zookeeper_nodes: ZooKeeperEnsemble, open_one: Open, kills: int
) -> None:
    """When leaders are killed no session is lost, no acknowledged commit is undone, and none is recorded twice."""
    heard = [RecordedEvents() for _ in range(3)]
    sessions = [await (await open_one()).join(Member(f"m{number}"), each) for number, each in enumerate(heard)]
    partitions = first_partitions(60)
    workers = [Worker(session, partitions[number::3]) for number, session in enumerate(sessions)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.work(stop))
        for _ in range(kills):
            await wait_until_all_commit(workers)
            killed = leader(zookeeper_nodes)
            await run_in_thread(killed.kill)
            await wait_until_all_commit(workers)
            await run_in_thread(killed.start)
            await run_in_thread(zookeeper_nodes.wait_until_settled)
        stop.set()
    assert sum(worker.doubts for worker in workers) > 0
    assert not any("lost" in each.events for each in heard)
    expected = {partition: str(number) for worker in workers for partition, number in worker.acknowledged.items()}
    recorded = await retry_call((await open_one()).offsets)
    assert {partition: offset.id for partition, offset in recorded.items()} == expected


async def test_a_server_that_is_stopped_is_left_in_time(zookeeper_nodes: ZooKeeperEnsemble, open_one: Open) -> None:
    """A member of a stopped server goes on with another server in the same session."""
    heard = RecordedEvents()
    session = await (await open_one()).join(Member("a"), heard)
    held = (await session.claim([PARTITION]))[PARTITION]
    stopped = server_of(session, zookeeper_nodes)
    await run_in_thread(stopped.pause)
    await heard.next("suspended")
    await heard.next("connected")
    assert server_of(session, zookeeper_nodes) is not stopped
    assert (await retry_call(lambda: session.commit([(held, "1")])))[PARTITION]
    assert "lost" not in heard.events


async def test_without_a_quorum_sessions_are_lost_and_come_back(
    zookeeper_nodes: ZooKeeperEnsemble, open_one: Open
) -> None:
    """Without a quorum for longer than a session, members abandon everything and join again afterwards."""
    coordinator = await open_one(SHORT)
    heard = RecordedEvents()
    session = await coordinator.join(Member("a"), heard)
    held = (await session.claim([PARTITION]))[PARTITION]
    assert (await session.commit([(held, "1")]))[PARTITION]
    gone = zookeeper_nodes.nodes[:2]
    for node in gone:
        await run_in_thread(node.kill)
    await heard.next("suspended")
    with pytest.raises(CoordinationLost):
        await session.commit([(held, "2")])
    await heard.next("lost")
    await session.leave()
    for node in gone:
        await run_in_thread(node.launch)
    await run_in_thread(zookeeper_nodes.wait_until_settled)
    back = await retry_call(lambda: coordinator.join(Member("a"), RecordedEvents()))
    claimed: dict[Partition, OwnedOffset] = {}
    async with asyncio.timeout(PATIENCE):
        while not claimed:
            claimed = await retry_call(lambda: back.claim([PARTITION]))
    assert claimed[PARTITION].offset.id == "1"
    assert (await retry_call(lambda: back.commit([(claimed[PARTITION], "3")])))[PARTITION]
