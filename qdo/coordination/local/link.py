"""One session on the tree in a file: a link for the event loop, and the thread that does its waiting.

The loop reads, because readers wait for nobody, and writes when it need not wait. Otherwise the thread writes. It also
gives signs of life: a third of a session after the last one, or when another session of the group ends. Another process
that changed nodes wakes the loop. A link begins its session when it makes an ephemeral node or watches one: until then
nothing has to be kept alive.

While the file cannot be used, the session is suspended and the thread soon tries again. A sign of life that comes in
time continues the session. Otherwise it is lost at its end, by the clock that other sessions use, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from qdo.coordination.local import nodes
from qdo.coordination.local.database import CoordinationFile, FileTransaction, LocalOptions
from qdo.coordination.local.wakeup_socket import WakeupSocket
from qdo.coordination.tree import Change, Create, Link, NodeData, Outcome, State
from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.keepalive.vitals import BEGINNING, READY, Vitals, now

T = TypeVar("T")
log = logging.getLogger(__name__)

BEATS = 3
"""Number of signs of life in the time of a session."""
RETRY = 0.1
"""Interval in seconds between two tries while the file cannot be used."""
SOONEST = 0.02
"""Min seconds between two signs of life, whenever others' sessions end."""
LOOK_EVERY = 0.05
"""Interval in seconds between two reads of the file where processes cannot wake each other."""
LOG_EVERY = 100
"""Interval in writes between two that may copy the log into the file."""
HEARTBEAT_MODULE = "qdo.coordination.local.heartbeat"
"""The program that gives the signs of life while this one cannot."""
PROBES = 8
"""Max other sessions whose processes a session watches; as many watch each."""


class LocalLink(Link):
    """A link to a file.

    Args:
        options: The settings.
        scope: Sessions of one scope wake each other, and notice when the process of one has ended: those of a group.
        may_be_watched: See :class:`nodes.NodeChanges`: others are woken then.
        outlast: See :class:`Link`.
    """

    def __init__(
        self,
        options: LocalOptions,
        scope: str,
        may_be_watched: nodes.MayBeWatched = lambda *_: True,
        outlast: float = 0.0,
    ) -> None:
        super().__init__(outlast)
        self.session = secrets.randbits(62)
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._state: State = "new"
        self._error: CoordinationError = nodes.ended()
        self._begun = False
        self._written = 0
        self._abandoned = 0
        """Number of callers that were cancelled while the thread may be doing their jobs: reads come after those."""
        self._outstanding = 0
        """Number of callers that wait for the thread."""
        self._file = CoordinationFile(options.path, patience=0.0, checkpoints=False)
        self._watches = nodes.Watches()
        self._ended = asyncio.Event()
        self._ended.set()
        self._bell = WakeupSocket(options.path, str(self.session))
        self._changes = partial(nodes.NodeChanges, session=self.session, scope=scope, may_be_watched=may_be_watched)
        self._thread = SessionThread(self, self._bell, options, scope, self._changes)

    @property
    def state(self) -> State:
        # A process that was stopped is in doubt until its thread has found out.
        return "suspended" if self._state == "connected" and now() >= self._thread.until else self._state

    @property
    def timeout(self) -> float:
        return self._options.session_timeout

    @property
    def finished(self) -> bool:
        return self._state == "lost" and self._ended.is_set()

    async def open(self) -> None:
        self._ended.clear()
        self._thread.start()
        try:
            await self._run(self._thread.open_file)
        except BaseException:
            await self.close()
            raise
        self.become("connected")

    async def close(self) -> None:
        self._finish(SessionLost("the session was ended"))
        await self._ended.wait()

    def end(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._finish(why)
            self.on_state("lost")

    def _finish(self, why: CoordinationError) -> None:
        if self._state == "lost":
            return
        self._state, self._error = "lost", why
        self._settled.set()
        if self._begun and self._bell.socket is not None:
            self._loop.remove_reader(self._bell.socket)
        self._file.close()
        self._thread.jobs.put(self._thread.shut)

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        return await self._each(nodes.read, paths, self._watches.nodes if watch else None)

    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        watcher = partial(self._watches.nodes, absent=True) if watch else None
        found = await self._each(nodes.read, paths, watcher)
        return [node and replace(node, data=b"") for node in found]

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        return await self._each(nodes.children, paths, self._watches.children if watch else None)

    async def _each(
        self,
        read: Callable[[FileTransaction, Sequence[str]], list[T]],
        paths: Iterable[str],
        watch: Callable[[FileTransaction, Sequence[str]], None] | None,
    ) -> list[T]:
        """Reads something of each path in one snapshot."""
        wanted = list(paths)

        def work(tx: FileTransaction) -> list[T]:
            if watch is not None:
                watch(tx, wanted)
            return read(tx, wanted)

        if watch is not None and not self._begun:
            await self._write(lambda _: None, begins=True)
        return await self._read(work) if wanted else []

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        return await self._apply(nodes.NodeChanges.make_in_order, list(changes))

    async def apply_each(self, changes: Iterable[Change]) -> list[Outcome]:
        return await self._apply(nodes.NodeChanges.make_each, list(changes))

    async def _apply(
        self, make: Callable[[nodes.NodeChanges, Sequence[Change]], list[Outcome]], changes: Sequence[Change]
    ) -> list[Outcome]:
        # All changes are made in one transaction of the file.
        if not changes:
            self._require()
            return []
        begins = not self._begun and any(
            isinstance(each, Create) and each.ephemeral for change in changes for each in change
        )
        return await self._write(lambda made: make(made, changes), begins=begins)

    async def sync(self, path: str) -> None:  # noqa: ARG002 - a file has no servers that lag behind
        if await self._read(nodes.dead):
            await self._write(lambda _: None)

    async def _read(self, work: Callable[[FileTransaction], T]) -> T:
        # In the loop: no process that writes keeps one that reads waiting.
        await self._catch_up()
        try:
            return self._read_now(work)
        except CoordinationLost:
            # The thread waits for the file, or finds that the session is suspended.
            await self._run(self._thread.open_file)
            return self._read_now(work)

    async def _catch_up(self) -> None:
        """Waits for jobs that the thread may be doing for callers that were cancelled."""
        self._require()
        while abandoned := self._abandoned:
            await self._run(lambda: None)
            if self._abandoned == abandoned:
                self._abandoned = 0

    def _read_now(self, work: Callable[[FileTransaction], T]) -> T:
        try:
            with self._file.transaction(write=False) as tx:
                if self._begun:
                    nodes.require(tx, self.session)
                done = work(tx)
                changed = self._watches.changed(tx)
        except SessionLost as error:
            self.end(error)
            raise
        if changed:
            self.on_watch(changed)
        return done

    def notice(self) -> None:
        """Reports watched nodes that changed; called when others, or this session, may have changed some."""
        if self._state != "lost":
            with contextlib.suppress(CoordinationError):
                self._read_now(lambda _: None)

    async def _write(self, work: Callable[[nodes.NodeChanges], T], *, begins: bool = False) -> T:
        """Runs a transaction that changes nodes, then reports watched nodes that changed before its end.

        Args:
            work: The transaction.
            begins: The session begins with it, if it has not begun.
        """
        await self._catch_up()
        written = self._write_now(work)
        if written is None:
            written = await self._run(partial(self._thread.write, work, begins=begins))
        done, last_watchable = written
        if begins and not self._begun and self._state != "lost":
            self._begun = True
            if self._bell.socket is not None:
                self._loop.add_reader(self._bell.socket, self._ring)
        if self._watches.outdated(last_watchable):
            self.notice()
        return done

    def _write_now(self, work: Callable[[nodes.NodeChanges], T]) -> tuple[T, int] | None:
        """Runs a transaction that changes nodes in the loop; None: the thread has to.

        That is when it may have to wait: for the session's beginning, earlier jobs, the file's lock, or the disk. Now
        and then a write is the thread's, because only its commits copy a long log into the file.
        """
        self._written += 1
        if not self._begun or self._outstanding or self._options.sync or not self._written % LOG_EVERY:
            return None
        try:
            with self._file.transaction() as tx:
                nodes.require(tx, self.session)
                made = self._changes(tx)
                done = made.run(work)
        except SessionLost as error:
            self.end(error)
            raise
        except CoordinationLost:
            return None
        self._bell.ring(map(str, made.woken))
        return done, made.last_watchable

    def _ring(self) -> None:
        self._bell.hush()
        self.notice()

    async def _run(self, job: Callable[[], T]) -> T:
        """Runs a job in the thread; jobs run in the order in which they came."""
        self._require()
        future: asyncio.Future[T] = self._loop.create_future()
        self._thread.jobs.put(partial(self._do, job, future))
        self._outstanding += 1
        try:
            return await future
        except SessionLost as error:
            raise self._error from error
        except asyncio.CancelledError:
            self._abandoned += 1
            raise
        finally:
            self._outstanding -= 1

    def _do(self, job: Callable[[], T], future: asyncio.Future[T]) -> None:
        """Does a job, in the thread, unless nobody waits for it."""
        if future.cancelled():
            return
        try:
            done = job()
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
            self.call(_settle, future, future.set_exception, error)
        else:
            self.call(_settle, future, future.set_result, done)

    def _require(self) -> None:
        if self._state == "lost":
            raise self._error

    # Called in the loop for the thread.

    def become(self, state: State) -> None:
        if self._state in {"lost", state}:
            return
        if state == "lost":
            self.end(nodes.ended())
            return
        self._state = state
        if state == "connected":
            self._settled.set()
        else:
            self._settled.clear()
        self.on_state(state)

    def ended(self) -> None:
        self._ended.set()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the loop, from the thread; does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _settle(future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: object) -> None:
    if not future.done():
        settle(outcome)


class SessionThread(threading.Thread):
    """The thread of one link.

    Attributes:
        jobs: To be done by the thread, in order.
        until: When the session ends without a further sign of life; never, before it has begun.
    """

    def __init__(
        self,
        link: LocalLink,
        bell: WakeupSocket,
        options: LocalOptions,
        scope: str,
        changes: Callable[[FileTransaction], nodes.NodeChanges],
    ) -> None:
        super().__init__(name=f"qdo-coordination-{scope}", daemon=True)
        self.jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.until = float("inf")
        self._link = link
        self._scope = scope
        self._changes = changes
        self._timeout = options.session_timeout
        self._interval = options.session_timeout / BEATS
        self._database = CoordinationFile(options.path, patience=self._interval, sync=options.sync)
        self._bell = bell
        self._state: State = "new"
        """Of the session: new until it has begun."""
        self._closing = False
        self._due = 0.0
        self._vitals: Vitals | None = None
        self._line: socket.socket | None = None
        """To the process that keeps the session alive while this one cannot."""

    # Jobs.

    def open_file(self) -> None:
        """Opens the file, or finds that it can be read."""
        with self._transaction(write=False, create=self._state == "new"):
            pass

    def write(self, work: Callable[[nodes.NodeChanges], T], *, begins: bool = False) -> tuple[T, int]:
        """Runs a transaction that changes nodes, and wakes the sessions that it concerns.

        Args:
            work: The transaction.
            begins: The session begins with it, if it has not begun. A file that is gone is made anew.

        Returns:
            The result, and the number of the last transaction that changed what may be watched.

        Raises:
            SessionLost: The session has ended.
            CoordinationLost, CoordinationIncompatible
        """
        begins = begins and self._state == "new"
        if begins and self._link.outlast and self._vitals is None:
            self._vitals, self._line = self._begin_keeping(Vitals.begin(self._link.outlast))
        if begins and self._bell.socket is None:
            self._bell.open()
        with self._transaction(write=True, create=begins) as tx:
            made = self._changes(tx)
            until = made.begin(self._timeout) if begins else self.until
            done = made.run(work)
        if begins:
            self.until, self._state, self._due = until, "connected", now() + self._interval
        self._bell.ring(map(str, made.woken))
        return done, made.last_watchable

    def shut(self) -> None:
        self._closing = True

    @contextlib.contextmanager
    def _transaction(self, *, write: bool, create: bool = False) -> Iterator[FileTransaction]:
        if self._state == "lost":
            raise nodes.ended()
        try:
            with self._database.transaction(write=write, create=create) as tx:
                if self._state != "new":
                    nodes.require(tx, self._link.session)
                yield tx
        except SessionLost:
            self._become("lost")
            raise
        except CoordinationLost as error:
            self._suspend(error)
            raise
        self._database.patience = self._interval

    # The thread.

    def run(self) -> None:
        try:
            while not self._closing:
                with contextlib.suppress(queue.Empty):
                    self.jobs.get(timeout=self._patience())()
                if self._kept and now() >= self._due:
                    self.beat()
                elif self._kept and self._bell.socket is None:
                    self._link.call(self._link.notice)
        finally:
            self._end()

    @property
    def _kept(self) -> bool:
        """There is a session to keep alive."""
        return self._state in {"connected", "suspended"}

    def _patience(self) -> float | None:
        """Returns for how long there is nothing to do; None: until there is a job."""
        if not self._kept:
            return None
        due = max(0.0, self._due - now())
        return due if self._bell.socket is not None else min(due, LOOK_EVERY)

    def beat(self) -> None:
        """Gives a sign of life, and removes sessions that have ended."""
        if self._vitals is not None:
            self._keep(self._vitals)
            if self._vitals.idle_seconds > max(self._vitals.limit, self._timeout):
                log.error("the event loop is blocked, so the session of %s ends", self._scope)
                self._end_session()
                self._become("lost")
                return
        try:
            (until, others), _ = self.write(self._renew)
            silent = self._bell.silent(self._watched(others))
            if silent:
                self.write(lambda made: made.remove(map(int, silent)))
        except CoordinationError as error:
            self._suspend(error)
            self._due = now() + RETRY
            if now() >= self.until:
                self._become("lost")
            return
        for name in silent:
            self._bell.remove(name)
        self._renewed(until, min(others.values(), default=None))

    def _renew(self, made: nodes.NodeChanges) -> tuple[float, dict[int, float]]:
        until = nodes.renew(made.tx, self._link.session)
        assert until is not None  # noqa: S101 - every transaction of a session that has ended is refused
        return until, nodes.others(made.tx, self._scope, self._link.session)

    def _watched(self, others: Iterable[int]) -> list[str]:
        """Returns the sessions that this one watches: those that follow its number, in a ring of all."""
        own = self._link.session
        return list(map(str, sorted(others, key=lambda other: (other < own, other))[:PROBES]))

    def _renewed(self, until: float, earliest: float | None) -> None:
        self._due = now() + self._interval
        if earliest is not None:
            self._due = min(self._due, max(earliest + 0.001, now() + SOONEST))
        if self._vitals is not None:
            self._vitals.heard(now())
            self._link.call(self._vitals.beat)
        self._link.call(self._link.notice)
        before, self.until = self.until, until
        if now() >= before:
            # Kept alive by another process while this one was held up: checks meanwhile found it in doubt.
            self._become("suspended")
        self._become("connected")

    def _become(self, state: State) -> None:
        if self._state not in {state, "lost"}:
            self._state = state
            self._link.call(self._link.become, state)

    def _suspend(self, error: CoordinationError) -> None:
        if not self._kept:
            return
        if self._state == "connected":
            log.warning("The session of %s is suspended: %s", self._scope, error)
        self._database.patience = RETRY
        self._due = min(self._due, now() + RETRY)
        self._become("suspended")

    def _end_session(self) -> None:
        with contextlib.suppress(CoordinationError):
            self.write(lambda made: made.remove([self._link.session]))

    def _end(self) -> None:
        if self._kept:
            self._end_session()
        self._become("lost")
        while not self.jobs.empty():  # all that is asked for now is refused
            self.jobs.get()()
        for each in (self._vitals, self._line, self._database, self._bell):
            if each is not None:
                each.close()
        self._link.call(self._link.ended)

    # The process that gives the signs of life while this one cannot.

    def _begin_keeping(self, vitals: Vitals) -> tuple[Vitals, socket.socket]:
        """Starts that process and waits until it is ready.

        Raises:
            CoordinationLost: It does not begin.
        """
        try:
            line = self._start_keeping(vitals)
            line.settimeout(BEGINNING)
            if line.recv(len(READY)) != READY:
                line.close()
                raise ConnectionResetError("it ended at once")
        except OSError as error:
            vitals.close()
            raise CoordinationLost(f"a process that keeps the session alive cannot be started: {error}") from error
        return vitals, line

    def _start_keeping(self, vitals: Vitals) -> socket.socket:
        path = str(self._database.path.absolute())
        return vitals.start(HEARTBEAT_MODULE, path, str(self._link.session), str(self._timeout))

    def _keep(self, vitals: Vitals) -> None:
        """Starts that process again if it is gone; does not wait for it."""
        try:
            if self._line is not None:
                self._line.settimeout(0.0)
                if self._line.recv(len(READY)):
                    return
                self._line.close()
                self._line = None
                log.warning("the process that keeps the session of %s has ended: another one", self._scope)
            self._line = self._start_keeping(vitals)
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("the process that keeps the session of %s cannot be started: %s", self._scope, error)
