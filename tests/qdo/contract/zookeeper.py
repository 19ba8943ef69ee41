"""Coordination by ZooKeeper as the suite reaches and breaks it: a chroot of its own, behind a network of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kazoo.client import KazooClient

from qdo.coordination import CommittedOffset, Coordinator, OwnedOffset, Session
from qdo.coordination.encoding import encode_offset
from qdo.coordination.opening import open_coordinator
from qdo.coordination.zookeeper import ConnectionOptions, administration
from qdo.coordination.zookeeper.batching import apply_each
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.paths import GroupPaths
from qdo.coordination.zookeeper.session import ZooKeeperSession
from qdo.coordination.zookeeper.transactions import ANY, Applied, Delete, SetData
from qdo.partitions import Partition
from tests.harness.proxy import Proxy
from tests.qdo.contract.backends import LONG
from tests.replacing import replace
from tests.servers.plugin import unique_name

LOOK_SECONDS = 0.02


class ZooKeeperService:
    """A chroot on a server, behind a proxy."""

    short = 3.0

    def __init__(self, connect_string: str) -> None:
        self.root = f"/{unique_name('qdo')}"
        self.proxy = Proxy.to(connect_string)
        self.url = f"zookeeper://{self.proxy.address}{self.root}?connect_timeout=5"
        self._direct = connect_string

    def coordinator(self, group: str = "group", *, session_timeout: float = LONG) -> Coordinator:
        """See the protocol."""
        return open_coordinator(self.url, group, session_timeout=session_timeout)

    async def expire(self, session: Session) -> None:
        """Closes the session as another client that has its number and password; waits until its member knows."""
        assert isinstance(session, ZooKeeperSession)
        await expire(self._direct, session)

    async def cut(self) -> None:
        """See the protocol."""
        await asyncio.to_thread(self.proxy.cut)

    async def heal(self) -> None:
        """See the protocol."""
        await asyncio.to_thread(self.proxy.heal)

    def unfenced(self, coordinator: Coordinator) -> contextlib.AbstractContextManager[None]:
        """See the protocol."""
        return replace(ZooKeeperSession.commit, commit_unfenced)

    async def write_target(self, group: str, data: bytes) -> None:
        """See the protocol."""
        await asyncio.to_thread(self._write, GroupPaths(self.root, group).target, data)

    async def write_member(self, group: str, member: str, data: bytes) -> None:
        """See the protocol."""
        await asyncio.to_thread(self._write, GroupPaths(self.root, group).member(member), data)

    async def close(self) -> None:
        """Removes the chroot and the network."""
        await asyncio.to_thread(self.proxy.close)
        link = Link(ConnectionOptions(self._direct))
        await link.open()
        await apply_each(link, {path: (Delete(path),) for path in await administration.below(link, [self.root])})
        await link.close()

    def _write(self, path: str, data: bytes) -> None:
        with plain(self._direct) as client:
            client.set(path, data)


async def commit_unfenced(
    self: ZooKeeperSession, offsets: Iterable[tuple[OwnedOffset, str | None]]
) -> dict[Partition, OwnedOffset | None]:
    """Writes offsets over whatever they are, under another session.

    That is what comes of using kazoo plainly: its client begins a new session by itself and sends there what was
    asked for under the old one.
    """
    wanted = list(offsets)
    link = Link(self.link._access)
    await link.open()
    changes = [
        (SetData(self._paths.offset(held.partition), encode_offset(CommittedOffset(identifier)), ANY),)
        for held, identifier in wanted
    ]
    written: dict[Partition, OwnedOffset | None] = {}
    for (held, identifier), outcome in zip(wanted, await link.apply(changes), strict=True):
        assert isinstance(outcome, Applied)
        written[held.partition] = OwnedOffset(held.partition, CommittedOffset(identifier), outcome.versions[-1])
    await link.close()
    return written


@contextlib.contextmanager
def plain(hosts: str, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - kazoo's
    """A client of kazoo as it is, for what tests do behind the members' backs."""
    client = KazooClient(hosts, **options)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


async def expire(hosts: str, session: ZooKeeperSession) -> None:
    """Ends a session at the servers; returns when its member knows."""
    identity = session.link._client.client_id
    async with asyncio.timeout(60):
        while session.state != "lost":
            if identity is not None:
                await asyncio.to_thread(_close, hosts, identity)
            await until(lambda: session.state != "suspended")
            identity = session.link._client.client_id


def _close(hosts: str, identity: tuple[int, bytes]) -> None:
    with contextlib.suppress(Exception), plain(hosts, client_id=identity):
        """Leaving closes the session."""


async def until(reached: Callable[[], bool]) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110 - what is waited for is changed by kazoo's thread
            await asyncio.sleep(LOOK_SECONDS)
