"""A third coordination service, in memory: it shows what the protocol of a coordinator asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, Self

from msgspec.structs import replace

from qdo.errors import CoordinationLost, GroupActive, MemberExists, OffsetMoved, SessionLost
from qdo.group.records import (
    CommittedOffset,
    GroupSnapshot,
    Listen,
    Member,
    SessionOffset,
    TargetAssignment,
    Versioned,
    Visibility,
)
from qdo.partitions import Partition, Queue


class ToySession:
    def __init__(self, group: ToyCoordinator, member: Member, listen: Listen) -> None:
        self.member, self.listen = member, listen
        self._group = group

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        return "connected" if self._group.sessions.get(self.member.id) is self else "lost"

    @property
    def leadership(self) -> Self:
        return self

    def _enter(self) -> ToyCoordinator:
        if self.state == "lost":
            raise SessionLost("the session is over")
        if not self._group.is_reachable:
            raise CoordinationLost("not reached")
        return self._group

    async def assignment(self) -> frozenset[Partition]:
        target = self._enter().goal.target or TargetAssignment()
        return frozenset(partition for partition, owner in target.owners.items() if owner == self.member.id)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, SessionOffset]:
        group = self._enter()
        mine = [p for p in partitions if group.owners.setdefault(p, self) is self]
        for p in mine:
            held = group.recorded.get(p, SessionOffset(p, CommittedOffset(), 0))
            group.recorded[p] = replace(held, version=held.version + 1)
        return {p: group.recorded[p] for p in mine}

    async def release(self, partitions: Iterable[Partition]) -> None:
        group = self._enter()
        for p in partitions:
            if group.owners.get(p) is self:
                del group.owners[p]
        group.notify()

    async def commit(
        self, offsets: Iterable[tuple[SessionOffset, str | None]]
    ) -> dict[Partition, SessionOffset | None]:
        group, states = self._enter(), dict[Partition, SessionOffset | None]()
        for held, identifier in offsets:
            p, states[held.partition] = held.partition, None
            if group.owners.get(p) is self and group.recorded[p].version == held.version:
                offset = replace(held.offset, id=identifier, member=self.member.id)
                group.recorded[p] = states[p] = SessionOffset(p, offset, held.version + 1)
        return states

    def begin_to_leave(self) -> None:
        """Says nothing to others."""

    async def retire(self) -> None:
        self._enter()
        self.member = replace(self.member, leaving=True)
        self._group.notify()

    async def leave(self) -> None:
        self._group.end(self)

    async def lead(self) -> bool:
        return await self.leader() is self.member

    async def leader(self) -> Member | None:
        return next((each.member for each in self._enter().sessions.values() if not each.member.leaving), None)

    async def set_sight(self, sight: Visibility) -> None:
        self._enter()
        self.member = replace(self.member, sight=sight)

    async def members(self) -> dict[str, Member]:
        return {name: each.member for name, each in sorted(self._enter().sessions.items())}

    async def target(self) -> Versioned:
        return self._enter().goal

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        group = self._enter()
        if is_new := group.goal.version == version:
            group.goal = Versioned(target, version + 1)
            group.notify()
        return is_new


class ToyCoordinator:
    """One group; its members assign the partitions.

    Attributes:
        is_reachable: Whether requests are answered.
        sessions, owners, recorded: The live sessions by member, the owners, and the offsets.
        goal: The target.
    """

    group, session_timeout, outlast, in_service = "group", 600.0, 0.0, False

    def __init__(self) -> None:
        self.is_reachable = True
        self.sessions: dict[str, ToySession] = {}
        self.goal = Versioned(None, -1)
        self.owners: dict[Partition, ToySession] = {}
        self.recorded: dict[Partition, SessionOffset] = {}

    async def open(self) -> None:
        if not self.is_reachable:
            raise CoordinationLost("not reached")

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> ToySession:
        await self.open()
        if (former := self.sessions.get(member.id)) is not None:
            if not replace:
                raise MemberExists(f"there is a member {member.id}")
            self.end(former)
            former.listen("lost")
        session = self.sessions[member.id] = ToySession(self, member, listen)
        self.notify()
        return session

    async def close(self) -> None:
        for session in list(self.sessions.values()):
            self.end(session)

    def end(self, session: ToySession) -> None:
        if self.sessions.get(session.member.id) is session:
            del self.sessions[session.member.id]
            self.owners = {partition: owner for partition, owner in self.owners.items() if owner is not session}
            self.notify()

    def notify(self) -> None:
        for session in list(self.sessions.values()):
            session.listen("changed")

    async def snapshot(self) -> GroupSnapshot:
        owners = {partition: session.member.id for partition, session in self.owners.items()}
        return GroupSnapshot(await self.members(), self.goal.target, owners, await self.offsets())

    async def members(self) -> dict[str, Member]:
        await self.open()
        return {name: session.member for name, session in sorted(self.sessions.items())}

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        chosen = self.recorded.keys() & (self.recorded.keys() if partitions is None else set(partitions))
        return {p: self.recorded[p].offset for p in sorted(chosen) if self.recorded[p].offset.id is not None}

    async def set_offsets(
        self, offsets: Mapping[Partition, str | None], *, expected: Mapping[Partition, str | None] | None = None
    ) -> None:
        if offsets.keys() & self.owners:
            raise GroupActive("a partition has an owner")
        present = await self.offsets()
        if any(present.get(p, CommittedOffset()).id != identifier for p, identifier in (expected or {}).items()):
            raise OffsetMoved("another id is recorded")
        self.recorded |= {p: SessionOffset(p, CommittedOffset(identifier), 0) for p, identifier in offsets.items()}

    async def groups(self) -> list[str]:
        return [self.group]

    async def services(self) -> set[str]:
        return {partition.queue.service for partition in await self.offsets()}

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        if self.sessions:
            raise GroupActive("the group has members")
        kept = {p: held for p, held in self.recorded.items() if p.queue not in (queues or [p.queue])}
        self.recorded = kept
