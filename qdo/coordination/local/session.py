"""A member's session in a group of local coordination."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from qdo.coordination import Event, Listen, Member, OwnedOffset, Session, TargetAssignment, Versioned
from qdo.coordination.local import groups, partition_owners, sessions
from qdo.coordination.local.database import FileTransaction
from qdo.errors import CoordinationLost, SessionLost
from qdo.keepalive.vitals import now
from qdo.partitions import Partition

if TYPE_CHECKING:
    from qdo.coordination.local.session_thread import SessionThread

T = TypeVar("T")


class LocalSession(Session):
    """See the contract; every method is one transaction in the session thread, which keeps the session alive.

    Args:
        thread: That thread.
        key: The session's, in the file.
        where: The group's.
        member: What it tells of itself.
        loop: Where it is told of events.
        listen: Whom to tell.
        until: When it ends without a further sign of life.

    Attributes:
        known: The state, as the thread has found it.
        seen: The counters as they were when the member last asked for what they count; gone once it was told.
    """

    def __init__(
        self,
        thread: SessionThread,
        key: int,
        where: int,
        member: Member,
        loop: asyncio.AbstractEventLoop,
        listen: Listen,
        until: float,
    ) -> None:
        self.key = key
        self.where = where
        self.until = until
        self.known: Literal["connected", "suspended", "lost"] = "connected"
        self.seen: dict[str, int] = {}
        self._thread = thread
        self._member = member
        self._loop = loop
        self._listen = listen

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the contract. A process that was stopped is in doubt until its thread has found out."""
        return "suspended" if self.known == "connected" and now() >= self.until else self.known

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""
        target, me = (await self.target()).target, self._member.id
        return frozenset() if target is None else frozenset(each for each, who in target.owners.items() if who == me)

    async def lead(self) -> bool:
        """See the contract. Of the members of one machine it is the one whose name comes first."""
        staying = [name for name, member in (await self.members()).items() if not member.leaving]
        return min(staying, default=None) == self._member.id

    async def retire(self) -> None:
        """See the contract."""
        self._member = msgspec.structs.replace(self._member, leaving=True)
        await self._ask(lambda tx: sessions.update(tx, self.key, self.where, self._member))

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        return await self._ask(lambda tx: sessions.members(tx, self.where), write=False, sees="members")

    async def target(self) -> Versioned:
        """See the contract."""
        return await self._ask(lambda tx: groups.target(tx, self.where), write=False, sees="version")

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See the contract."""
        return await self._ask(lambda tx: groups.set_target(tx, self.where, target, version))

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """See the contract."""
        asked = list(partitions)

        def work(tx: FileTransaction) -> dict[Partition, OwnedOffset]:
            held = partition_owners.claim(tx, self.key, self.where, asked)
            if any(partition not in held for partition in asked):
                self.saw(groups.look(tx, self.where), "freed")
            return held

        return await self._ask(work)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        given = list(partitions)
        await self._ask(lambda tx: partition_owners.release(tx, self.key, self.where, given))

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """See the contract."""
        given = list(offsets)
        return await self._ask(lambda tx: partition_owners.commit(tx, self.key, self.where, self._member.id, given))

    async def leave(self) -> None:
        """See the contract."""
        with contextlib.suppress(CoordinationLost):  # the coordinator is closed, so the session has ended
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(lambda: self._thread.leave(self))))

    async def _ask(self, work: Callable[[FileTransaction], T], *, write: bool = True, sees: str | None = None) -> T:
        """Runs a transaction of this session, after which the member relies on a counter if it ``sees`` that.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible
        """

        def alive(tx: FileTransaction) -> T:
            sessions.alive(tx, self.key)
            if sees is not None:
                self.saw(groups.look(tx, self.where), sees)
            return work(tx)

        if self.known == "lost":
            raise SessionLost("the session has ended")
        return await self._thread.ask(alive, session=self, write=write)

    def saw(self, counters: groups.GroupCounters, *names: str) -> None:
        """Notes counters that the member relies on; one that changed before it was told of stays the older one."""
        for name in names:
            self.seen.setdefault(name, getattr(counters, name))

    # Called by the thread.

    def outdated(self, counters: groups.GroupCounters) -> bool:
        """Tells whether something has changed since the member asked; says so once."""
        changed = [name for name, value in self.seen.items() if value != getattr(counters, name)]
        for name in changed:
            del self.seen[name]
        return bool(changed)

    def report(self, event: Event) -> None:
        """Tells the member of an event."""
        self.call(self._listen, event)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Has the member's loop call something; a loop that has ended has nobody to tell."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
