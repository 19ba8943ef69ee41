"""A coordination service by script, for one member and faults at any of its calls, and an owner that keeps a diary.

It stands in where a real one cannot be made to fail at a given call. That real ones behave like it is held by the
coordination suite, and by the tests of groups that run on them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Literal, TypeVar

import msgspec

from qdo.assignment import plan
from qdo.consumer.owned_partition import OwnedPartition
from qdo.coordination import (
    CommittedOffset,
    Coordinator,
    Event,
    Listen,
    Member,
    OwnedOffset,
    Session,
    Sight,
    TargetAssignment,
    Versioned,
)
from qdo.errors import CoordinationIncompatible, CoordinationLost, CoordinationRefused, MemberExists, SessionLost
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription

T = TypeVar("T")
Fault = Literal["refused", "in doubt", "expired", "silently expired", "stuck", "broken", "incompatible", "forbidden"]
"""What goes wrong with a call:

``refused``: it was not carried out, and may be tried again. ``in doubt``: it was, but nobody is told. ``expired``: the
session ended before. ``silently expired``: no event says so. ``stuck``: there is no answer, and then the session ends.
``broken``: an error that nobody expects. ``incompatible``: a newer program wrote what is read. ``forbidden``:
it is not allowed.
"""
PATIENCE = 60.0
"""Seconds after which a test gives up."""


async def until(condition: Callable[[], bool]) -> None:
    """Lets others run until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the condition is over everything that runs here
            await asyncio.sleep(0)


@contextlib.contextmanager
def standing_time() -> Iterator[Callable[[float], None]]:
    """Has the time of the running loop stand still, so that nothing is late before a test lets so many seconds pass."""
    loop = asyncio.get_running_loop()
    now = loop.time()

    def skip(seconds: float) -> None:
        nonlocal now
        now += seconds

    loop.time = lambda: now  # type: ignore[method-assign] # all that waits asks it
    try:
        yield skip
    finally:
        del loop.time


class Stub:
    """What a scripted coordinator is not asked for."""

    async def owners(self) -> dict[Partition, str]:
        """Not asked for."""
        raise NotImplementedError

    async def offsets(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, CommittedOffset]:
        """Not asked for."""
        raise NotImplementedError

    async def set_offsets(
        self, offsets: Mapping[Partition, str | None], *, expected: Mapping[Partition, str | None] | None = None
    ) -> None:
        """Not asked for."""
        raise NotImplementedError

    async def groups(self) -> list[str]:
        """Not asked for."""
        raise NotImplementedError

    async def services(self) -> set[str]:
        """Not asked for."""
        raise NotImplementedError

    async def forget(self, queues: Collection[Queue] | None = None) -> None:
        """Not asked for."""
        raise NotImplementedError

    async def members(self) -> dict[str, Member]:
        """Not asked for."""
        raise NotImplementedError

    async def target(self) -> TargetAssignment | None:
        """Not asked for."""
        raise NotImplementedError


class Scripted(Stub, Coordinator):
    """The service.

    Attributes:
        calls: What was called.
        faults: What goes wrong with which call: by its place among all calls, or by its name, then once.
        held_up: Calls by name that wait for an event before anything happens.
        there: The members.
        queues: Those that there are.
        given: The target and its version.
        owned: Whose each partition is: a session, or the name of somebody who is only said to be there.
        recorded: Offsets with their versions.
        sessions: All that there were.
        untold: Those that ended without an event.
        ghosts: Those that nobody knows of.
    """

    def __init__(self) -> None:
        self.group = "group"
        self.session_timeout = 1.0
        self.calls: list[str] = []
        self.faults: dict[int | str, Fault] = {}
        self.held_up: dict[str, asyncio.Event] = {}
        self.there: dict[str, Member] = {}
        self.queues: dict[Queue, int] = {}
        self.given = Versioned(None, -1)
        self.owned: dict[Partition, ScriptedSession | str] = {}
        self.recorded: dict[Partition, tuple[str | None, int]] = {}
        self.sessions: list[ScriptedSession] = []
        self.untold: list[ScriptedSession] = []
        self.ghosts: list[ScriptedSession] = []

    @property
    def session(self) -> ScriptedSession:
        """The latest session."""
        return self.sessions[-1]

    def live(self) -> list[ScriptedSession]:
        """Returns the sessions that have not ended."""
        return [session for session in self.sessions if not session.gone]

    def say(self, *members: Member) -> None:
        """Says that others are there now."""
        ours = {session.member.id for session in self.live()}
        self.there = {name: member for name, member in self.there.items() if name in ours}
        self.there |= {member.id: member for member in members}
        self.tell("changed")

    def give(self, owners: Mapping[Partition, str]) -> None:
        """Somebody else sets the target."""
        self.given = Versioned(TargetAssignment(owners), self.given.version + 1)
        self.tell("changed")

    def free(self, *partitions: Partition) -> None:
        """Somebody else releases partitions."""
        for partition in partitions:
            del self.owned[partition]
        self.tell("changed")

    def tell(self, event: Event) -> None:
        """Tells everybody."""
        for session in self.live():
            session.listen(event)

    def suspend(self, *, suspended: bool = True) -> None:
        """Takes the answers away from everybody, or brings them back."""
        for session in self.live():
            session.suspended = suspended
            session.listen("suspended" if suspended else "connected")

    def expire(self, session: ScriptedSession, *, tell: bool = True) -> None:
        """Ends a session."""
        if not session.gone:
            session.gone = True
            self.there.pop(session.member.id, None)
            self.owned = {partition: owner for partition, owner in self.owned.items() if owner is not session}
            if tell:
                session.listen("lost")
            else:
                self.untold.append(session)

    def right(self) -> bool:
        """Tells whether the target is what it ought to be."""
        return self.given.target == plan(self.there, self.queues, self.given.target, 0.0, 0.0).target

    async def call(self, name: str, effect: Callable[[], T], session: ScriptedSession | None = None) -> T:
        """Carries out a call, or what the script makes of it."""
        fault = self.faults.pop(len(self.calls), None) or self.faults.pop(name, None)
        self.calls.append(name)
        await asyncio.sleep(0)
        if name in self.held_up:
            await self.held_up[name].wait()
        if session is not None:
            await self._before(name, session, fault)
        elif fault == "refused":
            raise CoordinationLost(name)
        result = effect()
        await asyncio.sleep(0)
        if fault == "in doubt":
            if isinstance(result, ScriptedSession):
                self.ghosts.append(result)
            raise CoordinationLost(name)
        return result

    async def _before(self, name: str, session: ScriptedSession, fault: Fault | None) -> None:
        if fault in {"expired", "silently expired"}:
            self.expire(session, tell=fault == "expired")
        if session.gone:
            raise SessionLost("expired")
        if fault == "refused" or session.suspended:
            raise CoordinationLost("not reached")
        if fault == "incompatible" and name in {"assignment", "members", "target"}:
            raise CoordinationIncompatible("a newer program was here")
        if fault == "forbidden":
            raise CoordinationRefused("with these credentials")
        if fault == "broken":
            raise RuntimeError("nobody expects this")
        if fault == "stuck":
            asyncio.get_running_loop().call_soon(self.expire, session)
            await asyncio.Event().wait()

    async def open(self) -> None:
        """See the contract."""
        await self.call("open", lambda: None)

    async def join(self, member: Member, listen: Listen, *, replace: bool = False) -> Session:
        """See the contract. An earlier life of the member ends when it has been in the way once."""

        def effect() -> ScriptedSession:
            if member.id in self.there and not replace:
                for session in self.live():
                    self.expire(session, tell=False)
                raise MemberExists(member.id)
            session = ScriptedSession(self, member, listen)
            self.sessions.append(session)
            self.there[member.id] = member
            return session

        return await self.call("join", effect)

    async def close(self) -> None:
        """See the contract."""


class ScriptedSession(Session):
    """A session of a scripted service."""

    def __init__(self, service: Scripted, member: Member, listen: Listen) -> None:
        self.service = service
        self.member = member
        self.listen = listen
        self.gone = False
        self.suspended = False

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the contract."""
        return "lost" if self.gone else "suspended" if self.suspended else "connected"

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""

        def effect() -> frozenset[Partition]:
            target = self.service.given.target
            owners = {} if target is None else target.owners
            return frozenset(each for each, owner in owners.items() if owner == self.member.id)

        return await self.service.call("assignment", effect, self)

    async def lead(self) -> bool:
        """See the contract."""
        staying = [name for name, member in self.service.there.items() if not member.leaving]
        return await self.service.call("lead", lambda: min(staying, default=None) == self.member.id, self)

    async def leader(self) -> Member | None:
        """See the contract."""

        def effect() -> Member | None:
            staying = [member for member in self.service.there.values() if not member.leaving]
            return min(staying, key=lambda member: member.id, default=None)

        return await self.service.call("leader", effect, self)

    async def set_sight(self, sight: Sight) -> None:
        """See the contract."""
        await self._replace("set_sight", msgspec.structs.replace(self.member, sight=sight))

    async def retire(self) -> None:
        """See the contract."""
        await self._replace("retire", msgspec.structs.replace(self.member, leaving=True))

    async def _replace(self, call: str, member: Member) -> None:
        def effect() -> None:
            self.member = self.service.there[member.id] = member
            self.service.tell("changed")

        await self.service.call(call, effect, self)

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        return await self.service.call("members", lambda: dict(self.service.there), self)

    async def target(self) -> Versioned:
        """See the contract."""
        return await self.service.call("target", lambda: self.service.given, self)

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See the contract."""

        def effect() -> bool:
            if version != self.service.given.version:
                return False
            self.service.given = Versioned(target, version + 1)
            self.service.tell("changed")
            return True

        return await self.service.call("set_target", effect, self)

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """See the contract."""

        def effect() -> dict[Partition, OwnedOffset]:
            held = {}
            for partition in partitions:
                if self.service.owned.setdefault(partition, self) is self:
                    identifier, version = self.service.recorded.get(partition, (None, 0))
                    self.service.recorded[partition] = (identifier, version + 1)
                    held[partition] = OwnedOffset(partition, CommittedOffset(identifier), version + 1)
            return held

        return await self.service.call("take", effect, self)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""

        def effect() -> None:
            for partition in partitions:
                if self.service.owned.get(partition) is self:
                    del self.service.owned[partition]

        await self.service.call("release", effect, self)

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """See the contract."""

        def record(held: OwnedOffset, identifier: str | None) -> OwnedOffset | None:
            partition = held.partition
            if self.service.owned.get(partition) is not self or self.service.recorded[partition][1] != held.version:
                return None
            self.service.recorded[partition] = (identifier, held.version + 1)
            return OwnedOffset(partition, CommittedOffset(identifier), held.version + 1)

        def effect() -> dict[Partition, OwnedOffset | None]:
            return {held.partition: record(held, identifier) for held, identifier in offsets}

        return await self.service.call("commit", effect, self)

    async def leave(self) -> None:
        """See the contract."""
        self.service.expire(self, tell=False)


class Catalogue:
    """Looks queues up, which are there as soon as somebody says so.

    Attributes:
        own: What the member itself wants.
        sight: What it may see.
        away: The service cannot say.
        wanted: What is to be looked up.
        leader: What the leader may see, if that is another member.
        unseen: What no member may see.
    """

    def __init__(self, service: Scripted, own: Subscription) -> None:
        self.own = own
        self._service = service
        self.away = False
        self.sight = Sight(("*",))
        self.wanted: Collection[Subscription] = ()
        self.leader: Sight | None = None
        self.unseen: AbstractSet[Queue] = frozenset()

    @property
    def found(self) -> Mapping[Queue, int] | None:
        """See the protocol."""
        return None if self.away else self._service.queues

    def look_up(self, wanted: Collection[Subscription], _held: AbstractSet[Queue]) -> None:
        """See the protocol."""
        self.wanted = wanted

    def follow(self, leader: Sight | None, _held: AbstractSet[Queue]) -> None:
        """See the protocol."""
        self.wanted, self.leader = (), leader

    def warn(self, unseen: AbstractSet[Queue]) -> None:
        """See the protocol."""
        self.unseen = unseen


class Diary:
    """An owner that writes down what it is told.

    Attributes:
        have: What it believes to own.
        notified: All that it was told, in order.
        stopped: Rows of which it is to hand out nothing more.
        refusals: What was refused.
        slow: Partitions that it does not give up before the event.
        assigning: What it waits for whenever it is assigned something.
        on_revoke: What it does when it gives something up; a coroutine is awaited.
        cancelled: The calls that were cancelled.
        wrong: What it was told out of order.
    """

    def __init__(self) -> None:
        self.have: set[Partition] = set()
        self.notified: list[tuple[str, frozenset[Partition]]] = []
        self.stopped: set[OwnedPartition] = set()
        self.refusals: list[CoordinationRefused] = []
        self.slow: dict[Partition, asyncio.Event] = {}
        self.assigning: asyncio.Event | None = None
        self.on_revoke: Callable[[frozenset[Partition]], object] | None = None
        self.cancelled: list[str] = []
        self.wrong: list[str] = []

    def hurry(self) -> None:
        """It gives up what it was slow to give up, and is slow no more."""
        for given_up in self.slow.values():
            given_up.set()
        self.slow.clear()

    def times(self, what: str) -> list[frozenset[Partition]]:
        """Returns the partitions of everything that it was told of a kind."""
        return [partitions for notified, partitions in self.notified if notified == what]

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        partitions = self._note("assigned", rows)
        if self.have & partitions:
            self.wrong.append(f"{partitions} assigned twice")
        self.have |= partitions
        if self.assigning is not None:
            await self._wait("assigned", self.assigning)

    def stop(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        self.wrong += [f"{row.partition} stopped while it is owned" for row in rows if row.state == "owned"]
        self.stopped |= set(rows)

    async def revoke(self, row: OwnedPartition) -> None:
        """See the protocol."""
        partitions = self._note("revoke", [row])
        if not partitions <= self.have or row not in self.stopped:
            self.wrong.append(f"{partitions} revoked, but not had or not stopped")
        for partition in partitions & self.slow.keys():
            await self._wait("revoke", self.slow[partition])
        if self.on_revoke is not None:
            result = self.on_revoke(partitions)
            if asyncio.iscoroutine(result):
                await result
        self.have -= partitions

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        """See the protocol."""
        partitions = self._note("lost", rows)
        if not partitions <= self.have or not self.stopped.issuperset(rows):
            self.wrong.append(f"{partitions} lost, but not had or not stopped")
        self.have -= partitions

    def refused(self, error: CoordinationRefused) -> None:
        """See the protocol."""
        self.refusals.append(error)

    def suspended(self) -> None:
        """See the protocol."""
        self._note("suspended", ())

    def resumed(self) -> None:
        """See the protocol."""
        self._note("resumed", ())

    def _note(self, what: str, rows: Collection[OwnedPartition]) -> frozenset[Partition]:
        partitions = frozenset(row.partition for row in rows)
        self.notified.append((what, partitions))
        return partitions

    async def _wait(self, what: str, event: asyncio.Event) -> None:
        try:
            await event.wait()
        except asyncio.CancelledError:
            self.cancelled.append(what)
            raise
