"""A member's session, and the thread that does a coordinator's waiting.

The thread runs the transactions, gives signs of life, and notifies members. It sleeps until there is something to do,
another process wakes it, or a sign of life is due: a third of a session after the last one, or when another member's
session ends.

When the file cannot be used, the sessions are suspended and the next sign of life is tried soon. One that is made in
time finds them alive. Otherwise they are lost when their time is over, by the clock that other members use, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import msgspec

from qdo.coordination import Event, Listen, Member, OwnedOffset, Session, Sight, TargetAssignment, Versioned
from qdo.coordination.local import transactions
from qdo.coordination.local.database import CoordinationFile, FileTransaction
from qdo.coordination.local.options import LocalOptions
from qdo.coordination.local.wakeup_socket import WakeupSocket
from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.keepalive.vitals import BEGINNING, READY, Vitals, now
from qdo.partitions import Partition

T = TypeVar("T")


class LocalSession(Session):
    """See the contract; every method is one transaction in the session thread, which keeps the session alive.

    Args:
        thread: That thread.
        key: The session's, in the file.
        where: The group's.
        member: What the member reports about itself.
        loop: The loop in which it gets events.
        listen: Called with events.
        until: When it ends without a further sign of life.

    Attributes:
        known: The state, as the thread has found it.
        seen: The counters when the member last read what they count; removed once it was notified.
    """

    def __init__(
        self,
        thread: SessionThread,
        key: int,
        where: int,
        member: Member,
        loop: asyncio.AbstractEventLoop,
        listen: Listen,
        until: float,
    ) -> None:
        self.key = key
        self.where = where
        self.until = until
        self.known: Literal["connected", "suspended", "lost"] = "connected"
        self.seen: dict[str, int] = {}
        self._thread = thread
        self._member = member
        self._loop = loop
        self._listen = listen

    @property
    def state(self) -> Literal["connected", "suspended", "lost"]:
        """See the contract. A process that was stopped is in doubt until its thread has found out."""
        return "suspended" if self.known == "connected" and now() >= self.until else self.known

    async def assignment(self) -> frozenset[Partition]:
        """See the contract."""
        target, me = (await self.target()).target, self._member.id
        return frozenset() if target is None else frozenset(each for each, who in target.owners.items() if who == me)

    async def lead(self) -> bool:
        """See the contract. Of the members of one machine it is the one whose name comes first."""
        leader = await self.leader()
        return leader is not None and leader.id == self._member.id

    async def leader(self) -> Member | None:
        """See the contract."""
        staying = [member for member in (await self.members()).values() if not member.leaving]
        return min(staying, key=lambda member: member.id, default=None)

    async def set_sight(self, sight: Sight) -> None:
        """See the contract."""
        await self._update(msgspec.structs.replace(self._member, sight=sight))

    async def retire(self) -> None:
        """See the contract."""
        await self._update(msgspec.structs.replace(self._member, leaving=True))

    async def _update(self, member: Member) -> None:
        self._member = member
        await self._ask(lambda tx: transactions.update(tx, self.key, self.where, self._member))

    async def members(self) -> dict[str, Member]:
        """See the contract."""
        return await self._see("members", lambda tx: transactions.members(tx, self.where))

    async def target(self) -> Versioned:
        """See the contract."""
        return await self._see("version", lambda tx: transactions.target(tx, self.where))

    async def set_target(self, target: TargetAssignment, version: int) -> bool:
        """See the contract."""
        return await self._ask(lambda tx: transactions.set_target(tx, self.where, target, version))

    async def claim(self, partitions: Iterable[Partition]) -> dict[Partition, OwnedOffset]:
        """See the contract."""
        asked = list(partitions)

        def work(tx: FileTransaction) -> dict[Partition, OwnedOffset]:
            held = transactions.claim(tx, self.key, self.where, asked)
            if any(partition not in held for partition in asked):
                self.saw(transactions.look(tx, self.where), "freed")
            return held

        return await self._ask(work)

    async def release(self, partitions: Iterable[Partition]) -> None:
        """See the contract."""
        given = list(partitions)
        await self._ask(lambda tx: transactions.release(tx, self.key, self.where, given))

    async def commit(self, offsets: Iterable[tuple[OwnedOffset, str | None]]) -> dict[Partition, OwnedOffset | None]:
        """See the contract."""
        given = list(offsets)
        return await self._ask(lambda tx: transactions.record_offsets(tx, self.key, self.where, self._member.id, given))

    async def leave(self) -> None:
        """See the contract."""
        with contextlib.suppress(CoordinationLost):  # the coordinator is closed, so the session has ended
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(lambda: self._thread.leave(self))))

    async def _ask(self, work: Callable[[FileTransaction], T], *, write: bool = True) -> T:
        """Runs a transaction of this session.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible
        """
        if self.known == "lost":
            raise SessionLost("the session has ended")
        return await self._thread.ask(work, session=self, write=write)

    async def _see(self, counter: str, work: Callable[[FileTransaction], T]) -> T:
        """Reads something that the member relies on until a counter changes."""

        def look(tx: FileTransaction) -> T:
            self.saw(transactions.look(tx, self.where), counter)
            return work(tx)

        return await self._ask(look, write=False)

    def saw(self, counters: transactions.GroupCounters, name: str) -> None:
        """Notes a counter that the member relies on; if it has changed without an event yet, the older one stays."""
        self.seen.setdefault(name, getattr(counters, name))

    # Called by the thread.

    def outdated(self, counters: transactions.GroupCounters) -> bool:
        """Returns whether something has changed since the member asked; says so once."""
        changed = [name for name, value in self.seen.items() if value != getattr(counters, name)]
        for name in changed:
            del self.seen[name]
        return bool(changed)

    def report(self, event: Event) -> None:
        """Sends the member an event."""
        self.call(self._listen, event)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the member's loop; does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


log = logging.getLogger(__name__)


BEATS = 3
"""Signs of life in the time of a session."""
RETRY = 0.1
"""Seconds between two tries while the file cannot be used."""
SOONEST = 0.02
"""Seconds between two signs of life at least, whenever others' sessions end."""
LOOK_EVERY = 0.05
"""Seconds between two reads of the file where processes cannot wake each other."""
HEARTBEAT_MODULE = "qdo.coordination.local.heartbeat"
"""The program that gives the signs of life while this one cannot."""
PROBES = 8
"""Other processes that a process watches; each is watched by as many."""


class SessionThread(threading.Thread):
    """The thread of one coordinator.

    Args:
        options: The settings.
        group: The group's name.

    Attributes:
        ended: Done when the thread has ended.
    """

    def __init__(self, options: LocalOptions, group: str) -> None:
        super().__init__(name=f"qdo-coordination-{group}", daemon=True)
        self.group = group
        self.ended: Future[None] = Future()
        self._timeout = options.session_timeout
        self._interval = options.session_timeout / BEATS
        self._database = CoordinationFile(options.path, patience=self._interval, sync=options.sync)
        self._wakeup_socket = WakeupSocket(options.path)
        self._sessions: dict[int, LocalSession] = {}
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()
        self._closing = False
        self._stirred = False
        self._due = 0.0
        self._pages = 0
        self._vitals: Vitals | None = None
        self._line: socket.socket | None = None
        """To the process that keeps the sessions alive while this one cannot."""
        self._waker, self._woken = socket.socketpair()
        self._waker.settimeout(0.0)
        self._woken.settimeout(0.0)

    # Called from the loop.

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job in the thread; jobs run in the order in which they came.

        Raises:
            CoordinationLost: The coordinator is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closing:
                raise CoordinationLost("coordination is closed")
            self._jobs.append((future, job))
            self._wake()
        return future

    async def ask(
        self, work: Callable[[FileTransaction], T], *, session: LocalSession | None = None, write: bool = True
    ) -> T:
        """Runs a transaction in the thread; see :meth:`run_in`.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible, and what the work raises.
        """
        return await asyncio.wrap_future(self.submit(lambda: self.run_in(work, session=session, write=write)))

    def shut(self) -> None:
        """Ends the thread after all earlier jobs. Idempotent."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough is waiting to be read
            self._waker.send(b"\0")

    # Run by the thread, as jobs.

    def begin(self) -> None:
        """Opens the file and the wakeup socket.

        Raises:
            CoordinationLost, CoordinationIncompatible
        """
        with self._database.transaction(write=False, create=True):
            pass
        self._wakeup_socket.open()
        if self._wakeup_socket.socket is not None:
            self._selector.register(self._wakeup_socket.socket, selectors.EVENT_READ)

    def join_group(
        self,
        member: Member,
        loop: asyncio.AbstractEventLoop,
        listen: Listen,
        *,
        replace: bool = False,
        outlast: float = 0.0,
    ) -> LocalSession:
        """Adds a session. A file that is gone is made anew, if no session of this process was in it.

        Args:
            member: The member that joins.
            loop: The loop in which it gets events.
            listen: Called with events.
            replace: See the contract.
            outlast: Seconds for which a helper process keeps all sessions while this one is held up.

        Raises:
            MemberExists, CoordinationLost, CoordinationIncompatible
        """
        if outlast and self._vitals is None:
            self._vitals, self._line = self._begin_keeping(Vitals.begin(outlast))
        if self._vitals is not None:
            self._vitals.ran()  # the joining member does it from there
        key, where, until = self.run_in(self._added(member, replace=replace), create=not self._sessions)
        session = self._sessions[key] = LocalSession(self, key, where, member, loop, listen, until)
        self._due = min(self._due, now() + self._interval)
        return session

    def _begin_keeping(self, vitals: Vitals) -> tuple[Vitals, socket.socket]:
        """Starts the process that gives the signs of life while this one cannot, and waits until it can.

        Raises:
            CoordinationLost: It does not begin.
        """
        try:
            line = self._start_pulse(vitals)
            line.settimeout(BEGINNING)
            if line.recv(1) != READY:
                line.close()
                raise ConnectionResetError("it ended at once")
        except OSError as error:
            vitals.close()
            raise CoordinationLost(f"a process that keeps the session alive cannot be started: {error}") from error
        return vitals, line

    def _start_pulse(self, vitals: Vitals) -> socket.socket:
        """Starts that process; returns the socket that is closed when it ends.

        Raises:
            OSError: It cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                path = str(self._database.path.absolute())
                vitals.start(HEARTBEAT_MODULE, theirs, path, self._wakeup_socket.name, str(self._timeout))
        except OSError:
            ours.close()
            raise
        return ours

    def _look_after_keeping(self, vitals: Vitals) -> None:
        """Starts that process again if it is gone; does not wait for it."""
        try:
            if self._line is not None:
                self._line.settimeout(0.0)
                if self._line.recv(len(READY)):
                    return
                self._line.close()
                self._line = None
                log.warning("the process that keeps the session in group %s has ended: another one", self.group)
            self._line = self._start_pulse(vitals)
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("the process that keeps the session in group %s cannot be started: %s", self.group, error)

    def _added(self, member: Member, *, replace: bool) -> Callable[[FileTransaction], tuple[int, int, float]]:
        def work(tx: FileTransaction) -> tuple[int, int, float]:
            joined = transactions.join(tx, self.group, member, self._wakeup_socket.name, self._timeout, replace=replace)
            return *joined, tx.now + self._timeout

        return work

    def run_in(
        self,
        work: Callable[[FileTransaction], T],
        *,
        session: LocalSession | None = None,
        write: bool = True,
        create: bool = False,
    ) -> T:
        """Runs a transaction and wakes the members that it concerns.

        Args:
            work: What to do.
            session: The session that does it.
            write: It writes.
            create: Make the file if it is gone.

        Raises:
            SessionLost: The session has ended.
            CoordinationLost, CoordinationIncompatible, and what the work raises.
        """
        if session is not None and session.known == "lost":
            raise SessionLost("the session has ended")
        others: list[str] = []
        try:
            with self._database.transaction(write=write, create=create) as tx:
                if session is not None:
                    transactions.alive(tx, session.key)
                done = work(tx)
                if tx.told is not None:
                    others = transactions.others(tx, tx.told, self._wakeup_socket.name)
        except SessionLost:
            if session is not None:
                self._lose(session)
            raise
        except CoordinationLost as error:
            self._suspend(error)
            raise
        self._database.patience = self._interval
        if tx.told is not None:
            self._wakeup_socket.ring(others)
            self._stirred = True
        return done

    def leave(self, session: LocalSession) -> None:
        """Ends a session; if the file cannot be used, it expires."""
        if self._sessions.pop(session.key, None) is not None:
            session.known = "lost"
            with contextlib.suppress(CoordinationError):
                self.run_in(lambda tx: transactions.remove(tx, session.where, [session.key]))

    # The thread.

    def run(self) -> None:
        """Works until :meth:`shut`."""
        try:
            with selectors.DefaultSelector() as self._selector:
                self._selector.register(self._woken, selectors.EVENT_READ)
                while not self._closing or self._jobs:
                    self._run_once()
        finally:
            self._end()

    def _run_once(self) -> None:
        ready = [key.fileobj for key, _ in self._selector.select(self._patience())]
        if self._woken in ready:
            self._woken.recv(4096)
        if self._wakeup_socket.socket in ready:
            self._stirred |= self._wakeup_socket.hush()
        for _ in range(len(self._jobs)):  # those that come meanwhile have their turn after the events
            future, job = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                _settle(future, job)
            self._beat_if_due()
        self._beat_if_due()
        if self._sessions and (self._stirred or self._others_wrote()):
            self._look()

    def _patience(self) -> float | None:
        """Returns for how long there is nothing to do; None: until the thread is woken."""
        if self._jobs or self._closing:
            return 0.0
        if not self._sessions:
            return None
        due = max(0.0, self._due - now())
        return due if self._wakeup_socket.socket is not None else min(due, LOOK_EVERY)

    def _others_wrote(self) -> bool:
        if self._wakeup_socket.socket is not None:
            return False
        with contextlib.suppress(CoordinationError):
            before, self._pages = self._pages, self._database.pages_changed()
            return before != self._pages
        return False

    def _beat_if_due(self) -> None:
        if self._sessions and now() >= self._due:
            self._beat()

    def _beat(self) -> None:
        if self._vitals is not None:
            self._look_after_keeping(self._vitals)
            if self._vitals.still > max(self._vitals.limit, self._timeout):
                log.error("the event loop is blocked, so the session in group %s ends", self.group)
                self._end_sessions()
                return
        where = next(iter(self._sessions.values())).where
        try:
            beat = self.run_in(lambda tx: transactions.beat(tx, where, self._wakeup_socket.name))
            self._bury(where, self._wakeup_socket.silent(self._watched(beat.others)))
        except CoordinationError as error:
            self._suspend(error)
            self._due = now() + RETRY
            for session in [session for session in self._sessions.values() if now() >= session.until]:
                self._lose(session)
            return
        self._due = now() + self._interval
        if beat.earliest is not None:
            self._due = min(self._due, max(beat.earliest + 0.001, now() + SOONEST))
        if self._vitals is not None:
            self._vitals.heard(now())
        for session in list(self._sessions.values()):
            if self._vitals is not None:
                session.call(self._vitals.ran)
            self._renew(session, beat.until.get(session.key))
        self._report_outdated(beat.seen)

    def _bury(self, where: int, dead: list[str]) -> None:
        for process in dead:
            self.run_in(functools.partial(transactions.bury, where=where, process=process))
            self._wakeup_socket.remove(process)

    def _watched(self, others: list[str]) -> list[str]:
        """Returns the processes that this one watches: those that follow its name, in a ring of all."""
        own = self._wakeup_socket.name
        return sorted(others, key=lambda other: (other < own, other))[:PROBES]

    def _renew(self, session: LocalSession, until: float | None) -> None:
        if until is None:
            self._lose(session)
            return
        before, session.until = session.until, until
        if session.known == "connected" and now() >= before:
            # Kept alive by another process while this one was held up: checks meanwhile found it in doubt.
            session.report("suspended")
            session.report("connected")
        elif session.known == "suspended":
            session.known = "connected"
            session.report("connected")

    def _look(self) -> None:
        """Notifies the members whose data is outdated."""
        self._stirred = False
        sessions_ = [session for session in self._sessions.values() if session.seen]
        if sessions_:
            with contextlib.suppress(CoordinationError):
                self._report_outdated(self.run_in(lambda tx: transactions.look(tx, sessions_[0].where), write=False))

    def _report_outdated(self, counters: transactions.GroupCounters) -> None:
        for session in self._sessions.values():
            if session.outdated(counters):
                session.report("changed")

    def _suspend(self, error: CoordinationError) -> None:
        if any(session.known == "connected" for session in self._sessions.values()):
            log.warning("Group %s is suspended: %s", self.group, error)
        self._database.patience = RETRY
        self._due = min(self._due, now() + RETRY)
        for session in self._sessions.values():
            if session.known == "connected":
                session.known = "suspended"
                session.report("suspended")

    def _lose(self, session: LocalSession) -> None:
        if self._sessions.pop(session.key, None) is not None:
            session.known = "lost"
            session.report("lost")

    def _end_sessions(self) -> None:
        sessions_ = list(self._sessions.values())
        if sessions_:
            with contextlib.suppress(CoordinationError):
                keys = [session.key for session in sessions_]
                self.run_in(lambda tx: transactions.remove(tx, sessions_[0].where, keys))
        for session in sessions_:
            self._lose(session)

    def _end(self) -> None:
        """Ends the sessions, then gives back everything."""
        with self._lock:
            self._closing = True
            left, self._jobs = self._jobs, deque()
        self._end_sessions()
        for future, _ in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(CoordinationLost("coordination is closed"))
        for each in (self._vitals, self._line):
            if each is not None:
                each.close()
        self._database.close()
        self._wakeup_socket.close()
        self._waker.close()
        self._woken.close()
        self.ended.set_result(None)


def _settle(future: Future[Any], job: Callable[[], Any]) -> None:
    """Runs a job and gives its caller the result."""
    try:
        done = job()
    except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
        future.set_exception(error)
    else:
        future.set_result(done)
