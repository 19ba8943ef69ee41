"""A group kept by ZooKeeper.

Connections: every member has its own session and connection, because its session must end when it dies. Other requests
use an existing connection: that of ``open`` until the first member joins and takes it over, then a member's. Only if
there is none, a new one is opened. So a worker has one connection and one session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from qdo.coordination import Listen, Member
from qdo.coordination.encoding import valid_name
from qdo.coordination.zookeeper.administration import GroupAdministration
from qdo.coordination.zookeeper.connection_options import ConnectionOptions
from qdo.coordination.zookeeper.driver import Link
from qdo.coordination.zookeeper.session import ZooKeeperSession
from qdo.errors import CoordinationLost, SessionLost


class ZooKeeperCoordinator(GroupAdministration):
    """See the contract.

    Args:
        access: How the service is reached: ``Access("host1:2181,host2:2181", chroot="/qdo", login=...)``. The servers
            have limits for the time of a session; the attribute has the time that they granted, once one has answered.
        group: The group's name.

    Raises:
        InvalidArgument: No group has such a name, or TLS cannot be set up.
    """

    def __init__(self, access: ConnectionOptions, group: str) -> None:
        super().__init__(group, access.chroot)
        self.session_timeout = access.session_timeout
        self._access = access
        self._context = None if access.tls is None else access.tls.context()
        self._opened = False
        self._spare: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._sessions: set[ZooKeeperSession] = set()
        self._links: set[Link] = set()

    async def open(self) -> None:
        """See the contract."""
        self._opened = True
        try:
            await self._any()
        except BaseException:
            self._opened = False
            raise

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> ZooKeeperSession:
        """See the contract."""
        valid_name("member", member.id)
        self._require()
        link = await self._own()
        member = msgspec.structs.replace(member, since=time.time())
        session = ZooKeeperSession(link, self._paths, member, listen)
        try:
            await session.join(replace=replace)
            self._require()
        except SessionLost as error:
            await link.close()
            raise CoordinationLost("the session ended before the member was registered") from error
        except BaseException:
            await link.close()
            raise
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        """See the contract."""
        self._opened = False
        for session in list(self._sessions):
            session.link.end(SessionLost("the coordinator was closed"))
        self._sessions.clear()
        self._spare = None
        if self._opening is not None:
            self._opening.cancel()
        links, self._links = self._links, set()
        await asyncio.gather(*(link.abandon() for link in links))

    def _require(self) -> None:
        if not self._opened:
            raise CoordinationLost("the coordinator is not open")

    @asynccontextmanager
    async def _asking(self, path: str) -> AsyncIterator[Link]:
        """See there."""
        self._require()
        try:
            link = await self._any()
            await link.sync(path)
            yield link
        except SessionLost as error:
            raise CoordinationLost("the connection to ZooKeeper was lost meanwhile") from error

    async def _any(self) -> Link:
        """Returns a link that is connected: the spare one, a member's, or a new one that is spare from now on.

        Raises:
            CoordinationLost: There are links, and they cannot reach the service now; or a new one cannot.
        """
        links = [self._spare] if self._spare is not None else []
        links += [session.link for session in self._sessions]
        for link in links:
            if link.state == "connected":
                return link
        for link in links:
            if link.state == "suspended":
                return await self._back(link)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_spare())
        # Calls that come meanwhile wait for the same connection, and get the same error if it fails.
        return await asyncio.shield(self._opening)

    async def _open_spare(self) -> Link:
        try:
            self._spare = await self._new()
            return self._spare
        finally:
            self._opening = None

    async def _own(self) -> Link:
        """Returns a link for a member: the spare one if it will do, or a new one."""
        if self._spare is None or self._spare.state == "lost" or self._spare.outlast != self.outlast:
            return await self._new()
        link, self._spare = self._spare, None
        try:
            return await self._back(link)
        except CoordinationLost:
            self._spare = link
            raise

    @staticmethod
    async def _back(link: Link) -> Link:
        """Returns a link that is connected, or is again in a moment.

        Raises:
            CoordinationLost: It is not.
        """
        if link.state == "connected" or await link.wait() == "connected":
            return link
        raise CoordinationLost("ZooKeeper cannot be reached now")

    async def _new(self) -> Link:
        self._links = {link for link in self._links if not link.finished}
        self._sessions = {session for session in self._sessions if session.state != "lost"}
        link = Link(self._access, self._context, self.outlast)
        self._links.add(link)
        await link.open()
        self.session_timeout = link.timeout
        return link
