"""A member's stay in a group: one session, from the joining until it is lost or left."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

from qdo.consumer.handover import Handover, Owner
from qdo.consumer.holdings import Holdings
from qdo.consumer.membership import Planned, View, decide
from qdo.consumer.settling import Settling
from qdo.coordination import Event, Held, Member, Session, Versioned
from qdo.errors import CoordinationError, CoordinationIncompatible, CoordinationLost, SessionLost
from qdo.partitions import Partition, Queue
from queuey.client import RetryPolicy

log = logging.getLogger(__name__)

_BACKOFF = RetryPolicy(base=0.1, cap=2.0)
"""How long to pause between attempts while the service does not answer."""


class Terms(NamedTuple):
    """How a member behaves.

    Attributes:
        settle: Seconds for which changes gather before it sets the target, when it leads; see :mod:`.settling`.
        grace: Seconds for which absent static members keep their partitions.
        revoke_timeout: Seconds after which a partition is released even if its owner is not done.
        patience: Seconds for which a commit is tried again while the service does not answer, and for which the end
            of what is under way is waited for when the group is left.
        recheck: Seconds after which it looks again although no change was heard of.
        now: The clock, seconds since 1970.
        draw: Random numbers from 0 to 1.
    """

    settle: float = 0.05
    grace: float = 0.0
    revoke_timeout: float = 30.0
    patience: float = 10.0
    recheck: float = 60.0
    now: Callable[[], float] = time.time
    draw: Callable[[], float] = random.random

    def pause(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row."""
        return _BACKOFF.pause(failures, self.draw())


class Signals:
    """What a session reports.

    Args:
        told: Told of every event, at once.

    Attributes:
        changed: There is something to look at.
        lost: The session is over.
        suspended: Nobody answers at present.
    """

    def __init__(self, told: Callable[[Event], None]) -> None:
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self.suspended = False
        self._told = told

    def __call__(self, event: Event) -> None:
        """Takes an event of the session."""
        if self.lost.is_set():
            return
        if event == "lost":
            self.lost.set()
        elif event != "changed":
            self.suspended = event == "suspended"
        self.changed.set()
        self._told(event)

    async def sleep(self, seconds: float) -> None:
        """Sleeps.

        Raises:
            SessionLost: The session ended meanwhile.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.lost.wait()
        except TimeoutError:
            return
        raise SessionLost("the session is over")


class Stay:
    """Looks, decides and acts for as long as one session lasts.

    Args:
        session: The session.
        member: What it joined as.
        signals: What the session reports.
        owner: Who works on the partitions.
        terms: How to behave.
        seen: Tells which queues the member sees now.
    """

    def __init__(
        self,
        session: Session,
        member: Member,
        signals: Signals,
        owner: Owner,
        terms: Terms,
        seen: Callable[[], Mapping[Queue, int]],
    ) -> None:
        self._session = session
        self._me = member.id
        self._published = member.queues
        self._signals = signals
        self._terms = terms
        self._seen = seen
        self._handover = Handover(owner, terms.revoke_timeout)
        self._holdings = Holdings(session, self._taken, self._gone)
        self._revocations: dict[Partition, asyncio.Task[None]] = {}
        self._taking: asyncio.Task[None] | None = None
        self._take_again = False
        self._failed_takes = 0
        self._settling = Settling(terms.settle)
        self._planned: Planned | None = None

    @property
    def holdings(self) -> Holdings:
        """What is owned."""
        return self._holdings

    @property
    def connected(self) -> bool:
        """Whether the session is: it may know that it is in doubt before it says so."""
        return not self._signals.suspended and self._session.state == "connected"

    def close(self) -> None:
        """Ends everything at once, because the session is lost: from now on nothing is held. Idempotent."""
        self._holdings.close()

    async def run(self) -> None:
        """Takes part in the group until the session is lost."""
        looking = self._start(self._look_on())
        lost = asyncio.create_task(self._signals.lost.wait())
        try:
            await asyncio.wait({lost})
        finally:
            await _cancel(looking, lost)

    async def abandon(self) -> None:
        """Gives up what is left, tells the owner that it is lost, and ends the session if it has not ended."""
        self.close()
        await _cancel(*self._revocations.values(), *([self._taking] if self._taking else []))
        self._revocations.clear()
        await self._handover.lose_all()
        await self._leave()

    async def finish(self) -> None:
        """Hands everything back and leaves; abandons it if the session is lost before or meanwhile."""
        self._revoke(self._holdings.held)
        if self._taking is not None:
            await self._unless_lost({self._taking}, self._terms.patience)
            self._revoke(self._holdings.held)
        if self._revocations:
            await self._unless_lost(set(self._revocations.values()), self._terms.revoke_timeout + self._terms.patience)
        await self.abandon()

    async def commit(self, offsets: Mapping[Partition, str]) -> frozenset[Partition]:
        """Records ids, trying again while the service does not answer; returns those that are not ours.

        Raises:
            CoordinationLost: It did not answer for long: each was recorded or not.
            SessionLost
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._terms.patience
        failures = 0
        while True:
            try:
                return await self._holdings.commit(offsets)
            except CoordinationLost:
                failures += 1
                pause = self._terms.pause(failures)
                if loop.time() + pause > deadline:
                    raise
                await self._signals.sleep(pause)
            except SessionLost:
                self._signals("lost")
                raise

    async def _look_on(self) -> None:
        """Looks whenever something may have changed.

        Raises:
            SessionLost
        """
        failures = 0
        while True:
            self._signals.changed.clear()
            wait = None
            try:
                if not self._signals.suspended:
                    wait = await self._look()
                failures = 0
            except SessionLost:
                raise
            except CoordinationIncompatible:
                # Who is to own what is not for us to know any more, so nothing can be kept.
                log.exception("everything is given up until this program is a newer one, or the group an older")
                self._revoke(self._holdings.held)
            except CoordinationError as error:
                failures += 1
                log.log(logging.DEBUG if failures > 1 else logging.WARNING, "looking again: %s", error)
                await self._signals.sleep(self._terms.pause(failures))
                continue
            recheck = self._terms.recheck * (0.5 + self._terms.draw() / 2)
            try:
                async with asyncio.timeout(recheck if wait is None else min(wait, recheck)):
                    await self._signals.changed.wait()
            except TimeoutError:
                continue

    async def _look(self) -> float | None:
        """Looks once and acts; returns after how many seconds to look again even if nothing changes.

        Raises:
            CoordinationLost, SessionLost, CoordinationIncompatible
        """
        seen = self._seen()
        if seen != self._published:
            await self._session.update(seen)
            self._published = seen
        target = await self._session.target()
        # What the target says can be done before it is known who is there.
        decision = decide(self._view(target, None))
        self._revoke(decision.revoke)
        self._take(decision.take, decision.release)
        decision = decide(self._view(target, await self._session.members()))
        self._planned = decision.planned
        if decision.target is not None:
            await self._session.set_target(decision.target, target.version)
            # Set or not: what there is now is to be read.
            self._signals.changed.set()
        return decision.wait

    def _view(self, target: Versioned, members: Mapping[str, Member] | None) -> View:
        return View(
            me=self._me,
            members=members,
            target=target,
            held=self._holdings.held.keys() - self._revocations.keys(),
            revoking=self._revocations.keys(),
            unsure=self._holdings.unsure,
            planned=self._planned,
            now=self._terms.now(),
            age=0.0 if members is None else self._age(members, target),
            settle=self._terms.settle,
            grace=self._terms.grace,
        )

    def _age(self, members: Mapping[str, Member], target: Versioned) -> float:
        now = asyncio.get_running_loop().time()
        return self._settling.age(members, now, at_work=target.target is not None)

    def _revoke(self, partitions: Iterable[Partition]) -> None:
        """Begins to give partitions back, each for itself, where that has not begun."""
        for partition in partitions:
            if partition not in self._revocations:
                self._revocations[partition] = self._start(self._give_back(partition))

    async def _give_back(self, partition: Partition) -> None:
        """Has the owner stop and releases a partition, however often that has to be tried.

        Raises:
            SessionLost
        """
        if not await self._handover.revoke(partition):
            log.warning("%s is released although its owner is not done with it", partition)
        failures = 0
        while True:
            try:
                await self._holdings.release([partition])
                break
            except SessionLost:
                raise
            except CoordinationError:
                failures += 1
                await self._signals.sleep(self._terms.pause(failures))
        del self._revocations[partition]
        self._signals.changed.set()

    def _take(self, take: frozenset[Partition], release: frozenset[Partition]) -> None:
        """Begins to take and to release partitions; one such call at a time, so what comes meanwhile waits for it."""
        if not take and not release:
            return
        if self._taking is not None:
            self._take_again = True
            return
        self._take_again = False
        self._taking = self._start(self._take_now(take, release))

    async def _take_now(self, take: frozenset[Partition], release: frozenset[Partition]) -> None:
        """Takes and releases.

        Raises:
            SessionLost
        """
        try:
            await self._holdings.release(release)
            await self._holdings.take(take)
            self._failed_takes = 0
        except SessionLost:
            raise
        except CoordinationError:
            self._failed_takes += 1
            self._take_again = True
            await self._signals.sleep(self._terms.pause(self._failed_takes))
        self._taking = None
        if self._take_again:
            self._signals.changed.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts work whose failure ends the stay."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, SessionLost):
            log.error("taking part in the group failed; its session is given up", exc_info=error)
        self._signals("lost")

    def _taken(self, new: dict[Partition, Held]) -> None:
        """Tells the owner of more partitions; the target may have given them to somebody else meanwhile."""
        self._handover.assigned(new)
        self._signals.changed.set()

    def _gone(self, partition: Partition) -> None:
        """Takes note that a partition turned out not to be ours."""
        log.warning("%s is no longer ours", partition)
        if partition not in self._revocations:
            self._handover.lose(partition)
        self._signals.changed.set()

    async def _unless_lost(self, tasks: set[asyncio.Task[None]], seconds: float) -> None:
        """Waits for tasks for a time, no longer than the session lasts."""
        lost = asyncio.create_task(self._signals.lost.wait())
        ended = asyncio.create_task(asyncio.wait(tasks))
        waited: set[asyncio.Task[Any]] = {ended, lost}
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await _cancel(ended, lost)

    async def _leave(self) -> None:
        """Leaves, and waits for it, but not for ever."""
        leaving = asyncio.create_task(self._session.leave())
        await asyncio.wait({leaving}, timeout=self._terms.patience)
        if not leaving.done():
            log.warning("the session takes long to end; it is left to itself")


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits for their end; what they raise is of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
