"""A member's session in a group of local coordination."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from qdo.coordination import Member, OwnedOffset, Session, TargetAssignment, Versioned
from qdo.coordination.local import groups, partition_owners, sessions
from qdo.coordination.local.database import FileTransaction
from qdo.coordination.local.session_state import SessionState, State
from qdo.coordination.local.session_thread import SessionThread
from qdo.errors import CoordinationLost, SessionLost
from qdo.keepalive.vitals import now
from qdo.partitions import Partition

T = TypeVar("T")


class LocalSession(Session):
    """See the contract; every method is one transaction in the session thread."""

    def __init__(self, session_thread: SessionThread, member_session: SessionState) -> None:
        self._session_thread = session_thread
        self._member_session = member_session

    @property
    def state(self) -> State:
        """See the contract. A process that was stopped is in doubt until its thread has found out."""
        if self._member_session.state == "connected" and now() >= self._member_session.until:
            return "suspended"
        return self._member_session.state

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""
        target, me = (await self.target()).target, self._member_session.member.id
        return frozenset() if target is None else frozenset(each for each, who in target.owners.items() if who == me)

    async def lead(self) -> bool:
        """See the contract. Of the members of one machine it is the one whose name comes first."""
        staying = [name for name, member in (await self.members()).items() if not member.leaving]
        return min(staying, default=None) == self._member_session.member.id

    async def retire(self) -> None:
        """See the contract."""
        self._member_session.member = msgspec.structs.replace(self._member_session.member, leaving=True)
        await self._ask(
            lambda tx: sessions.update(
                tx, self._member_session.session, self._member_session.where, self._member_session.member
            )
        )

    async def members(self) -> dict[str, Member]:
        """See the contract."""

        def work(tx: FileTransaction) -> dict[str, Member]:
            sessions.alive(tx, self._member_session.session)
            self._member_session.saw(groups.look(tx, self._member_session.where), "members")
            return sessions.members(tx, self._member_session.where)

        return await self._ask(work, write=False)

    async def target(self) -> Versioned:
        """See the contract."""

        def work(tx: FileTransaction) -> Versioned:
            sessions.alive(tx, self._member_session.session)
            self._member_session.saw(groups.look(tx, self._member_session.where), "version")
            return groups.target(tx, self._member_session.where)

        return await self._ask(work, write=False)

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See the contract."""

        def work(tx: FileTransaction) -> bool:
            sessions.alive(tx, self._member_session.session)
            return groups.set_target(tx, self._member_session.where, target, version)

        return await self._ask(work)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """See the contract."""
        asked = list(partitions)

        def work(tx: FileTransaction) -> dict[Partition, OwnedOffset]:
            held = partition_owners.claim(tx, self._member_session.session, self._member_session.where, asked)
            if any(partition not in held for partition in asked):
                self._member_session.saw(groups.look(tx, self._member_session.where), "freed")
            return held

        return await self._ask(work)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        given = list(partitions)
        await self._ask(
            lambda tx: partition_owners.release(tx, self._member_session.session, self._member_session.where, given)
        )

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """See the contract."""
        member_session, given = self._member_session, list(offsets)
        return await self._ask(
            lambda tx: partition_owners.commit(
                tx, member_session.session, member_session.where, member_session.member.id, given
            )
        )

    async def leave(self) -> None:
        """See the contract."""
        with contextlib.suppress(CoordinationLost):  # the coordinator is closed, so the session has ended
            await asyncio.shield(
                asyncio.wrap_future(
                    self._session_thread.submit(lambda: self._session_thread.leave(self._member_session))
                )
            )

    async def _ask(self, work: Callable[[FileTransaction], T], *, write: bool = True) -> T:
        """Runs a transaction of this session.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible
        """
        if self._member_session.state == "lost":
            raise SessionLost("the session has ended")
        return await self._session_thread.ask(work, member_session=self._member_session, write=write)
