"""An ensemble of three whose servers are killed and stopped while members work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from deploy.local import ZooKeeperNode
from qdo.errors import CoordinationLost, MemberExists
from qdo.group.opening import open_coordinator
from qdo.group.records import Member, SessionOffset
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.partitions import Partition
from tests.qdo.contract.events import PATIENCE, RecordedEvents
from tests.qdo.contract.samples import PARTITION
from tests.qdo.contract.zookeeper import client_of, socket_of
from tests.servers.plugin import ZooKeeperEnsemble, unique_name

T = TypeVar("T")
Open = Callable[..., Awaitable[ZooKeeperCoordinator]]

SESSION = 16.0
"""Session timeout in seconds; a connection counts as broken after two thirds; servers elect a leader in three."""
SHORT = 6.0


@pytest.fixture
async def open_one(zookeeper_nodes: ZooKeeperEnsemble) -> AsyncIterator[Open]:
    """Opens coordinators of one chroot and closes them at the test's end."""
    root, opened = f"/{unique_name('qdo')}", []

    async def open_one(session_timeout: float = SESSION) -> ZooKeeperCoordinator:
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


def server_of(session: ZooKeeperSession, ensemble: ZooKeeperEnsemble) -> ZooKeeperNode:
    _, port = socket_of(client_of(session)).getpeername()
    return next(node for node in ensemble.nodes if node.port == port)


async def test_a_server_that_is_stopped_is_left_in_time(zookeeper_nodes: ZooKeeperEnsemble, open_one: Open) -> None:
    """A member of a stopped server goes on with another server in the same session."""
    heard = RecordedEvents()
    session = await (await open_one()).join(Member("a"), heard)
    held = (await session.claim([PARTITION]))[PARTITION]
    stopped = server_of(session, zookeeper_nodes)
    await asyncio.to_thread(stopped.pause)
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
        await asyncio.to_thread(node.kill)
    await heard.next("suspended")
    with pytest.raises(CoordinationLost):
        await session.commit([(held, "2")])
    await heard.next("lost")
    await session.leave()
    for node in gone:
        await asyncio.to_thread(node.launch)
    await asyncio.to_thread(zookeeper_nodes.wait_until_settled)
    back = await retry_call(lambda: coordinator.join(Member("a"), RecordedEvents()))
    claimed: dict[Partition, SessionOffset] = {}
    async with asyncio.timeout(PATIENCE):
        while not claimed:
            claimed = await retry_call(lambda: back.claim([PARTITION]))
    assert claimed[PARTITION].offset.id == "1"
    assert (await retry_call(lambda: back.commit([(claimed[PARTITION], "3")])))[PARTITION]
