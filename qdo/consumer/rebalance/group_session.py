"""One session of a member in a group, from joining until it is lost or left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from qdo.consumer.rebalance.debounce import RebalanceDebounce
from qdo.consumer.rebalance.member_states import ComputedPlan, LeaderView, decide_as_leader, partition_changes
from qdo.consumer.rebalance.partition_table import Owner, PartitionTable, cancel
from qdo.consumer.rebalance.session_options import SessionEvents, SessionOptions
from qdo.coordination import Session
from qdo.errors import CoordinationError, CoordinationIncompatible, CoordinationRefused, SessionLost
from qdo.partitions import Partition, Queue
from qdo.subscriptions import Subscription

log = logging.getLogger(__name__)

SOON = 0.1
"""Seconds that a member has to give up everything before it tells the others that it is leaving."""


class QueueLookup(Protocol):
    """Looks queues up for a member that leads, and has it look again when it has found something else."""

    @property
    def own(self) -> Subscription:
        """What the member itself wants."""

    @property
    def found(self) -> Mapping[Queue, int] | None:
        """The queues that are there, with their partitions; None: that is not known yet."""

    def look_up(self, wanted: Collection[Subscription]) -> None:
        """Says what members want; nothing: the member does not lead. Costs nothing when it says the same again."""


class GroupSession:
    """Looks, decides and acts for as long as one session lasts.

    Args:
        session: The session.
        events: What the session reports.
        owner: Who works on the partitions.
        options: How to behave.
        queues: Looks queues up while the member leads.

    Attributes:
        table: Its partitions.
    """

    def __init__(
        self,
        session: Session,
        events: SessionEvents,
        owner: Owner,
        options: SessionOptions,
        queues: QueueLookup,
    ) -> None:
        self.table = PartitionTable(session, owner, options, events)
        self._session = session
        self._owner = owner
        self._events = events
        self._options = options
        self._queues = queues
        self._claiming: asyncio.Task[None] | None = None
        self._claim_again = False
        self._failed_claims = 0
        self._settling = RebalanceDebounce(options.settle)
        self._planned: ComputedPlan | None = None

    @property
    def connected(self) -> bool:
        """Whether the session is: it may know that it is in doubt before it says so."""
        return not self._events.suspended and self._session.state == "connected"

    async def run(self) -> bool:
        """Takes part in the group until the session is lost, or it is to be left; returns whether it is lost."""
        looking = asyncio.create_task(self._recheck_on_change())
        looking.add_done_callback(self._events.ended)
        try:
            await self._events.over.wait()
        finally:
            await cancel(looking)
        return self._events.lost.is_set()

    async def abandon(self) -> None:
        """Gives up what is left, tells the owner that it is lost, and ends the session if it has not ended."""
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
        """Tells the others that it leaves, so that what it gives up goes on while it finishes the rest.

        Whoever is done soon just leaves: then nobody tries to take what is not free yet.
        """
        if not await self.table.until_given_up(SOON):
            with contextlib.suppress(CoordinationError):
                await self._session.retire()

    async def _recheck_on_change(self) -> None:
        """Looks whenever something may have changed.

        Raises:
            SessionLost
        """
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
                # Who is to own what is not for us to know any more, so nothing can be kept.
                log.exception("all partitions are released: the group uses a newer format. Upgrade this program")
                self.table.give_up(self.table.states)
            except CoordinationError as error:
                self._notify_refusal(error)
                failures += 1
                log.log(logging.DEBUG if failures > 1 else logging.WARNING, "looking again: %s", error)
                await self._events.sleep(self._options.pause(failures))
                continue
            recheck = self._options.recheck * (0.5 + self._options.draw() / 2)
            try:
                async with asyncio.timeout(recheck if wait is None else min(wait, recheck)):
                    await self._events.changed.wait()
            except TimeoutError:
                continue

    async def _check_once(self) -> float | None:
        """Looks once and acts; returns after how many seconds to look again even if nothing changes.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        todo = partition_changes(await self._session.assignment(), self.table.states)
        self.table.give_up(todo.give_up)
        self._claim(todo.claim)
        if await self._session.lead():
            try:
                return await self._lead()
            except CoordinationIncompatible:
                # The others go on with what they have; who can read everything may lead when this session ends.
                log.exception("no assignment is made: the group uses a newer format. Upgrade this program")
                return None
        self._planned = None
        self._queues.look_up(())
        return None

    async def _lead(self) -> float | None:
        """Sets the target if it is not right.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        target = await self._session.target()
        members = await self._session.members()
        self._queues.look_up({member.wants for member in members.values()})
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
        self._planned = orders.planned
        if orders.target is not None:
            await self._session.set_target(orders.target, target.version)
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
        """Takes partitions.

        Raises:
            SessionLost
        """
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
        """Tells the owner of what will not pass by itself."""
        if isinstance(error, CoordinationRefused):
            self._owner.refused(error)

    async def _leave(self) -> None:
        """Leaves, and waits for it, but not for ever."""
        leaving = asyncio.create_task(self._session.leave())
        await asyncio.wait({leaving}, timeout=self._options.patience)
        if not leaving.done():
            log.warning("the session did not end in time and is abandoned")
