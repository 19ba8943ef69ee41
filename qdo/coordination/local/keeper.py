"""The thread that does a coordinator's waiting: it runs the transactions, gives signs of life, and tells members.

It sleeps until there is something to do, somebody rings, or a sign of life is due: a third of a session after the last
one, or when another member's session ends.

When the file cannot be used, the sessions are suspended and the next sign of life is tried soon. One that is made in
time finds them alive. Otherwise they are lost when their time is over, by the clock by which the others count it.
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
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from qdo.coordination import Listen, Member
from qdo.coordination.local import groups, sessions
from qdo.coordination.local.bell import Bell
from qdo.coordination.local.database import Database, Transaction
from qdo.coordination.local.options import LocalOptions
from qdo.coordination.local.stay import Stay
from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.keepalive.vitals import BEGINNING, READY, Vitals, now

log = logging.getLogger(__name__)

T = TypeVar("T")

BEATS = 3
"""Signs of life in the time of a session."""
RETRY = 0.1
"""Seconds between two tries while the file cannot be used."""
SOONEST = 0.02
"""Seconds between two signs of life at least, whenever others' sessions end."""
LOOK_EVERY = 0.05
"""Seconds between two looks at the file where nobody can ring."""
PULSE = "qdo.coordination.local.pulse"
"""The program that gives the signs of life while this one cannot."""
PROBES = 8
"""Other processes that a process looks after; each has as many that look after it."""


class Keeper(threading.Thread):
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
        self._database = Database(options.path, patience=self._interval, sync=options.sync)
        self._bell = Bell(options.path)
        self._stays: dict[int, Stay] = {}
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
        """Has the thread run something; jobs run in the order in which they came.

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

    async def ask(self, work: Callable[[Transaction], T], *, stay: Stay | None = None, write: bool = True) -> T:
        """Runs a transaction in the thread; see :meth:`run_in`.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible, and what the work raises.
        """
        return await asyncio.wrap_future(self.submit(lambda: self.run_in(work, stay=stay, write=write)))

    def shut(self) -> None:
        """Has the thread end after what was asked of it before. Idempotent."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough is waiting to be read
            self._waker.send(b"\0")

    # Run by the thread, as jobs.

    def begin(self) -> None:
        """Opens the file and the bell.

        Raises:
            CoordinationLost, CoordinationIncompatible
        """
        with self._database.transaction(write=False, create=True):
            pass
        self._bell.open()
        if self._bell.socket is not None:
            self._selector.register(self._bell.socket, selectors.EVENT_READ)

    def join_group(
        self,
        member: Member,
        loop: asyncio.AbstractEventLoop,
        listen: Listen,
        *,
        replace: bool = False,
        outlast: float = 0.0,
    ) -> Stay:
        """Adds a session. A file that is gone is made anew, if nobody's session was in it.

        Args:
            member: Who joins.
            loop: Where it is told of events.
            listen: Whom to tell.
            replace: See the contract.
            outlast: Seconds for which a process of its own keeps all sessions while this one is held up.

        Raises:
            MemberExists, CoordinationLost, CoordinationIncompatible
        """
        if outlast and self._vitals is None:
            self._vitals, self._line = self._begin_keeping(Vitals.begin(outlast))
        if self._vitals is not None:
            self._vitals.ran()  # who joins does it from there
        session, where, until = self.run_in(self._added(member, replace=replace), create=not self._stays)
        stay = Stay(session, where, member, loop, listen, until)
        self._stays[session] = stay
        self._due = min(self._due, now() + self._interval)
        return stay

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
                vitals.start(PULSE, theirs, path, self._bell.name, str(self._timeout))
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
                log.warning("the process that keeps the session in group %s alive is gone: another one", self.group)
            self._line = self._start_pulse(vitals)
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("a process that keeps the session in group %s alive cannot be started: %s", self.group, error)

    def _added(self, member: Member, *, replace: bool) -> Callable[[Transaction], tuple[int, int, float]]:
        def work(tx: Transaction) -> tuple[int, int, float]:
            joined = sessions.join(tx, self.group, member, self._bell.name, self._timeout, replace=replace)
            return *joined, tx.now + self._timeout

        return work

    def run_in(
        self, work: Callable[[Transaction], T], *, stay: Stay | None = None, write: bool = True, create: bool = False
    ) -> T:
        """Runs a transaction and wakes whom it concerns.

        Args:
            work: What to do.
            stay: The session that does it.
            write: It writes.
            create: Make the file if it is gone.

        Raises:
            SessionLost: The session has ended.
            CoordinationLost, CoordinationIncompatible, and what the work raises.
        """
        if stay is not None and stay.state == "lost":
            raise SessionLost("the session has ended")
        others: list[str] = []
        try:
            with self._database.transaction(write=write, create=create) as tx:
                done = work(tx)
                if tx.told is not None:
                    others = sessions.others(tx, tx.told, self._bell.name)
        except SessionLost:
            if stay is not None:
                self._lose(stay)
            raise
        except CoordinationLost as error:
            self._suspend(error)
            raise
        self._database.patience = self._interval
        if tx.told is not None:
            self._bell.ring(others)
            self._stirred = True
        return done

    def leave(self, stay: Stay) -> None:
        """Ends a session; if the file cannot be used it ends by itself."""
        if self._stays.pop(stay.session, None) is not None:
            stay.state = "lost"
            with contextlib.suppress(CoordinationError):
                self.run_in(lambda tx: sessions.remove(tx, stay.where, [stay.session]))

    # The thread.

    def run(self) -> None:
        """Works until :meth:`shut`."""
        try:
            with selectors.DefaultSelector() as self._selector:
                self._selector.register(self._woken, selectors.EVENT_READ)
                while not self._closing or self._jobs:
                    self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        self._selector.select(self._patience())
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        self._stirred |= self._bell.hush()
        for _ in range(len(self._jobs)):  # those that come meanwhile have their turn after the events
            future, job = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                _settle(future, job)
            self._beat_if_due()
        self._beat_if_due()
        if self._stays and (self._stirred or self._others_wrote()):
            self._look()

    def _patience(self) -> float | None:
        """Returns for how long there is nothing to do; None: until somebody wakes the thread."""
        if self._jobs or self._closing:
            return 0.0
        if not self._stays:
            return None
        due = max(0.0, self._due - now())
        return due if self._bell.socket is not None else min(due, LOOK_EVERY)

    def _others_wrote(self) -> bool:
        if self._bell.socket is not None:
            return False
        with contextlib.suppress(CoordinationError):
            before, self._pages = self._pages, self._database.pages_changed()
            return before != self._pages
        return False

    def _beat_if_due(self) -> None:
        if self._stays and now() >= self._due:
            self._beat()

    def _beat(self) -> None:
        if self._vitals is not None:
            self._look_after_keeping(self._vitals)
            if self._vitals.still > max(self._vitals.limit, self._timeout):
                log.error("the event loop stands still, so the session in group %s is given up", self.group)
                self._end_sessions()
                return
        where = next(iter(self._stays.values())).where
        try:
            beat = self.run_in(lambda tx: sessions.beat(tx, where, self._bell.name))
            self._bury(where, self._bell.silent(self._watched(beat.others)))
        except CoordinationError as error:
            self._suspend(error)
            self._due = now() + RETRY
            for stay in [stay for stay in self._stays.values() if now() >= stay.until]:
                self._lose(stay)
            return
        self._due = now() + self._interval
        if beat.earliest is not None:
            self._due = min(self._due, max(beat.earliest + 0.001, now() + SOONEST))
        if self._vitals is not None:
            self._vitals.heard(now())
        for stay in list(self._stays.values()):
            if self._vitals is not None:
                stay.call(self._vitals.ran)
            self._renew(stay, beat.until.get(stay.session))
        self._tell_outdated(beat.seen)

    def _bury(self, where: int, dead: list[str]) -> None:
        for process in dead:
            self.run_in(functools.partial(sessions.bury, where=where, process=process))
            self._bell.remove(process)

    def _watched(self, others: list[str]) -> list[str]:
        """Returns the processes that this one looks after: those that follow its name, in a ring of all."""
        own = self._bell.name
        return sorted(others, key=lambda other: (other < own, other))[:PROBES]

    def _renew(self, stay: Stay, until: float | None) -> None:
        if until is None:
            self._lose(stay)
            return
        before, stay.until = stay.until, until
        if stay.state == "connected" and now() >= before:
            # Kept alive by another process while this one was held up: whoever looked meanwhile found it in doubt.
            stay.tell("suspended")
            stay.tell("connected")
        elif stay.state == "suspended":
            stay.state = "connected"
            stay.tell("connected")

    def _look(self) -> None:
        """Tells the members whose knowledge is outdated."""
        self._stirred = False
        stays = [stay for stay in self._stays.values() if stay.seen]
        if stays:
            with contextlib.suppress(CoordinationError):
                self._tell_outdated(self.run_in(lambda tx: groups.look(tx, stays[0].where), write=False))

    def _tell_outdated(self, counters: groups.Seen) -> None:
        for stay in self._stays.values():
            if stay.outdated(counters):
                stay.tell("changed")

    def _suspend(self, error: CoordinationError) -> None:
        if any(stay.state == "connected" for stay in self._stays.values()):
            log.warning("Group %s is suspended: %s", self.group, error)
        self._database.patience = RETRY
        self._due = min(self._due, now() + RETRY)
        for stay in self._stays.values():
            if stay.state == "connected":
                stay.state = "suspended"
                stay.tell("suspended")

    def _lose(self, stay: Stay) -> None:
        if self._stays.pop(stay.session, None) is not None:
            stay.state = "lost"
            stay.tell("lost")

    def _end_sessions(self) -> None:
        stays = list(self._stays.values())
        if stays:
            with contextlib.suppress(CoordinationError):
                keys = [stay.session for stay in stays]
                self.run_in(lambda tx: sessions.remove(tx, stays[0].where, keys))
        for stay in stays:
            self._lose(stay)

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
        self._bell.close()
        self._waker.close()
        self._woken.close()
        self.ended.set_result(None)


def _settle(future: Future[Any], job: Callable[[], Any]) -> None:
    """Runs a job for whoever waits for it."""
    try:
        done = job()
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
        future.set_exception(error)
    else:
        future.set_result(done)
