"""A group at a coordination service.

Connections: every member has its own link and session, because its session must end when it dies. Other requests use
an existing link: that of ``open`` until the first member joins and takes it over, then a member's. Only if there is
none, a new one is opened. So a worker has one connection and one session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from qdo.coordination.administration import GroupAdministration
from qdo.coordination.encoding import valid_name
from qdo.coordination.records import Listen, Member
from qdo.coordination.session import Session
from qdo.coordination.stored_assignments import MakeMark, new_mark
from qdo.coordination.tree import Connect, Link
from qdo.errors import CoordinationLost, SessionLost


class Coordinator(GroupAdministration):
    """The connection of a group to its coordination service. Many members of one process may use it.

    Every method but ``open`` and ``close`` raises ``CoordinationLost`` while the service cannot be reached, before
    ``open`` and after ``close``.

    Example:
        >>> from qdo import Coordinator, open_coordinator
        >>> isinstance(open_coordinator("local:", "billing"), Coordinator)
        True

    Args:
        group: The group's name.
        connect: Makes a link to the service.
        session_timeout: See the attribute.
        root: A path that everything is kept under; empty: none.
        clock: Returns seconds since 1970, for what is recorded.
        new_mark: Returns text that was never returned before.

    Attributes:
        group: Its name.
        session_timeout: Seconds after which the service takes a member that it did not hear of for gone. Servers of
            ZooKeeper have limits for it: once one has answered it is the time that they granted.
        outlast: Seconds for which members that join from now on stay members while this program cannot run, because
            something holds the interpreter: a helper process gives the signs of life then. A program that has ended, or
            is stopped by a signal, is not kept. 0: there is no such process.

    Raises:
        InvalidArgument: No group has such a name.
    """

    outlast: float = 0.0

    def __init__(
        self,
        group: str,
        connect: Connect,
        session_timeout: float,
        root: str = "",
        *,
        clock: Callable[[], float] = time.time,
        new_mark: MakeMark = new_mark,
    ) -> None:
        super().__init__(group, root, clock)
        self.session_timeout = session_timeout
        self._connect = connect
        self._new_mark = new_mark
        self._opened = False
        self._spare: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._sessions: set[Session] = set()
        self._links: set[Link] = set()

    async def open(self) -> None:
        """Connects. Idempotent.

        Raises:
            CoordinationLost: Not within the time allowed.
            CoordinationIncompatible
        """
        self._opened = True
        try:
            await self._any()
        except BaseException:
            self._opened = False
            raise

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        """Adds a member with its own session.

        Args:
            member: The member that joins; ``since`` is set here.
            listen: Called with events, in the loop of the caller; must not raise. After ``lost`` nothing more comes.
            replace: A live member of this id is put out of the group: its session is lost, it can record nothing from
                the moment on when this one takes what it owned, which can be taken at once.

        Raises:
            MemberExists: A live member has this id, and it is not to be replaced.
            InvalidArgument: The id is no name.
            CoordinationLost
        """
        valid_name("member", member.id)
        self._require()
        link = await self._own()
        member = msgspec.structs.replace(member, since=self._clock())
        session = Session(link, self._paths, member, listen, clock=self._clock, new_mark=self._new_mark)
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
        """Ends all sessions and the connection. Idempotent, never raises.

        Sessions that have not left get the event ``lost``.
        """
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
        """Gives a link to a service that has caught up; see :class:`GroupAdministration`."""
        self._require()
        try:
            link = await self._any()
            await link.sync(path)
            yield link
        except SessionLost as error:
            raise CoordinationLost("the connection to the coordination service was lost meanwhile") from error

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
        raise CoordinationLost("the coordination service cannot be reached now")

    async def _new(self) -> Link:
        self._links = {link for link in self._links if not link.finished}
        self._sessions = {session for session in self._sessions if session.state != "lost"}
        link = self._connect(self.outlast)
        self._links.add(link)
        await link.open()
        self.session_timeout = link.timeout
        return link
