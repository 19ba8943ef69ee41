"""One session of ZooKeeper from its beginning to its end, for an event loop.

A link that is lost while the connection is broken goes on trying to connect, for one purpose: to close the session, so
that its nodes do not stay for longer than they must.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from qdo.coordination.changes import apply_bundled
from qdo.coordination.tree import Applied, Change, Link, NodeData, Outcome, Rejection, State
from qdo.coordination.zookeeper.connection_options import ConnectionOptions, SaslLogin
from qdo.coordination.zookeeper.driver.handler import CLOSING, Handler, PendingAnswer
from qdo.coordination.zookeeper.driver.translation import judge, send, translate
from qdo.coordination.zookeeper.lease import SessionLease
from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, SessionLost
from qdo.keepalive import relay
from qdo.keepalive.vitals import Vitals


class Inbox:
    """Filled by any thread, emptied by the loop that made it.

    Args:
        handle: Is given everything that has come, in the loop.
    """

    def __init__(self, handle: Callable[[list[Callable[[], None]]], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._items: deque[Callable[[], None]] = deque()
        self._called = False

    def put(self, item: Callable[[], None]) -> None:
        """Never waits. After the loop has ended an item is dropped, because nothing needs it."""
        self._items.append(item)
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        # Before the items are taken: a thread that adds one after the last was taken has to call again.
        self._called = False
        items = []
        while self._items:
            items.append(self._items.popleft())
        if items:
            self._handle(items)


Call: TypeAlias = Callable[[], PendingAnswer]

MOST_FLYING = 100
"""Max requests under way. Kazoo sends its thread a byte for each; the socket blocks after some 270."""
LONGEST_PAUSE = 0.5
"""Max seconds between two tries to connect; kazoo's own go up to an hour."""
LOOKS = 4
"""Number of checks of the lease in the time of a session."""

log = logging.getLogger("qdo.zookeeper")
# Below this kazoo logs what it sends, passwords too.
log.setLevel(logging.INFO)


class RequestBatch:
    """Requests of one caller that are answered together."""

    def __init__(self, calls: Sequence[Call], future: asyncio.Future[None]) -> None:
        self.answers: list[Any] = [None] * len(calls)
        self.left = len(calls)
        self.waiting = enumerate(calls)
        self.future = future

    def fail(self, error: CoordinationError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ZooKeeperLink(Link):
    """A link to servers of ZooKeeper.

    Args:
        access: How the service is reached.
        context: For encrypted connections; None: they are not.
        outlast: See :class:`Link`.
    """

    def __init__(self, access: ConnectionOptions, context: ssl.SSLContext | None = None, outlast: float = 0.0) -> None:
        super().__init__(outlast)
        self._access = access
        self._process = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._vitals = Vitals.begin(outlast) if outlast else None
        self._lease = SessionLease(access.session_timeout, vitals=self._vitals)
        self._handler = Handler(self._lease, context, keep=self._keep if outlast else None, hangs=self._hangs)
        self._client = self._make()
        self._state: State = "new"
        self._error: CoordinationError | None = None
        self._inbox = Inbox(self._handle)
        self._changed: list[str] = []
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[RequestBatch] = set()
        self._waiting: deque[RequestBatch] = deque()
        self._in_flight = 0

    def _keep(self, server: socket.socket, host: str) -> socket.socket:
        assert self._vitals is not None  # noqa: S101 - it is only called then
        return relay.begin(self._vitals, server, host, self._access.tls, self._handler.patience)

    def _hangs(self) -> bool:
        """Returns whether the event loop has stood still for longer than was agreed on."""
        vitals = self._vitals
        return vitals is not None and self.session != 0 and vitals.idle_seconds > max(vitals.limit, self._lease.timeout)

    def _make(self) -> Any:  # noqa: ANN401 - kazoo has no types
        access = self._access
        options: dict[str, Any] = {}
        if isinstance(access.login, SaslLogin):
            options["sasl_options"] = {
                "mechanism": "DIGEST-MD5",
                "username": access.login.user,
                "password": access.login.password,
            }
        elif access.login is not None:
            options["auth_data"] = [("digest", f"{access.login.user}:{access.login.password}")]
        client = KazooClient(
            ",".join(access.servers),
            timeout=access.session_timeout,
            handler=self._handler,
            default_acl=CREATOR_ALL_ACL if access.closed else None,
            randomize_hosts=access.shuffle,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, max_delay=min(LONGEST_PAUSE, access.session_timeout / 8)
            ),
            logger=log,
            **options,
        )
        client.add_listener(self._listen)
        return client

    # The state. Kazoo's thread reports it, the loop decides.

    @property
    def state(self) -> State:
        if self._state == "connected" and (self._lease.lapsed or not self._client.connected):
            return "lost" if self._lease.lapsed else "suspended"
        return "lost" if self._state == "suspended" and self._lease.lapsed else self._state

    @property
    def timeout(self) -> float:
        return self._lease.timeout

    async def open(self) -> None:
        atexit.register(self._leave_at_exit)
        self._client.start_async()
        try:
            async with asyncio.timeout(self._access.connect_timeout):
                await self._begun
                await self._presented()
        except TimeoutError as error:
            await self.close()
            trouble = f": {self._handler.trouble}" if self._handler.trouble else ""
            raise CoordinationLost(f"ZooKeeper at {self._access.hosts} does not answer{trouble}") from error
        except SessionLost as error:
            await self.close()
            raise CoordinationLost("the session ended before it began") from error
        except BaseException:
            await self.close()
            raise

    async def _presented(self) -> None:
        """Waits until a request was answered, as kazoo presents credentials after it calls itself connected."""
        while True:
            try:
                await self.look([self._access.chroot or "/"])
                break
            except CoordinationLost:
                if self.state == "connected":
                    raise
                await self.wait()  # The server may have refused them, which kazoo says a moment later.

    async def close(self) -> None:
        self._finish(SessionLost("the session was ended"))
        self._retire()
        await self._until_stopped()

    async def abandon(self) -> None:
        self._finish(SessionLost("the session was ended"))
        self._stop()
        await self._until_stopped()

    @property
    def finished(self) -> bool:
        return self._stopped is not None and self._stopped.done()

    def end(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._finish(why)
            self._retire()
            self.on_state("lost")

    def _listen(self, state: str) -> None:
        """Called by kazoo, in its thread and before it does anything else."""
        if state == KazooState.LOST:
            self._handler.over = True
        refused = self._client.client_state == KeeperState.AUTH_FAILED
        self._inbox.put(partial(self._turn, state, refused=refused))

    def _turn(self, state: str, *, refused: bool) -> None:
        if self._state == "lost":
            self._retire()
        elif state == KazooState.LOST:
            self.end(CoordinationRefused("ZooKeeper does not accept the credentials") if refused else _ended())
        elif self._lease.lapsed:
            self.end(_ended())
        elif state == KazooState.SUSPENDED:
            self._become("suspended")
        else:
            self._connect()

    def _connect(self) -> None:
        known = self._client.client_id
        if known is None:
            return  # broken again already: that is the next thing to be heard
        if self.session and known[0] != self.session:
            self.end(_ended())
            return
        if self._vitals is not None:
            self._vitals.beat()
        self.session = known[0]
        if not self._begun.done():
            self._begun.set_result(None)
        self._become("connected")
        self._look_at_lease()

    def _become(self, state: State) -> None:
        if state == "suspended":
            self._fail(CoordinationLost("the connection to ZooKeeper broke"))
            self._settled.clear()
        else:
            self._settled.set()
        if state != self._state:
            self._state = state
            self.on_state(state)

    def _look_at_lease(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._state == "lost":
            return
        if self._lease.lapsed:
            self.end(_ended())
            return
        if self._vitals is not None:
            self._vitals.beat()
        wait = min(self._lease.timeout / LOOKS, self._lease.left + 0.001)
        self._timer = self._loop.call_later(wait, self._look_at_lease)

    def _finish(self, why: CoordinationError) -> None:
        if self._state == "lost":
            return
        self._state = "lost"
        self._settled.set()
        self._error = why
        if self._timer is not None:
            self._timer.cancel()
        self._fail(why if isinstance(why, CoordinationRefused) else CoordinationLost("the session ended meanwhile"))
        if not self._begun.done():
            self._begun.set_exception(why)
            self._begun.exception()  # there may be no waiting call

    def _retire(self) -> None:
        """Stops the client now, or when the session can be closed."""
        if self._client.connected or self._handler.over or not self.session:
            self._stop()

    def _stop(self) -> None:
        if self._stopped is None:
            self._stopped = self._loop.create_future()
            self._handler.spawn(self._stop_client, self._stopped)

    async def _until_stopped(self) -> None:
        if self._stopped is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._stopped), CLOSING + 1)

    def _leave_at_exit(self) -> None:
        """Ends the session of a program that ends without closing; not in processes that were forked from it."""
        if os.getpid() == self._process:
            self._end_client()

    def _end_client(self) -> None:
        for step in (self._client.stop, self._client.close):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - whatever it is, nothing else can be done about it
                log.info("closing: %r", error)

    def _stop_client(self, stopped: asyncio.Future[None]) -> None:
        """Runs in a new thread, because kazoo waits for the one that reads the connection."""
        self._end_client()
        if self._vitals is not None:
            self._vitals.close()
        atexit.unregister(self._leave_at_exit)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(stopped.set_result, None)

    # Requests.

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        watcher = self._watched if watch else None
        answers = await self._ask([partial(self._client.get_async, path, watch=watcher) for path in paths])
        return [answer and NodeData(answer[0], *_facts(answer[1])) for answer in answers]

    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        watcher = self._watched if watch else None
        answers = await self._ask([partial(self._client.exists_async, path, watch=watcher) for path in paths])
        return [answer and NodeData(b"", *_facts(answer)) for answer in answers]

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        watcher = self._watched if watch else None
        return await self._ask([partial(self._client.get_children_async, path, watch=watcher) for path in paths])

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        answers = await self._ask([partial(send, self._client, change) for change in changes])
        return [
            answer if isinstance(answer, Rejection) else Applied(tuple(map(_version, answer))) for answer in answers
        ]

    async def apply_each(self, changes: Iterable[Change]) -> list[Outcome]:
        return await apply_bundled(self, changes)

    async def sync(self, path: str) -> None:
        await self._ask([partial(self._client.sync_async, path)])

    async def _ask(self, calls: Sequence[Call]) -> list[Any]:
        """Sends requests, at most ``MOST_FLYING`` at once, and returns all answers; None: there is no such node."""
        self._require()
        if not calls:
            return []
        batch = RequestBatch(calls, self._loop.create_future())
        self._batches.add(batch)
        try:
            self._waiting.append(batch)
            self._fill()
            await batch.future
        finally:
            self._batches.discard(batch)
        return list(_judge(batch.answers))

    def _require(self) -> None:
        if os.getpid() != self._process:
            raise CoordinationError("a connection cannot be used in a process forked after it was opened")
        state = self.state
        if state == "lost":
            self._loop.call_soon(self._look_at_lease)
            raise self._error or _ended()
        if state != "connected":
            raise CoordinationLost("ZooKeeper cannot be reached now")

    def _fill(self) -> None:
        """Sends what may be sent now, a request of each caller in turn: a commit does not wait for 1,000 claims."""
        while self._in_flight < MOST_FLYING and self._waiting:
            batch = self._waiting.popleft()
            following = None if batch.future.done() else next(batch.waiting, None)
            if following is not None:
                index, call = following
                self._waiting.append(batch)
                self._in_flight += 1
                call().rawlink(partial(self._note, batch, index))

    def _note(self, batch: RequestBatch, index: int, answer: PendingAnswer) -> None:
        # In kazoo's thread.
        self._inbox.put(partial(self._claim, batch, index, answer))

    def _claim(self, batch: RequestBatch, index: int, answer: PendingAnswer) -> None:
        self._in_flight -= 1
        batch.answers[index] = answer.value if answer.exception is None else answer.exception
        batch.left -= 1
        if not batch.left and not batch.future.done():
            batch.future.set_result(None)

    def _watched(self, event: WatchedEvent) -> None:
        # In kazoo's thread; there is no path when the connection broke.
        if event.path:
            self._inbox.put(partial(self._changed.append, event.path))

    def _handle(self, happened: list[Callable[[], None]]) -> None:
        for each in happened:
            each()
        changed, self._changed[:] = list(self._changed), []
        if changed and self._state != "lost":
            self.on_watch(changed)
        self._fill()

    def _fail(self, error: CoordinationError) -> None:
        self._waiting.clear()
        for batch in self._batches:
            batch.fail(error)


def _judge(answers: Iterable[Any]) -> Iterator[Any]:
    """Yields the answers of requests.

    Raises:
        CoordinationError: One of them was not answered.
    """
    judged = [judge(answer) for answer in answers]
    if errors := [each for each in judged if isinstance(each, Exception)]:
        raise translate(errors, len(judged) - len(errors)) from errors[0]
    yield from judged


def _facts(stat: Any) -> tuple[int, int, int]:  # noqa: ANN401 - kazoo's
    return stat.version, stat.mzxid, stat.ephemeralOwner


def _version(result: object) -> int:
    return getattr(result, "version", 0)


def _ended() -> SessionLost:
    return SessionLost("the session has ended: its partitions may be somebody else's by now")
