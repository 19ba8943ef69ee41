"""A member's stay in a group of local coordination."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from qdo.coordination import Held, Member, Session, Target, Versioned
from qdo.coordination.local import groups, owners, sessions
from qdo.coordination.local.database import Transaction
from qdo.coordination.local.keeper import Keeper
from qdo.coordination.local.stay import State, Stay
from qdo.errors import CoordinationLost, SessionLost
from qdo.keepalive.vitals import now
from qdo.partitions import Partition

T = TypeVar("T")


class LocalSession(Session):
    """See the contract; every method is one transaction in the keeper's thread."""

    def __init__(self, keeper: Keeper, stay: Stay) -> None:
        self._keeper = keeper
        self._stay = stay

    @property
    def state(self) -> State:
        """See the contract. A process that was stopped is in doubt until its thread has found out."""
        if self._stay.state == "connected" and now() >= self._stay.until:
            return "suspended"
        return self._stay.state

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""
        target, me = (await self.target()).target, self._stay.member.id
        return frozenset() if target is None else frozenset(each for each, who in target.owners.items() if who == me)

    async def lead(self) -> bool:
        """See the contract. Of the members of one machine it is the one whose name comes first."""
        staying = [name for name, member in (await self.members()).items() if not member.leaving]
        return min(staying, default=None) == self._stay.member.id

    async def retire(self) -> None:
        """See the contract."""
        self._stay.member = msgspec.structs.replace(self._stay.member, leaving=True)
        await self._ask(lambda tx: sessions.update(tx, self._stay.session, self._stay.where, self._stay.member))

    async def members(self) -> dict[str, Member]:
        """See the contract."""

        def work(tx: Transaction) -> dict[str, Member]:
            sessions.alive(tx, self._stay.session)
            self._stay.saw(groups.look(tx, self._stay.where), "members")
            return sessions.members(tx, self._stay.where)

        return await self._ask(work, write=False)

    async def target(self) -> Versioned:
        """See the contract."""

        def work(tx: Transaction) -> Versioned:
            sessions.alive(tx, self._stay.session)
            self._stay.saw(groups.look(tx, self._stay.where), "version")
            return groups.target(tx, self._stay.where)

        return await self._ask(work, write=False)

    async def set_target(self, target: Target, version: int) -> bool:
        """See the contract."""

        def work(tx: Transaction) -> bool:
            sessions.alive(tx, self._stay.session)
            return groups.set_target(tx, self._stay.where, target, version)

        return await self._ask(work)

    async def take(self, partitions: Iterable[Partition]) -> dict[Partition, Held]:
        """See the contract."""
        asked = list(partitions)

        def work(tx: Transaction) -> dict[Partition, Held]:
            held = owners.take(tx, self._stay.session, self._stay.where, asked)
            if any(partition not in held for partition in asked):
                self._stay.saw(groups.look(tx, self._stay.where), "freed")
            return held

        return await self._ask(work)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        given = list(partitions)
        await self._ask(lambda tx: owners.release(tx, self._stay.session, self._stay.where, given))

    async def commit(self, offsets: Iterable[tuple[Held, str | None]]) -> dict[Partition, Held | None]:
        """See the contract."""
        stay, given = self._stay, list(offsets)
        return await self._ask(lambda tx: owners.commit(tx, stay.session, stay.where, stay.member.id, given))

    async def leave(self) -> None:
        """See the contract."""
        with contextlib.suppress(CoordinationLost):  # the coordinator is closed, so the session has ended
            await asyncio.shield(asyncio.wrap_future(self._keeper.submit(lambda: self._keeper.leave(self._stay))))

    async def _ask(self, work: Callable[[Transaction], T], *, write: bool = True) -> T:
        """Runs a transaction of this session.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible
        """
        if self._stay.state == "lost":
            raise SessionLost("the session has ended")
        return await self._keeper.ask(work, stay=self._stay, write=write)
