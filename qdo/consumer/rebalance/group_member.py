"""Membership in a group: joins, shares out, takes and gives back, and joins again when the session was lost.

What happens when is written down in :mod:`qdo.consumer.rebalance.member_states`. One session is a
:class:`~qdo.consumer.rebalance.group_session.GroupSession`; a group is one after another, under the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from qdo.consumer.rebalance.group_session import GroupSession, QueueLookup
from qdo.consumer.rebalance.member_states import Cause, State, after
from qdo.consumer.rebalance.partition_table import OwnedPartition, Owner
from qdo.consumer.rebalance.session_options import DEFAULT_OPTIONS, SessionEvents, SessionOptions
from qdo.coordination import Coordinator, Event, HandlingNote, Member, OwnedOffset, Session
from qdo.errors import CoordinationError, CoordinationLost, MemberExists, SessionLost
from qdo.partitions import Partition

__all__ = ["GroupMember", "Owner"]

log = logging.getLogger(__name__)

JOIN_SESSIONS = 2
"""Session timeouts for which the first joining is tried: an earlier life of a static member, or of a joining whose end
was not known, is over by then."""


class GroupMember:
    """A member of a group.

    It is started and stopped once.

    Args:
        coordinator: The group.
        member: Its id, the same after a lost session.
        owner: Who works on the partitions.
        queues: Says what it subscribes to, looks queues up while it leads, and calls :meth:`recheck`.
        static: The id was chosen, and its partitions are kept for a while when it is gone.
        options: How it behaves.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        member: str,
        owner: Owner,
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

        A process that was stopped for long finds itself suspended here before its owner is told.
        """
        if self._state == "active" and self._group_session is not None and not self._group_session.connected:
            return "suspended"
        return self._state

    @property
    def connected(self) -> bool:
        """Whether it has a session that is surely alive; also while it leaves."""
        return self._state != "joining" and self._group_session is not None and self._group_session.connected

    @property
    def held(self) -> Mapping[Partition, OwnedOffset]:
        """What is owned, what is being revoked among it."""
        return {each: row.held for each, row in self.rows.items() if row.held is not None}

    @property
    def rows(self) -> Mapping[Partition, OwnedPartition]:
        """The rows of what is owned, what is being revoked among it."""
        return {} if self._group_session is None else self._group_session.table.held

    def row(self, partition: Partition) -> OwnedPartition | None:
        """Returns the row of a partition that is owned, or being revoked."""
        return None if self._group_session is None else self._group_session.table.held_row(partition)

    async def start(self) -> None:
        """Joins the group.

        Raises:
            CoordinationLost: The service was not reached, or did not answer in time.
            CoordinationIncompatible
            MemberExists: For two session timeouts another member had this name.
            SessionLost: It was stopped meanwhile.
        """
        if self._state != "new":
            raise RuntimeError("a group is started once")
        self._move("start")
        self._started = asyncio.get_running_loop().create_future()
        self._main = asyncio.create_task(self._live(self._started))
        try:
            await self._started
        except BaseException:
            await self.stop()
            raise

    async def stop(self, within: float | None = None) -> None:
        """Has everything revoked, releases each partition when it is given up, and leaves. Idempotent.

        Also while it is starting. Meanwhile the member is given nothing.

        Args:
            within: Seconds that the owner has for each partition; None: ``revoke_timeout``. Leaving takes no longer
                than that and some times ``patience``.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(within))
        await asyncio.shield(self._stopping)

    def recheck(self) -> None:
        """Has it look again, because other queues were found."""
        if self._events is not None:
            self._events.changed.set()

    def rejoin(self) -> None:
        """Hands everything back, leaves, and joins again."""
        if self._events is not None:
            self._events.over.set()

    async def commit(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records the last processed ids; returns the partitions that are not ours, for which nothing was recorded.

        Raises:
            CoordinationLost: The service did not answer for ``patience``: each was recorded or not.
            SessionLost: It ended meanwhile.
        """
        return frozenset(offsets) if self._group_session is None else await self._group_session.table.commit(offsets)

    async def note(self, partition: Partition, note: HandlingNote | None) -> bool:
        """Notes something beside a partition's offset; returns whether it is ours.

        Raises:
            CoordinationLost, SessionLost
        """
        return self._group_session is not None and await self._group_session.table.note(partition, note)

    def _move(self, cause: Cause) -> None:
        state = after(self._state, cause)
        if state != self._state:
            log.debug("%s is %s: %s", self._member, state, cause)
            self._state = state

    async def _live(self, started: asyncio.Future[None]) -> None:
        """Joins, stays, and joins again, until it is cancelled.

        Args:
            started: Told of the first joining, or of how it failed.
        """
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
        """Joins under a new session."""
        events = SessionEvents(lambda event: self._on_event(events, event))
        member = Member(self._member, self._queues.own, self._static, self._options.now())
        # Only at the first time: two that run under one name would put each other out for ever.
        replace = self._static and self._group_session is None
        joining = asyncio.create_task(self._coordinator.join(member, events, replace=replace))
        try:
            session = await asyncio.shield(joining)
        except asyncio.CancelledError:
            # It goes on: nobody would end a session that nobody knows of.
            stray = asyncio.create_task(_leave_when_joined(joining))
            self._strays.add(stray)
            stray.add_done_callback(self._strays.discard)
            raise
        self._events = events
        self._group_session = GroupSession(session, events, self._owner, self._options, self._queues)
        self._move("joined")
        if events.lost.is_set():
            self._on_event(events, "lost")
        else:
            self._on_event(events, "suspended" if events.suspended else "connected")
        return self._group_session

    def _on_event(self, events: SessionEvents, event: Event) -> None:
        """Takes note of an event of the present session, in the instant it is heard of; of others there is nothing."""
        if event == "changed" or events is not self._events:
            return
        self._move(event)
        if event == "lost":
            if self._group_session is not None:
                self._group_session.table.close()
        else:
            self._notify(suspended=event == "suspended")

    def _notify(self, *, suspended: bool) -> None:
        """Tells the owner whether the service answers, if that is news."""
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


async def _leave_when_joined(joining: asyncio.Task[Session]) -> None:
    """Ends a session that came too late."""
    try:
        session = await joining
    except (CoordinationError, MemberExists):
        return
    await session.leave()
