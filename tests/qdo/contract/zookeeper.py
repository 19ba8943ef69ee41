"""ZooKeeper as the suite reaches and breaks it: a chroot behind a proxy, for each test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from kazoo.client import KazooClient

from qdo.group.zookeeper.connection_options import ConnectionOptions
from qdo.group.zookeeper.coordinator import list_with_descendants
from qdo.group.zookeeper.link import BorrowedLink, ZooKeeperLink
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.group.zookeeper.tree import Delete
from tests.harness.proxy import Proxy
from tests.qdo.contract.backends import LONG_SESSION_SECONDS, Service
from tests.servers.plugin import unique_name
from tests.waiting import until_async


class ZooKeeperService(Service):
    """A chroot on a server, behind a proxy."""

    short = 3.0

    def __init__(self, connect_string: str) -> None:
        self.root = f"/{unique_name('qdo')}"
        self.proxy = Proxy.to(connect_string)
        self.url = f"zookeeper://{self.proxy.address}{self.root}?connect_timeout=5"
        self._direct = connect_string

    def link(self, *, session_timeout: float = LONG_SESSION_SECONDS) -> ZooKeeperLink:
        return ZooKeeperLink(ConnectionOptions(self.proxy.address, self.root, session_timeout))

    async def expire(self, session: ZooKeeperSession) -> None:
        """Closes the session from another client that has its number and password; waits until its member notices."""
        await expire(self._direct, session)

    async def cut(self) -> None:
        await asyncio.to_thread(self.proxy.cut)

    async def heal(self) -> None:
        await asyncio.to_thread(self.proxy.heal)

    async def close(self) -> None:
        await asyncio.to_thread(self.proxy.close)
        link = ZooKeeperLink(ConnectionOptions(self._direct))
        await link.open()
        await link.apply_each((Delete(path),) for path in await list_with_descendants(link, [self.root]))
        await link.close()


class LendingService(ZooKeeperService):
    """The same, for links to the sessions of clients that a program made."""

    def link(self, *, session_timeout: float = LONG_SESSION_SECONDS) -> LentLink:  # type: ignore[override] # for its tests alone
        return LentLink(KazooClient(self.proxy.address, timeout=session_timeout))


class LentLink(BorrowedLink):
    """A link to the session of a client that is stopped with the link."""

    async def open(self) -> None:
        await asyncio.to_thread(self._client.start, 60)
        await super().open()

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._client.stop)
        await asyncio.to_thread(self._client.close)


@contextlib.contextmanager
def kazoo_client(hosts: str, **options: Any) -> Iterator[Any]:  # noqa: ANN401 - kazoo's
    client = KazooClient(hosts, **options)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def client_of(session: ZooKeeperSession) -> Any:  # noqa: ANN401 - kazoo's
    """Returns kazoo's client of a session."""
    assert isinstance(session.link, ZooKeeperLink)
    return session.link._client


def socket_of(client: Any) -> Any:  # noqa: ANN401 - kazoo's
    """Returns the socket of a connected client of kazoo."""
    return client._connection._socket


async def expire(hosts: str, session: ZooKeeperSession) -> None:
    """Ends a session at the servers; returns when its member has noticed."""
    identity = client_of(session).client_id
    async with asyncio.timeout(60):
        while session.state != "lost":
            if identity is not None:
                await asyncio.to_thread(_close, hosts, identity)
            await until_async(lambda: session.state != "suspended")
            identity = client_of(session).client_id


def _close(hosts: str, identity: tuple[int, bytes]) -> None:
    with contextlib.suppress(Exception), kazoo_client(hosts, client_id=identity):
        """Leaving closes the session."""
