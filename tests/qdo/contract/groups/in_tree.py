"""Groups whose members meet at a tree and share partitions out among themselves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import UNSET, UnsetType

from qdo import errors
from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.group_member import GroupSession
from qdo.consumer.rebalance.session_events import SessionEvents, SessionOptions
from qdo.coordination import Coordinator, Event, Session, Visibility
from qdo.coordination import Member as GroupMember
from qdo.coordination.records import HandlingNote
from qdo.errors import SessionLost
from qdo.partitions import Partition, Queue, Subscription
from queuey.client import order_of
from queuey.errors import GroupActive, GroupNotFound, MemberGone, NotOwner
from queuey.groups.ownership import Origin
from tests.contract.groups.group import SESSION, Group, HeartbeatResult, Member, Place, TakenPartition
from tests.qdo.contract.backends import Service
from tests.qdo.unit.group.owners import Catalogue

STORE, APPLICATION = "store", "app"
REST = 0.002
"""Seconds for which background work goes on after each step."""
ALWAYS = 600.0


class TreeGroup(Group):
    """A group in a tree. Conditions are checked with growing pauses, because a server may be slow.

    Time is simulated: the servers end the session of a member that is silent for too long, and the leader uses a clock
    of this group.

    Args:
        runner: Its loop runs while a member does something, and a moment longer.
        service: The service with the tree.
        queues: Names of all queues, with their numbers of partitions.
        name: The name of the group.
    """

    slack = 1.0

    def __init__(self, runner: asyncio.Runner, service: Service, queues: dict[str, int], name: str = "group") -> None:
        self.queues = queues
        self.service = service
        self.name = name
        self.now = 1e9
        self.grace = 0.0
        """Shared by all members: the leader decides."""
        self.owned_before: set[Place] = set()
        self.numbers = itertools.count(1)
        self.epochs = itertools.count(1)
        self.coordinators: list[Coordinator] = []
        self._runner = runner
        self._members: list[TreeMember] = []
        self._others: list[TreeGroup] = []
        self._outside = self.run(self.open_coordinator())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what it returns
        """Runs a coroutine, and the background work beside it."""
        return self._runner.run(work)

    async def open_coordinator(self) -> Coordinator:
        coordinator = self.service.coordinator(self.name)
        self.coordinators.append(coordinator)
        await coordinator.open()
        return coordinator

    def close(self) -> None:
        for other in self._others:
            other.close()
        for member in self._members:
            member.close()
        for coordinator in self.coordinators:
            self.run(coordinator.close())

    def join(
        self,
        *queues: str,
        patterns: Sequence[str] = (),
        instance: str = "",
        session: float = SESSION,
        revoke: float = 30.0,
        grace: float = 0.0,
        key: str = "key",
    ) -> TreeMember:
        self.grace = max(self.grace, grace)
        wants = Subscription(frozenset(queues), tuple(patterns), STORE, APPLICATION)
        member = TreeMember(self, wants, instance, session)
        self._members.append(member)
        return member

    def other_group(self) -> TreeGroup:
        other = TreeGroup(self._runner, self.service, self.queues, f"{self.name}-beside")
        self._others.append(other)
        return other

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for member in self._members:
            member.count_silence(seconds)
        self.run(asyncio.sleep(REST))

    def beat_until(self, holds: Callable[[], object], *members: Member, step: float = 0.2) -> None:
        waits = itertools.count()

        def holds_later() -> object:
            self.run(asyncio.sleep(min(0.1, next(waits) / 1000)))  # A server may be slow.
            return holds()

        super().beat_until(holds_later, *members, step=step)

    def limit_key(self, key: str, *queues: str) -> None:
        raise NotImplementedError("a tree knows no rights")

    def offset(self, place: Place) -> str | None:
        partition = partition_of(place)
        recorded = self.run(self._outside.offsets([partition]))
        return recorded[partition].id if partition in recorded else None

    def commit_plainly(self, place: Place, offset: str) -> None:
        try:
            self.run(self._outside.set_offsets({partition_of(place): offset}))
        except errors.GroupActive as error:
            raise GroupActive(self.name) from error

    def forget_offsets(self, queue: str) -> None:
        recorded = self.run(self._outside.offsets())
        if not any(partition.queue.name == queue for partition in recorded):
            raise GroupNotFound(self.name, "nothing is recorded")
        try:
            self.run(self._outside.forget({queue_of(queue)}))
        except errors.GroupActive as error:
            raise GroupActive(self.name) from error

    def remove(self) -> None:
        raise NotImplementedError("a group in a tree is forgotten with its offsets")


class TreeMember(Member, PartitionListener):
    """A member with one session. It joins with its first heartbeat, and gives back what it is told to.

    Its commits never compare; one under a former epoch is refused if that ownership is fenced.

    An epoch stands for one ownership of a partition; the tree has the version of its offset.
    """

    def __init__(self, group: TreeGroup, wants: Subscription, instance: str, session: float) -> None:
        super().__init__()
        self.number = next(group.numbers)
        self._group = group
        self._wants = wants
        self._instance = instance
        self._session_seconds = session
        self._silent = 0.0
        self._rows: dict[Place, tuple[int, OwnedPartition]] = {}
        """Owned partitions, with their epochs."""
        self._former: dict[tuple[Place, int], OwnedPartition] = {}
        self._given_back: dict[Place, asyncio.Event] = {}
        self._events = SessionEvents(self._handle_event)
        self._session: GroupSession | None = None
        self._life: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._is_gone = False

    # Notifications from the group

    async def assigned(self, rows: Collection[OwnedPartition]) -> None:
        for row in rows:
            place = row.partition.queue.name, row.partition.number
            self._rows[place] = next(self._group.epochs), row
            self._given_back[place] = asyncio.Event()
            came: Origin = "given back" if place in self._group.owned_before else "new"
            note = row.claimed.note
            self.taken[place] = TakenPartition(
                row.claimed.id,
                "lost" if row.claimed.held else came,
                None if note is None else note.until.encode("latin-1"),
            )
            self._group.owned_before.add(place)

    async def revoke(self, row: OwnedPartition) -> None:
        place = row.partition.queue.name, row.partition.number
        await self._given_back[place].wait()
        self._end(place)

    async def lost(self, rows: Collection[OwnedPartition]) -> None:
        for row in rows:
            self._end((row.partition.queue.name, row.partition.number))

    def _end(self, place: Place) -> None:
        if place in self._rows:
            epoch, row = self._rows.pop(place)
            self._former[place, epoch] = row

    # Operations of the member

    async def _join(self) -> None:
        """Joins with a coordinator of its own, in place of a former member of the instance, and begins to live."""
        group = self._group
        coordinator = await group.open_coordinator()
        queues = {queue_of(name): count for name, count in group.queues.items()}
        sight, name = Visibility(("*",)), self._instance or f"member-{self.number}"
        member = GroupMember(name, self._wants, bool(self._instance), group.now, sight=sight)
        session = await coordinator.join(member, self._events, replace=bool(self._instance))
        options = SessionOptions(
            settle=0.0, grace=group.grace, revoke_timeout=ALWAYS, now=lambda: group.now, draw=lambda: 0.0
        )
        self._session = GroupSession(session, self._events, self, options, Catalogue(self._wants, queues), sight)
        self._life = asyncio.create_task(self._live(self._session))

    async def _live(self, session: GroupSession) -> None:
        if await session.run():
            await session.abandon()

    def _handle_event(self, event: Event) -> None:
        if event == "lost" and self._session is not None:
            self._session.table.close()

    def count_silence(self, seconds: float) -> None:
        """Counts silence.

        Ends the session at the servers once it has been silent for longer than its session and the slack.
        """
        self._silent += seconds
        if self._silent > self._session_seconds + self._group.slack and self._session is not None:
            if not self._is_gone and not self._events.lost.is_set():
                self._group.run(self._group.service.expire(self.session))
            self._is_gone = True

    @property
    def session(self) -> Session:
        assert self._session is not None
        session = self._session._session
        assert isinstance(session, Session)
        return session

    async def _beat(self) -> None:
        """Joins if it has not yet, lets the group work for a moment, and fails if the member is gone."""
        if self._session is None:
            await self._join()
        self._events.changed.set()
        await asyncio.sleep(REST)
        if self._events.lost.is_set():
            self._is_gone = True
        self._require()

    def _require(self) -> None:
        if self._is_gone:
            raise MemberGone

    def send_heartbeat(self, give_back: Mapping[Place, int] | None = None, *, leaving: bool = False) -> HeartbeatResult:
        self._require()
        self._silent = 0.0
        for place, epoch in (give_back or {}).items():
            self.owned.pop(place, None)
            if place in self._rows and self._rows[place][0] == epoch:
                self._given_back[place].set()
        if leaving and self._draining is None:
            self._draining = self._group.run(self._drain())
        if self._draining is None or not self._draining.done():
            self._group.run(self._beat())
        rows = self._rows.items()
        revoked = {place: epoch for place, (epoch, row) in rows if row.state == "revoking"}
        took = {place for place, (epoch, row) in rows if row.state == "owned" and self.owned.get(place) != epoch}
        self.owned |= {place: self._rows[place][0] for place in took}
        lost = frozenset(place for place, epoch in self.owned.items() if self._rows.get(place, (0,))[0] != epoch)
        for place in lost:
            del self.owned[place]
        return HeartbeatResult({place: self.taken[place] for place in took}, revoked, lost)

    async def _drain(self) -> asyncio.Task[None]:
        assert self._session is not None
        await self._stop()
        return asyncio.create_task(self._session.finish(ALWAYS))

    def commit(
        self,
        offsets: Mapping[Place, str],
        *,
        epochs: Mapping[Place, int] | None = None,
        note: bytes | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
    ) -> None:
        assert expected is UNSET, "commits in a tree compare nothing"
        self._require()
        try:
            refused = self._group.run(self._commit(offsets, self.owned if epochs is None else epochs, note))
        except SessionLost:
            raise MemberGone from None
        if refused:
            numbers = tuple(sorted(number for _, number in refused))
            raise NotOwner(numbers, applied=tuple(sorted(number for _, number in offsets.keys() - refused)))

    async def _commit(
        self, offsets: Mapping[Place, str], epochs: Mapping[Place, int], note: bytes | UnsetType | None
    ) -> AbstractSet[Place]:
        """Commits in the session, or in vain under a former ownership. Returns the partitions that were refused."""
        assert self._session is not None
        refused = set()
        for place, offset in offsets.items():
            epoch, row = self._rows.get(place, (0, None))
            if row is not None and epoch == epochs[place]:
                if note is not UNSET:
                    row.note = None if note is None else HandlingNote(note.decode("latin-1"))
                if row.recorded is None or order_of(offset) > order_of(row.recorded):
                    row.position = offset  # Marks the message as handed out.
                    self._session.table.schedule_commit(row, offset, 1)
                is_refused = bool(await self._session.table.flush([row]))
            else:
                # As a program that has not learned yet that its ownership is over.
                former = self._former.get((place, epochs[place]))
                is_refused = former is None or await self._is_fenced(former, offset)
            if is_refused:
                refused.add(place)
        return refused

    async def _is_fenced(self, row: OwnedPartition, offset: str) -> bool:
        assert row.held is not None
        results = await self.session.commit([(row.held, offset)])
        return results[row.partition] is None

    def leave(self, *, returns: bool = False) -> None:
        self._require()
        self._is_gone = True
        if self._session is not None:
            self._group.run(self._leave())

    async def _leave(self) -> None:
        for event in self._given_back.values():
            event.set()
        await (self._draining or await self._drain())

    async def _stop(self) -> None:
        if self._life is not None:
            self._life.cancel()
            await asyncio.wait({self._life})

    def close(self) -> None:
        if self._session is not None:
            self._group.run(self._close(self._session))

    async def _close(self, session: GroupSession) -> None:
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait({self._draining})
        await self._stop()
        await session.abandon()

    def impersonate(self) -> Member:
        raise NotImplementedError("members in a tree have no credentials")


def queue_of(name: str) -> Queue:
    return Queue(STORE, APPLICATION, name)


def partition_of(place: Place) -> Partition:
    return Partition(queue_of(place[0]), place[1])
