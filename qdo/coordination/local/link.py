"""One session on the tree in a file: a link for the event loop, and the thread that does its waiting.

The thread runs the transactions, gives signs of life, and reports changes. It sleeps until there is something to do,
another process wakes it, or a sign of life is due: a third of a session after the last one, or when another session of
the group ends. A link begins its session when it makes an ephemeral node or watches one: until then nothing has to be
kept alive, and nobody is told of it.

When the file cannot be used, the session is suspended and the next sign of life is tried soon. One that is made in
time finds it alive. Otherwise it is lost when its time is over, by the clock that other sessions use, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from qdo.coordination.local import nodes
from qdo.coordination.local.database import CoordinationFile, FileTransaction
from qdo.coordination.local.options import LocalOptions
from qdo.coordination.local.wakeup_socket import WakeupSocket
from qdo.coordination.tree import Change, Create, Link, NodeData, Operation, Outcome, State
from qdo.errors import CoordinationError, CoordinationLost, SessionLost
from qdo.keepalive.vitals import BEGINNING, READY, Vitals, now

T = TypeVar("T")
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
"""Other sessions whose processes a session watches; each is watched by as many."""


class LocalLink(Link):
    """See the contract.

    Args:
        options: The settings.
        scope: Sessions of one scope wake each other and notice each other's end: those of a group.
        may_be_watched: Returns whether a session may be watching what an operation changes: others are woken then.
        outlast: See the contract.
    """

    def __init__(
        self,
        options: LocalOptions,
        scope: str,
        may_be_watched: Callable[[Operation], bool] = lambda _: True,
        outlast: float = 0.0,
    ) -> None:
        super().__init__(outlast)
        self.session = secrets.randbits(62)
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._state: State = "new"
        self._error: CoordinationError = nodes.ended()
        self._thread = SessionThread(self, options, scope, may_be_watched)

    @property
    def state(self) -> State:
        """See the contract. A process that was stopped is in doubt until its thread has found out."""
        return "suspended" if self._state == "connected" and now() >= self._thread.until else self._state

    @property
    def timeout(self) -> float:
        """See the contract."""
        return self._options.session_timeout

    @property
    def finished(self) -> bool:
        """See the contract."""
        return self._thread.ended.done()

    async def open(self) -> None:
        """See the contract. Makes the file if there is none."""
        self._thread.start()
        try:
            await self._run(self._thread.open_file)
        except BaseException:
            await self.close()
            raise
        self.become("connected")

    async def close(self) -> None:
        """See the contract."""
        self._finish(SessionLost("the session was ended"))
        await asyncio.shield(asyncio.wrap_future(self._thread.ended))
        if self._thread.is_alive():
            self._thread.join()  # it has nothing left to do but to end

    async def abandon(self) -> None:
        """See the contract."""
        await self.close()

    def end(self, why: CoordinationError) -> None:
        """See the contract."""
        if self._state != "lost":
            self._finish(why)
            self.on_state("lost")

    def _finish(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._state, self._error = "lost", why
            self._settled.set()
        self._thread.shut()

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """See the contract."""
        return await self._each(nodes.read, paths, self._thread.watches.node if watch else None)

    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """See the contract."""
        watcher = partial(self._thread.watches.node, absent=True) if watch else None
        found = await self._each(nodes.read, paths, watcher)
        return [node and node._replace(data=b"") for node in found]

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """See the contract."""
        return await self._each(nodes.children, paths, self._thread.watches.children if watch else None)

    async def _each(
        self,
        read: Callable[[FileTransaction, str], T],
        paths: Iterable[str],
        watch: Callable[[FileTransaction, str], None] | None,
    ) -> list[T]:
        """Reads something of each path in one snapshot."""
        wanted = list(paths)

        def work(tx: FileTransaction) -> list[T]:
            if watch is not None:
                for path in wanted:
                    watch(tx, path)
            return [read(tx, path) for path in wanted]

        if watch is not None:
            await self._run(self._thread.begin)
        return await self._run(lambda: self._thread.read(work)) if wanted else []

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        """See the contract. All are made in one transaction of the file."""
        wanted = list(changes)
        if any(isinstance(each, Create) and each.ephemeral for change in wanted for each in change):
            await self._run(self._thread.begin)
        self._require()
        return await self._run(lambda: self._thread.write(lambda made: list(map(made.make, wanted)))) if wanted else []

    async def sync(self, path: str) -> None:  # noqa: ARG002 - a file has no servers that lag behind
        """See the contract."""
        await self._run(self._thread.remove_dead)

    async def _run(self, job: Callable[[], T]) -> T:
        """Runs a job in the thread."""
        self._require()
        try:
            return await asyncio.wrap_future(self._thread.submit(job))
        except SessionLost as error:
            raise self._error from error

    def _require(self) -> None:
        if self._state == "lost":
            raise self._error

    # Called in the loop for the thread.

    def become(self, state: State) -> None:
        """Changes the state, unless it is final."""
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

    def notice(self, paths: list[str]) -> None:
        """Reports watched nodes that changed."""
        if self._state != "lost":
            self.on_watch(paths)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the loop, from the thread; does nothing if the loop has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


class SessionThread(threading.Thread):
    """The thread of one link.

    Args:
        link: The link.
        options: The settings.
        scope: See the link.
        may_be_watched: See the link.

    Attributes:
        until: When the session ends without a further sign of life; never, before it has begun.
        watches: What the session watches.
        ended: Done when the thread has ended.
    """

    def __init__(
        self, link: LocalLink, options: LocalOptions, scope: str, may_be_watched: Callable[[Operation], bool]
    ) -> None:
        super().__init__(name=f"qdo-coordination-{scope}", daemon=True)
        self.until = float("inf")
        self.watches = nodes.Watches()
        self.ended: Future[None] = Future()
        self._link = link
        self._scope = scope
        self._may_be_watched = may_be_watched
        self._interval = options.session_timeout / BEATS
        self._database = CoordinationFile(options.path, patience=self._interval, sync=options.sync)
        self._wakeup_socket = WakeupSocket(options.path, str(link.session))
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()
        self._closing = False
        self._state: State = "new"
        """Of the session: new until it has begun."""
        self._stirred = False
        self._due = 0.0
        self._pages = 0
        self._vitals: Vitals | None = None
        self._line: socket.socket | None = None
        """To the process that keeps the session alive while this one cannot."""
        self._waker, self._woken = socket.socketpair()
        self._waker.settimeout(0.0)
        self._woken.settimeout(0.0)

    # Called from the loop.

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs a job in the thread; jobs run in the order in which they came.

        Raises:
            SessionLost: The link is closed.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closing:
                raise nodes.ended()
            self._jobs.append((future, job))
            self._wake()
        return future

    def shut(self) -> None:
        """Ends the session, and the thread after all earlier jobs. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._wake()
        if self.ident is None:  # the link was never opened
            self._end()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # enough is waiting to be read
            self._waker.send(b"\0")

    # Run by the thread, as jobs.

    def open_file(self) -> None:
        """Opens the file.

        Raises:
            CoordinationLost, CoordinationIncompatible
        """
        with self._database.transaction(write=False, create=True):
            pass

    def begin(self) -> None:
        """Begins the session. A file that is gone is made anew.

        Raises:
            CoordinationLost, CoordinationIncompatible
        """
        if self._state != "new":
            return
        if self._link.outlast and self._vitals is None:
            self._vitals, self._line = self._begin_keeping(Vitals.begin(self._link.outlast))
        self._wakeup_socket.open()
        if self._wakeup_socket.socket is not None:
            self._selector.register(self._wakeup_socket.socket, selectors.EVENT_READ)
        with self._transaction(write=True, create=True) as tx:
            made = nodes.NodeChanges(tx, self._link.session, self._may_be_watched)
            until = made.begin(self._scope, self._link.timeout)
        self.until, self._state, self._due = until, "connected", now() + self._interval

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
                vitals.start(HEARTBEAT_MODULE, theirs, path, str(self._link.session), str(self._link.timeout))
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
                log.warning("the process that keeps the session of %s has ended: another one", self._scope)
            self._line = self._start_pulse(vitals)
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("the process that keeps the session of %s cannot be started: %s", self._scope, error)

    def read(self, work: Callable[[FileTransaction], T]) -> T:
        """Runs a transaction that only reads.

        Raises:
            SessionLost, CoordinationLost, CoordinationIncompatible
        """
        with self._transaction(write=False) as tx:
            done = work(tx)
            changed = self.watches.changed(tx)
        self._notice(changed)
        return done

    def write(self, work: Callable[[nodes.NodeChanges], T]) -> T:
        """Runs a transaction that changes nodes, and wakes the sessions that it concerns.

        Raises:
            SessionLost: The session has ended.
            CoordinationLost, CoordinationIncompatible
        """
        others: Iterable[int] = ()
        with self._transaction(write=True) as tx:
            made = nodes.NodeChanges(tx, self._link.session, self._may_be_watched)
            made.remove(nodes.dead(tx, self._scope))
            done = work(made)
            made.finish()
            changed = self.watches.changed(tx)
            if made.watchable:
                others = nodes.others(tx, self._scope, self._link.session)
        self._wakeup_socket.ring(map(str, others))
        self._notice(changed)
        return done

    def remove_dead(self) -> None:
        """Removes sessions that have ended; writes nothing if there are none."""
        if self.read(lambda tx: nodes.dead(tx, self._scope)):
            self.write(lambda _: None)

    @contextlib.contextmanager
    def _transaction(self, *, write: bool, create: bool = False) -> Iterator[FileTransaction]:
        """Runs a transaction of the session, or of nobody before it has begun."""
        if self._state == "lost":
            raise nodes.ended()
        try:
            with self._database.transaction(write=write, create=create) as tx:
                if self._state != "new":
                    nodes.require(tx, self._link.session)
                yield tx
        except SessionLost:
            self._lose()
            raise
        except CoordinationLost as error:
            self._suspend(error)
            raise
        self._database.patience = self._interval

    def _notice(self, paths: list[str]) -> None:
        if paths:
            self._link.call(self._link.notice, paths)

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
        if self._kept and (self._stirred or self._others_wrote()):
            self._stirred = False
            with contextlib.suppress(CoordinationError):
                self.read(lambda _: None)

    @property
    def _kept(self) -> bool:
        """There is a session to keep alive."""
        return self._state in {"connected", "suspended"}

    def _patience(self) -> float | None:
        """Returns for how long there is nothing to do; None: until the thread is woken."""
        if self._jobs or self._closing:
            return 0.0
        if not self._kept:
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
        if self._kept and now() >= self._due:
            self.beat()

    def beat(self) -> None:
        """Gives a sign of life, and removes the sessions of this group that have ended."""
        if self._vitals is not None:
            self._look_after_keeping(self._vitals)
            if self._vitals.still > max(self._vitals.limit, self._link.timeout):
                log.error("the event loop is blocked, so the session of %s ends", self._scope)
                self._end_session()
                self._lose()
                return
        try:
            until, others = self.write(self._renew)
            silent = self._wakeup_socket.silent(self._watched(others))
            if silent:
                self.write(lambda made: made.remove(map(int, silent)))
        except CoordinationError as error:
            self._suspend(error)
            self._due = now() + RETRY
            if now() >= self.until:
                self._lose()
            return
        for process in silent:
            self._wakeup_socket.remove(process)
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
            self._link.call(self._vitals.ran)
        before, self.until = self.until, until
        if self._state == "connected" and now() >= before:
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

    def _lose(self) -> None:
        self._become("lost")

    def _end_session(self) -> None:
        with contextlib.suppress(CoordinationError):
            self.write(lambda made: made.remove([self._link.session]))

    def _end(self) -> None:
        """Ends the session, then gives back everything."""
        with self._lock:
            self._closing = True
            left, self._jobs = self._jobs, deque()
        if self._kept:
            self._end_session()
        self._state = "lost"
        for future, _ in left:
            if future.set_running_or_notify_cancel():
                future.set_exception(nodes.ended())
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
