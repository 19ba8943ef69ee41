"""Membership in a group: joins, claims and releases partitions, leads, and joins again after a lost session.

The states are described in :mod:`qdo.group.member_states`. A
:class:`~qdo.group.member.GroupSession` is one session. A member has consecutive sessions under the
same id.
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

from qdo.errors import (
    CoordinationError,
    CoordinationIncompatible,
    CoordinationLost,
    CoordinationRefused,
    InvalidArgument,
    MemberExists,
    SessionLost,
)
from qdo.group.assignment import find_reported_queues
from qdo.group.callbacks import PartitionListener
from qdo.group.member_states import (
    Cause,
    ComputedPlan,
    LeaderView,
    RebalanceDebounce,
    State,
    decide_as_leader,
    find_next_state,
    find_partition_changes,
)
from qdo.group.offsets import PartitionOwnership
from qdo.group.partition_table import Ownership, PartitionTable, Request
from qdo.group.protocol import Coordinator, Leadership, Session
from qdo.group.records import CommittedOffset, Event, Member, SessionOffset, Visibility
from qdo.group.session_events import DEFAULT_OPTIONS, SessionEvents, SessionOptions
from qdo.loops import cancel, start_task, wait_for_event
from qdo.partitions import Partition, Queue, Subscription

log = logging.getLogger(__name__)

QUICK_LEAVE_TIMEOUT = 0.1
"""Timeout for releasing everything before a leaving member announces that it leaves, in seconds."""


class QueueLookup(Protocol):
    """Looks up queues for a member, and makes the member check again when the queues have changed."""

    @property
    def own_subscription(self) -> Subscription:
        """The member's own subscription."""

    @property
    def sight(self) -> Visibility:
        """The queues that the member may see, published to other members."""

    @property
    def partition_counts(self) -> Mapping[Queue, int] | None:
        """A leader's queues and partition counts (0 if a queue does not exist); None before the first look-up."""

    def look_up(self, subscriptions: Collection[Subscription], held: AbstractSet[Queue]) -> None:
        """Starts look-ups for all members, because the member leads. Repeated calls cost nothing.

        Args:
            subscriptions: The members' subscriptions.
            held: Owned queues that no other member sees: the leader must know whether they exist.
        """

    def follow(self, leader: Visibility | None, held: AbstractSet[Queue]) -> None:
        """Starts look-ups for the member alone, because it does not lead.

        Args:
            leader: The queues that the leader may see, or None if unknown or without a leader.
            held: Queues of which the member has partitions. It reports those that the leader may not see.
        """

    def warn_of_unseen_queues(self, unseen: AbstractSet[Queue]) -> None:
        """Warns of subscribed queues that may exist, but that no member may see."""


class GroupSession:
    """One session: reads the group's state, decides and acts until the session ends."""

    def __init__(
        self,
        session: Session,
        events: SessionEvents,
        owner: PartitionListener,
        options: SessionOptions,
        queues: QueueLookup,
        sight: Visibility | None = None,
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
        checking = asyncio.create_task(self._recheck_on_change())
        checking.add_done_callback(self._events.end_if_failed)
        try:
            await self._events.over.wait()
        finally:
            await cancel(checking)
        return self._events.lost.is_set()

    async def abandon(self) -> None:
        """Ends the session at once: cancels a running claim, gives all partitions up as lost, and leaves."""
        self.table.close()
        if self._claiming is not None:
            await cancel(self._claiming)
        await self.table.abandon()
        await self._leave()

    async def finish(self, seconds: float | None = None) -> None:
        """Releases all partitions and leaves; abandons the rest if the session is lost before or meanwhile.

        Args:
            seconds: Timeout for the revocation of each partition, or None for ``revoke_timeout``.
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
        await self.table.wait_until_given_up(within + self._options.patience)
        await cancel(retiring)
        await self.abandon()

    async def _retire(self) -> None:
        """Announces that this member leaves, so that others claim its released partitions while it finishes the rest.

        A member that releases everything soon skips this: then no member tries to claim partitions that are not free
        yet.
        """
        if not await self.table.wait_until_given_up(QUICK_LEAVE_TIMEOUT):
            with contextlib.suppress(CoordinationError):
                await self._session.retire()

    async def _recheck_on_change(self) -> None:
        """Checks the group at each change and at intervals. Gives up all partitions if the group has a newer format."""
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
                log.exception("all partitions are released: the group uses a newer format. Upgrade this program")
                self.table.give_up(self.table.states)
            except CoordinationError as error:
                self._notify_refusal(error)
                failures += 1
                log.log(logging.DEBUG if failures > 1 else logging.WARNING, "cannot check the group: %s", error)
                await self._events.sleep(self._options.pause(failures))
                continue
            recheck = self._options.recheck * (0.5 + self._options.draw() / 2)
            await wait_for_event(self._events.changed, recheck if wait is None else min(wait, recheck))

    async def _check_once(self) -> float | None:
        """Gives up and claims; leads or follows if members do so. Returns the seconds to the next check, if any."""
        todo = find_partition_changes(await self._session.assignment(), self.table.states)
        self.table.give_up(todo.give_up)
        self._start_claim(todo.claim)
        if (leadership := self._session.leadership) is None:
            return None
        if self._reported != (sight := self._queues.sight):
            self._reported = None  # If the write fails, it may have been made.
            await leadership.set_sight(sight)
            self._reported = sight
        leader = None
        try:
            if await leadership.lead():
                return await self._lead(leadership)
            leader = await leadership.leader()
        except CoordinationIncompatible as error:
            # Each member keeps its partitions. A member that can read all data may lead when the leader's session ends.
            log.warning("partitions stay with their owners until all members run the same version of Qdo: %s", error)
        self._planned = None
        held = {partition.queue for partition in self.table.states}
        self._queues.follow(None if leader is None else leader.sight, held)
        return None

    async def _lead(self, leadership: Leadership) -> float | None:
        target = await leadership.target()
        members = await leadership.members()
        if members != self._members:
            self._members, self._reports = members, find_reported_queues(members.values()).keys()
        held = set[Queue]() if target.target is None else {p.queue for p in target.target.owners}
        subscriptions = {member.wants for member in members.values()}
        self._queues.look_up(subscriptions, held - self._reports)
        queues = self._queues.partition_counts
        if queues is None:
            return None
        now = asyncio.get_running_loop().time()
        view = LeaderView(
            members=members,
            queues=queues,
            target=target.target,
            planned=self._planned,
            now=self._options.now(),
            age=self._settling.update_age((members, queues), now, has_target=target.target is not None),
            settle=self._options.settle,
            grace=self._options.grace,
        )
        decision = decide_as_leader(view)
        if decision.planned is not None and decision.planned is not self._planned:
            self._queues.warn_of_unseen_queues(decision.planned.unseen)
        self._planned = decision.planned
        if decision.target is not None:
            try:
                await leadership.set_target(decision.target, target.version)
            except InvalidArgument as error:
                log.error("all partitions stay with their owners, because the new target cannot be stored: %s", error)  # noqa: TRY400
                return decision.wait
            # Read the target again, whether it was set or not.
            self._events.changed.set()
        return decision.wait

    def _start_claim(self, partitions: frozenset[Partition]) -> None:
        if not partitions:
            return
        if self._claiming is not None:
            self._claim_again = True
            return
        self._claim_again = False
        self._claiming = asyncio.create_task(self._claim_now(partitions))
        self._claiming.add_done_callback(self._events.end_if_failed)

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
        if isinstance(error, CoordinationRefused):
            self._owner.refused(error)

    async def _leave(self) -> None:
        leaving = asyncio.create_task(self._session.leave())
        await asyncio.wait({leaving}, timeout=self._options.patience)
        if not leaving.done():
            log.warning("the session did not end in time and is abandoned")


JOIN_SESSIONS = 2
"""Number of session timeouts for which the first join is retried: by then the session of an earlier process with this
name, or of a join with an unknown outcome, has expired.
"""


class GroupMembership:
    """A member of a group. It is started and stopped once.

    Args:
        coordinator: The coordinator of the group.
        member: The member's id, kept after a lost session.
        owner: The listener that works on the partitions.
        queues: Has the member's subscription, looks up queues while it leads, and calls :meth:`recheck`.
        static: Whether the id was chosen, so that the group keeps its partitions for a while when it is gone.
        options: The member's options.

    Attributes:
        table: The partitions of the session, including those being revoked.
    """

    def __init__(
        self,
        coordinator: Coordinator,
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
        """The member's state; see :mod:`qdo.group.member_states`.

        After the process was stopped for long, it is ``suspended`` even before the listener is notified.
        """
        if self._state == "active" and not self.table.connected:
            return "suspended"
        return self._state

    async def start(self) -> None:
        """Joins the group; after an error stops the member.

        Raises:
            CoordinationLost: The service was not reached, or did not answer in time.
            CoordinationIncompatible
            MemberExists: Another member had this name for two session timeouts.
            SessionLost: The member was stopped meanwhile.
        """
        if self._state != "new":
            raise RuntimeError("a group can be started only once")
        self._change_state("start")
        self._started = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._run_sessions(self._started))
        try:
            await self._started
        except BaseException:
            await self.stop()
            raise

    async def stop(self, within: float | None = None) -> None:
        """Revokes and releases all partitions and leaves. Idempotent; may be called during the start.

        The member gets no partitions meanwhile.

        Args:
            within: Seconds that the listener has for each partition, or None for ``revoke_timeout``. Leaving takes no
                longer than this and a few times ``patience``.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(within))
        await asyncio.shield(self._stopping)

    def recheck(self) -> None:
        if self._events is not None:
            self._events.changed.set()

    def gather_commits(self, messages: int, seconds: float, listener: PartitionListener) -> None:
        listeners = (listener, *self._options.commit_listeners)
        self._options = self._options._replace(
            commit_messages=messages, commit_seconds=seconds, commit_listeners=listeners
        )

    def rejoin(self) -> None:
        if self._events is not None:
            self._events.over.set()

    def _change_state(self, cause: Cause) -> None:
        state = find_next_state(self._state, cause)
        if state != self._state:
            log.debug("%s is %s: %s", self._member, state, cause)
            self._state = state

    async def _run_sessions(self, started: asyncio.Future[None]) -> None:
        try:
            await self._coordinator.open()
            group_session = await self._join(JOIN_SESSIONS * self._coordinator.session_timeout)
        except Exception as error:  # noqa: BLE001 - start() raises it
            if not started.done():
                started.set_exception(error)
            return
        if not started.done():
            started.set_result(None)
        loop = asyncio.get_running_loop()
        short_sessions = 0
        while True:
            began = loop.time()
            if await group_session.run():
                log.warning("the session of %s was lost; joining again", self._member)
                await group_session.abandon()
            else:
                log.info("%s releases all partitions and joins again", self._member)
                await group_session.finish()
                self._change_state("lost")
            # Back off if sessions end soon after they begin.
            short_sessions = short_sessions + 1 if loop.time() - began < self._coordinator.session_timeout else 1
            await asyncio.sleep(self._options.pause(short_sessions))
            group_session = await self._join(None)

    async def _join(self, limit: float | None) -> GroupSession:
        """Joins the group, with retries.

        Args:
            limit: Seconds for which it retries, or None for no limit.

        Raises:
            CoordinationLost, MemberExists: The limit was reached.
            Exception: Any other error, at once, if there is a limit.
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
                temporary = isinstance(error, CoordinationLost | SessionLost | MemberExists)
                if deadline is not None and (not temporary or loop.time() + pause > deadline):
                    raise
                level = logging.DEBUG if failures > 1 and temporary else logging.WARNING
                log.log(level, "%s will join again: %s", self._member, error, exc_info=None if temporary else error)
            await asyncio.sleep(pause)

    async def _join_once(self) -> GroupSession:
        """Joins without retries, and makes the session the present one. If cancelled, the join goes on and is left.

        In its first session a static member replaces a live one with its name.
        """
        events = SessionEvents(lambda event: self._on_event(events, event))
        sight = self._queues.sight
        member = Member(self._member, self._queues.own_subscription, self._static, self._options.now(), sight=sight)
        # Only in the first session: otherwise two processes with one name would replace each other forever.
        replace = self._static and self._group_session is None
        joining: asyncio.Task[Session]
        joining = asyncio.create_task(self._coordinator.join(member, events.record, replace=replace))
        try:
            session = await asyncio.shield(joining)
        except asyncio.CancelledError:
            # The join continues in the background, so that its session can be ended.
            start_task(_leave_when_joined(joining), self._strays)
            raise
        self._events = events
        self._group_session = GroupSession(session, events, self._owner, self._options, self._queues, sight)
        self.table = self._group_session.table
        self._change_state("joined")
        if events.lost.is_set():
            self._on_event(events, "lost")
        else:
            self._on_event(events, "suspended" if events.suspended else "connected")
        return self._group_session

    def _on_event(self, events: SessionEvents, event: Event) -> None:
        if event == "changed" or events is not self._events:
            return
        self._change_state(event)
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
        self._change_state("stop")
        if self._main is not None:
            self._main.cancel()
            await asyncio.wait({self._main})
        if self._started is not None and not self._started.done():
            self._started.set_exception(SessionLost("the member was stopped while it joined"))
        if self._group_session is not None:
            await self._group_session.finish(within)
        if self._strays:
            await asyncio.wait(self._strays, timeout=self._options.patience)
        self._change_state("left")


async def _leave_when_joined(joining: asyncio.Task[Session]) -> None:
    try:
        session = await joining
    except (CoordinationError, MemberExists):
        return
    await session.leave()


class ManualAssignment(Ownership):
    """The partitions of a consumer without a group membership; it replaces :class:`GroupMembership`.

    Other processes do not know of this consumer, so its partitions are never lost, and others may read the same ones.

    Args:
        coordinator: The coordinator of the group whose offsets are used, or None to use and record none.
        owner: The listener that works on the partitions; notified of added and removed partitions as in a group.
        options: The revocation timeout and the commit options.

    Attributes:
        held: The partitions.
        table: This object itself, which is also the ownership.
    """

    held: Mapping[Partition, PartitionOwnership] = {}

    def __init__(self, coordinator: Coordinator | None, owner: PartitionListener, options: SessionOptions) -> None:
        super().__init__(owner, options)
        self.table = self
        self._coordinator = coordinator

    async def start(self) -> None: ...

    def recheck(self) -> None: ...

    @property
    def connected(self) -> bool:
        return True

    async def assign(self, partitions: Collection[Partition]) -> None:
        """Works only on these partitions from now on. Partitions that are kept continue at their positions.

        Raises:
            CoordinationError: The offsets cannot be read. Nothing is changed.
        """
        new = [p for p in partitions if p not in self.held]
        recorded = {} if self._coordinator is None else await self._coordinator.offsets(new)
        await self._give_up([row for partition, row in self.held.items() if partition not in partitions])
        rows = [PartitionOwnership(p, SessionOffset(p, recorded.get(p, CommittedOffset()), 0)) for p in new]
        self.held = {row.partition: row for row in (*self.held.values(), *rows) if row.partition in partitions}
        await self._owner.assigned(rows)

    async def _send(self, requests: list[Request]) -> Mapping[Partition, SessionOffset | None]:
        # Records offsets of the group: the last commit wins. It fails if a member owns one of the partitions.
        if self._coordinator is None:
            return await super()._send(requests)
        await self._coordinator.set_offsets({held.partition: offset for held, offset in requests})
        now = time.time()
        return {
            held.partition: SessionOffset(held.partition, CommittedOffset(offset, now), 0) for held, offset in requests
        }

    def rejoin(self) -> None: ...

    def gather_commits(self, *_: object) -> None:
        raise InvalidArgument("the consumer is not a member of a group: give it queues or patterns")

    async def stop(self, within: float | None = None) -> None:
        await self._give_up(list(self.held.values()), within)
        self.held = {}

    async def _give_up(self, rows: list[PartitionOwnership], within: float | None = None) -> None:
        for row in rows:
            row.state = "revoking"
        self._owner.stop(rows)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.revoke_timeout if within is None else within):
                await asyncio.gather(*map(self._owner.revoke, rows))
        for row in rows:
            row.state = "lost"
