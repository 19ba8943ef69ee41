"""Membership in a group: joins, shares out, takes and gives back, and joins again when the session was lost.

What happens when is written down in :mod:`qdo.consumer.rebalance.member_states`. One session is a
:class:`~qdo.consumer.rebalance.group_member.GroupSession`; a group is one after another, under the same id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol

from qdo.assignment import reported
from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.member_states import (
    Cause,
    ComputedPlan,
    LeaderView,
    RebalanceDebounce,
    State,
    after,
    decide_as_leader,
    partition_changes,
)
from qdo.consumer.rebalance.partition_table import Ownership, PartitionTable, Request
from qdo.consumer.rebalance.session_events import DEFAULT_OPTIONS, SessionEvents, SessionOptions
from qdo.coordination import AnyCoordinator, AnySession, CommittedOffset, Event, Member, OwnedOffset, Session, Sight
from qdo.errors import (
    CoordinationError,
    CoordinationIncompatible,
    CoordinationLost,
    CoordinationRefused,
    InvalidArgument,
    MemberExists,
    SessionLost,
)
from qdo.partitions import Partition, Queue, Subscription
from qdo.tasks import cancel, happens, start

log = logging.getLogger(__name__)

SOON = 0.1
"""Timeout in seconds to give up everything before a member announces that it is leaving."""


class QueueLookup(Protocol):
    """Looks queues up for a member, and makes it check again when it has found others."""

    @property
    def own(self) -> Subscription:
        """The queues that the member itself wants."""

    @property
    def sight(self) -> Sight:
        """The queues that the member may see, for others."""

    @property
    def found(self) -> Mapping[Queue, int] | None:
        """For a leader: the queues that it sees, with their partitions (0: it does not exist); None: not known yet."""

    def look_up(self, wanted: Collection[Subscription], held: AbstractSet[Queue]) -> None:
        """The member leads; costs nothing when it is called again.

        Args:
            wanted: What members want.
            held: Queues that have owners and that no other member sees: it must know whether they exist.
        """

    def follow(self, leader: Sight | None, held: AbstractSet[Queue]) -> None:
        """Another member leads.

        Args:
            leader: What that may see; None: it does not say what, or none leads.
            held: Queues of which the member has partitions. What the leader may not see of them it is told.
        """

    def warn(self, unseen: AbstractSet[Queue]) -> None:
        """These queues are wanted and may exist, but no member may see them."""


class GroupSession:
    """Reads the group's state, decides and acts, for as long as one session lasts."""

    def __init__(
        self,
        session: AnySession,
        events: SessionEvents,
        owner: PartitionListener,
        options: SessionOptions,
        queues: QueueLookup,
        sight: Sight | None = None,
    ) -> None:
        self.table = PartitionTable(session, owner, options, events)
        self._session = session
        self._owner = owner
        self._events = events
        self._options = options
        self._queues = queues
        self._reported = sight
        self._claiming: asyncio.Task[None] | None = None
        self._claim_again = False
        self._failed_claims = 0
        self._settling = RebalanceDebounce(options.settle)
        self._planned: ComputedPlan | None = None
        self._members: Mapping[str, Member] = {}
        self._reports: AbstractSet[Queue] = frozenset()

    async def run(self) -> bool:
        """Works until the session is lost, or is to be left; returns whether it is lost."""
        looking = asyncio.create_task(self._recheck_on_change())
        looking.add_done_callback(self._events.ended)
        try:
            await self._events.over.wait()
        finally:
            await cancel(looking)
        return self._events.lost.is_set()

    async def abandon(self) -> None:
        """Gives up the remaining partitions as lost, and ends the session if it has not ended."""
        self.table.close()
        if self._claiming is not None:
            await cancel(self._claiming)
        await self.table.abandon()
        await self._leave()

    async def finish(self, seconds: float | None = None) -> None:
        """Hands everything back and leaves; abandons it if the session is lost before or meanwhile.

        Args:
            seconds: For each partition, instead of the time for a revocation.
        """
        within = self._options.revoke_timeout if seconds is None else seconds
        self._session.begin_to_leave()
        self.table.give_up_all(within)
        retiring = asyncio.create_task(self._retire())
        if self._claiming is not None:
            lost = asyncio.create_task(self._events.lost.wait())
            waited = {self._claiming, lost}
            await asyncio.wait(waited, timeout=self._options.patience, return_when=asyncio.FIRST_COMPLETED)
            lost.cancel()
            self.table.give_up_all(within)
        await self.table.until_given_up(within + self._options.patience)
        await cancel(retiring)
        await self.abandon()

    async def _retire(self) -> None:
        """Announces that it leaves, so that others take the partitions that it gives up while it finishes the rest.

        A member that is done soon just leaves: then no member tries to take partitions that are not free yet.
        """
        if not await self.table.until_given_up(SOON):
            with contextlib.suppress(CoordinationError):
                await self._session.retire()

    async def _recheck_on_change(self) -> None:
        failures = 0
        while True:
            self._events.changed.clear()
            wait = None
            try:
                if not self._events.suspended:
                    wait = await self._check_once()
                failures = 0
            except SessionLost:
                raise
            except CoordinationIncompatible:
                # This session cannot read the assignment any more, so nothing can be kept.
                log.exception("all partitions are released: the group uses a newer format. Upgrade this program")
                self.table.give_up(self.table.states)
            except CoordinationError as error:
                self._notify_refusal(error)
                failures += 1
                log.log(logging.DEBUG if failures > 1 else logging.WARNING, "looking again: %s", error)
                await self._events.sleep(self._options.pause(failures))
                continue
            recheck = self._options.recheck * (0.5 + self._options.draw() / 2)
            await happens(self._events.changed, recheck if wait is None else min(wait, recheck))

    async def _check_once(self) -> float | None:
        """Checks once and acts; returns after how many seconds to check again even if nothing changes."""
        todo = partition_changes(await self._session.assignment(), self.table.states)
        self.table.give_up(todo.give_up)
        self._claim(todo.claim)
        session = self._session
        if not isinstance(session, Session):
            return None  # The service assigns, and finds queues.
        if self._reported != (sight := self._queues.sight):
            await session.set_sight(sight)
            self._reported = sight
        leader = None
        try:
            if await session.lead():
                return await self._lead(session)
            leader = await session.leader()
        except CoordinationIncompatible as error:
            # Each member keeps what it has. A member that can read everything may lead when the leader's session ends.
            log.warning("partitions stay with their owners until all members run the same version of Qdo: %s", error)
        self._planned = None
        held = {partition.queue for partition in self.table.states}
        self._queues.follow(None if leader is None else leader.sight, held)
        return None

    async def _lead(self, session: Session) -> float | None:
        """Sets the target if it is not right; returns as :meth:`_check_once` does."""
        target = await session.target()
        members = await session.members()
        if members != self._members:
            self._members, self._reports = members, reported(members.values()).keys()
        held = set[Queue]() if target.target is None else {each.queue for each in target.target.owners}
        wanted = {member.wants for member in members.values()}
        self._queues.look_up(wanted, held - self._reports)
        queues = self._queues.found
        if queues is None:
            return None
        now = asyncio.get_running_loop().time()
        view = LeaderView(
            members=members,
            queues=queues,
            target=target.target,
            planned=self._planned,
            now=self._options.now(),
            age=self._settling.age((members, queues), now, at_work=target.target is not None),
            settle=self._options.settle,
            grace=self._options.grace,
        )
        orders = decide_as_leader(view)
        if orders.planned is not None and orders.planned is not self._planned:
            self._queues.warn(orders.planned.unseen)
        self._planned = orders.planned
        if orders.target is not None:
            try:
                await session.set_target(orders.target, target.version)
            except InvalidArgument as error:
                log.error("all partitions stay with their owners, because they cannot be shared out: %s", error)  # noqa: TRY400
                return orders.wait
            # Set or not: what there is now is to be read.
            self._events.changed.set()
        return orders.wait

    def _claim(self, partitions: frozenset[Partition]) -> None:
        """Begins to take partitions; one such call at a time, so what comes meanwhile waits for it."""
        if not partitions:
            return
        if self._claiming is not None:
            self._claim_again = True
            return
        self._claim_again = False
        self._claiming = asyncio.create_task(self._claim_now(partitions))
        self._claiming.add_done_callback(self._events.ended)

    async def _claim_now(self, partitions: frozenset[Partition]) -> None:
        try:
            await self.table.claim(partitions)
            self._failed_claims = 0
        except SessionLost:
            raise
        except CoordinationError as error:
            self._notify_refusal(error)
            self._failed_claims += 1
            self._claim_again = True
            await self._events.sleep(self._options.pause(self._failed_claims))
        self._claiming = None
        if self._claim_again:
            self._events.changed.set()

    def _notify_refusal(self, error: CoordinationError) -> None:
        """Reports to the owner an error that does not pass without help."""
        if isinstance(error, CoordinationRefused):
            self._owner.refused(error)

    async def _leave(self) -> None:
        leaving = asyncio.create_task(self._session.leave())
        await asyncio.wait({leaving}, timeout=self._options.patience)
        if not leaving.done():
            log.warning("the session did not end in time and is abandoned")


JOIN_SESSIONS = 2
"""Max session timeouts for which the first join is tried: by then an earlier life of a static member is over, or of a
join whose outcome was not known.
"""


class GroupMember:
    """A member of a group.

    It is started and stopped once.

    Args:
        coordinator: The group.
        member: Its id, the same after a lost session.
        owner: Works on the partitions.
        queues: Says what it subscribes to, looks queues up while it leads, and calls :meth:`recheck`.
        static: The id was chosen, and its partitions are kept for a while when it is gone.
        options: How it behaves.

    Attributes:
        table: The partitions of its session, what is being revoked among them.
    """

    def __init__(
        self,
        coordinator: AnyCoordinator,
        member: str,
        owner: PartitionListener,
        *,
        queues: QueueLookup,
        static: bool = False,
        options: SessionOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._coordinator = coordinator
        self._member = member
        self._owner = owner
        self._static = static
        self._options = options
        self._queues = queues
        self.table = Ownership(owner)
        self._state: State = "new"
        self._notified_suspended = False
        self._group_session: GroupSession | None = None
        self._events: SessionEvents | None = None
        self._main: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._strays: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        """Where in its life the member is; see :mod:`qdo.consumer.rebalance.member_states`.

        If the process was stopped for long, this says so before the owner is notified.
        """
        if self._state == "active" and not self.table.connected:
            return "suspended"
        return self._state

    async def start(self) -> None:
        """Joins the group.

        Raises:
            CoordinationLost: The service was not reached, or did not answer in time.
            CoordinationIncompatible
            MemberExists: For two session timeouts another member had this name.
            SessionLost: It was stopped meanwhile.
        """
        if self._state != "new":
            raise RuntimeError("a group can be started only once")
        self._move("start")
        self._started = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._live(self._started))
        try:
            await self._started
        except BaseException:
            await self.stop()
            raise

    async def stop(self, within: float | None = None) -> None:
        """Revokes all partitions, releases each when it is given up, and leaves. Idempotent.

        Also while it is starting. Meanwhile the member is given nothing.

        Args:
            within: Seconds that the owner has for each partition; None: ``revoke_timeout``. Leaving takes no longer
                than that and some times ``patience``.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(within))
        await asyncio.shield(self._stopping)

    def recheck(self) -> None:
        """Makes it check again, because other queues were found."""
        if self._events is not None:
            self._events.changed.set()

    def gather_commits(self, messages: int, seconds: float, listener: PartitionListener) -> None:
        """Sets when added offsets are committed in sessions that begin later; see :class:`SessionOptions`."""
        listeners = (listener, *self._options.commit_listeners)
        self._options = self._options._replace(
            commit_messages=messages, commit_seconds=seconds, commit_listeners=listeners
        )

    def rejoin(self) -> None:
        """Hands everything back, leaves, and joins again."""
        if self._events is not None:
            self._events.over.set()

    def _move(self, cause: Cause) -> None:
        state = after(self._state, cause)
        if state != self._state:
            log.debug("%s is %s: %s", self._member, state, cause)
            self._state = state

    async def _live(self, started: asyncio.Future[None]) -> None:
        """Joins, stays, and joins again, until it is cancelled; ``started`` gets the result of the first join."""
        try:
            await self._coordinator.open()
            group_session = await self._join(JOIN_SESSIONS * self._coordinator.session_timeout)
        except Exception as error:  # noqa: BLE001 - it is handed on, whatever it is
            if not started.done():
                started.set_exception(error)
            return
        if not started.done():
            started.set_result(None)
        loop = asyncio.get_running_loop()
        short = 0
        while True:
            began = loop.time()
            if await group_session.run():
                log.warning("the session of %s was lost; it joins again", self._member)
                await group_session.abandon()
            else:
                log.info("%s releases all partitions and joins again", self._member)
                await group_session.finish()
                self._move("lost")
            # Sessions that end as soon as they begin are not begun ever faster.
            short = short + 1 if loop.time() - began < self._coordinator.session_timeout else 1
            await asyncio.sleep(self._options.pause(short))
            group_session = await self._join(None)

    async def _join(self, limit: float | None) -> GroupSession:
        """Joins, however often that has to be tried.

        Args:
            limit: Seconds for which it is tried; None: for ever.

        Raises:
            CoordinationLost, MemberExists: When there is a limit: it was tried for so long.
            Exception: When there is a limit: whatever else happens, at once.
        """
        loop = asyncio.get_running_loop()
        deadline = None if limit is None else loop.time() + limit
        failures = 0
        while True:
            try:
                return await self._join_once()
            except Exception as error:
                failures += 1
                pause = self._options.pause(failures)
                passing = isinstance(error, CoordinationLost | SessionLost | MemberExists)
                if deadline is not None and (not passing or loop.time() + pause > deadline):
                    raise
                level = logging.DEBUG if failures > 1 and passing else logging.WARNING
                log.log(level, "%s will join again: %s", self._member, error, exc_info=None if passing else error)
            await asyncio.sleep(pause)

    async def _join_once(self) -> GroupSession:
        events = SessionEvents(lambda event: self._on_event(events, event))
        sight = self._queues.sight
        member = Member(self._member, self._queues.own, self._static, self._options.now(), sight=sight)
        # Only at the first time: two that run under one name would put each other out for ever.
        replace = self._static and self._group_session is None
        joining: asyncio.Task[AnySession]
        joining = asyncio.create_task(self._coordinator.join(member, events, replace=replace))
        try:
            session = await asyncio.shield(joining)
        except asyncio.CancelledError:
            # It goes on: otherwise the session would be unknown, and never ended.
            start(_leave_when_joined(joining), self._strays)
            raise
        self._events = events
        self._group_session = GroupSession(session, events, self._owner, self._options, self._queues, sight)
        self.table = self._group_session.table
        self._move("joined")
        if events.lost.is_set():
            self._on_event(events, "lost")
        else:
            self._on_event(events, "suspended" if events.suspended else "connected")
        return self._group_session

    def _on_event(self, events: SessionEvents, event: Event) -> None:
        """Notes an event of the present session at once; events of earlier sessions are ignored."""
        if event == "changed" or events is not self._events:
            return
        self._move(event)
        if event == "lost":
            if self._group_session is not None:
                self._group_session.table.close()
        else:
            self._notify(suspended=event == "suspended")

    def _notify(self, *, suspended: bool) -> None:
        if suspended == self._notified_suspended:
            return
        self._notified_suspended = suspended
        try:
            self._owner.suspended() if suspended else self._owner.resumed()
        except Exception:
            log.exception("a callback of the consumer failed")

    async def _stop(self, within: float | None) -> None:
        self._move("stop")
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait({self._main})
        if self._started is not None and not self._started.done():
            self._started.set_exception(SessionLost("it was stopped while it joined"))
        if self._group_session is not None:
            await self._group_session.finish(within)
        if self._strays:
            await asyncio.wait(self._strays, timeout=self._options.patience)
        self._move("left")


async def _leave_when_joined(joining: asyncio.Task[AnySession]) -> None:
    try:
        session = await joining
    except (CoordinationError, MemberExists):
        return
    await session.leave()


class ManualAssignment(Ownership):
    """The partitions of a consumer that belongs to no group; the counterpart of a group's member.

    Other processes do not know of it, so partitions are never lost. Others may work on the same partitions.

    Args:
        coordinator: Of the group whose offsets are used; None: none are, and nothing is recorded.
        owner: Works on the partitions; notified of each that comes or goes, as by a group.
        options: With the time for a revocation, and when offsets are recorded.

    Attributes:
        held: The partitions.
        table: What is owned is said here as well.
    """

    held: Mapping[Partition, OwnedPartition] = {}

    def __init__(self, coordinator: AnyCoordinator | None, owner: PartitionListener, options: SessionOptions) -> None:
        super().__init__(owner, options)
        self.table = self
        self._coordinator = coordinator

    async def start(self) -> None: ...

    def recheck(self) -> None: ...

    @property
    def connected(self) -> bool:
        return True

    async def assign(self, partitions: Collection[Partition]) -> None:
        """Works on these partitions from now on and on no others; those that it works on already go on where they are.

        Raises:
            CoordinationError: The offsets cannot be read; everything stays as it is.
        """
        new = [each for each in partitions if each not in self.held]
        recorded = {} if self._coordinator is None else await self._coordinator.offsets(new)
        await self._give_up([row for partition, row in self.held.items() if partition not in partitions])
        rows = [OwnedPartition(each, OwnedOffset(each, recorded.get(each, CommittedOffset()), 0)) for each in new]
        self.held = {row.partition: row for row in (*self.held.values(), *rows) if row.partition in partitions}
        await self._owner.assigned(rows)

    async def _send(self, requests: list[Request]) -> Mapping[Partition, OwnedOffset | None]:
        # As the group's offsets: the last commit wins. A member that owns one of the partitions makes it fail.
        if self._coordinator is None:
            return await super()._send(requests)
        await self._coordinator.set_offsets({held.partition: offset for held, offset in requests})
        now = time.time()
        return {
            held.partition: OwnedOffset(held.partition, CommittedOffset(offset, now), 0) for held, offset in requests
        }

    def rejoin(self) -> None: ...

    async def stop(self, within: float | None = None) -> None:
        """Works on nothing any more; see :meth:`qdo.consumer.rebalance.group_member.GroupMember.stop`."""
        await self._give_up(list(self.held.values()), within)
        self.held = {}

    async def _give_up(self, rows: list[OwnedPartition], within: float | None = None) -> None:
        """Stops the owner and lets it commit what it still wants to."""
        for row in rows:
            row.state = "revoking"
        self._owner.stop(rows)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.revoke_timeout if within is None else within):
                await asyncio.gather(*map(self._owner.revoke, rows))
        for row in rows:
            row.state = "lost"
