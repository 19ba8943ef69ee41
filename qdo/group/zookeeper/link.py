"""ZooKeeper sessions on an event loop: Qdo's own, and the session of a kazoo client that the program owns.

A :class:`ZooKeeperLink` that is lost while disconnected keeps trying to connect, only to close the session: otherwise
its nodes would stay until the session expires.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import ssl
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from qdo.errors import CoordinationError, CoordinationLost, CoordinationRefused, SessionLost
from qdo.group.vitals import Vitals
from qdo.group.zookeeper import relay
from qdo.group.zookeeper.connection_options import ConnectionOptions, SaslLogin
from qdo.group.zookeeper.handler import CLOSE_TIMEOUT, Handler, SessionLease
from qdo.group.zookeeper.requests import ClientLink
from qdo.group.zookeeper.tree import State

MAX_CONNECT_PAUSE = 0.5
"""Max pause between two connection attempts, in seconds; kazoo's default is up to an hour."""
LEASE_CHECKS_PER_TIMEOUT = 4

log = logging.getLogger("qdo.zookeeper")
# At DEBUG, kazoo logs its requests, including passwords.
log.setLevel(logging.INFO)


class ZooKeeperLink(ClientLink):
    """A link to ZooKeeper servers with a session of its own.

    Args:
        access: How to connect.
        context: The TLS context, or None for connections without encryption.
        max_blocked_seconds: See :class:`qdo.group.zookeeper.tree.Link`.
    """

    ENDED = "the session has ended: other members may own its partitions now"

    def __init__(
        self, access: ConnectionOptions, context: ssl.SSLContext | None = None, max_blocked_seconds: float = 0.0
    ) -> None:
        super().__init__(max_blocked_seconds)
        self._access = access
        self._vitals = Vitals.create(max_blocked_seconds) if max_blocked_seconds else None
        self._lease = SessionLease(access.session_timeout, vitals=self._vitals)
        self._handler = Handler(
            self._lease, context, keep=self._start_relay if max_blocked_seconds else None, hangs=self._is_loop_blocked
        )
        self._client = self._make_client()
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._stopped: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _start_relay(self, server: socket.socket, host: str) -> socket.socket:
        assert self._vitals is not None  # noqa: S101 - only used with vitals
        return relay.start_relay(self._vitals, server, host, self._access.tls, self._handler.patience)

    def _is_loop_blocked(self) -> bool:
        vitals = self._vitals
        return vitals is not None and self.session != 0 and vitals.idle_seconds > max(vitals.limit, self._lease.timeout)

    def _make_client(self) -> Any:  # noqa: ANN401 - kazoo has no types
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
            default_acl=CREATOR_ALL_ACL if access.nodes_are_private else None,
            randomize_hosts=access.shuffle,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, max_delay=min(MAX_CONNECT_PAUSE, access.session_timeout / 8)
            ),
            logger=log,
            **options,
        )
        client.add_listener(self._listen)
        return client

    # The state: kazoo's thread reports changes, and the loop applies them.

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
                await self._wait_for_login()
        except TimeoutError as error:
            await self.close()
            trouble = f": {self._handler.last_error}" if self._handler.last_error else ""
            raise CoordinationLost(f"ZooKeeper at {self._access.hosts} does not answer{trouble}") from error
        except SessionLost as error:
            await self.close()
            raise CoordinationLost("the session ended before it began") from error
        except BaseException:
            await self.close()
            raise

    async def _wait_for_login(self) -> None:
        """Waits for the first answer, because kazoo sends credentials after it reports the connection."""
        while True:
            try:
                await self.stat([self._access.chroot or "/"])
                break
            except CoordinationLost:
                if self.state == "connected":
                    raise
                await self.wait()  # If the server refused the credentials, kazoo reports that a moment later.

    async def close(self) -> None:
        self._end_as_lost(SessionLost("the session was ended"))
        self._retire()
        await self._wait_until_stopped()

    async def abandon(self) -> None:
        self._end_as_lost(SessionLost("the session was ended"))
        self._stop()
        await self._wait_until_stopped()

    @property
    def finished(self) -> bool:
        return self._stopped is not None and self._stopped.done()

    def end(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._end_as_lost(why)
            self._retire()
            self.on_state("lost")

    def _listen(self, state: str) -> None:
        """Refuses connections after LOST, so that kazoo starts no second session; the loop handles the state later.

        Called by kazoo in its thread, before kazoo does anything else.
        """
        if state == KazooState.LOST:
            self._handler.over = True
        refused = self._client.client_state == KeeperState.AUTH_FAILED
        self._inbox.put(partial(self._handle_state, state, refused=refused))

    def _handle_state(self, state: str, *, refused: bool) -> None:
        if self._state == "lost":
            self._retire()
        elif state == KazooState.LOST:
            self.end(
                CoordinationRefused("ZooKeeper does not accept the credentials") if refused else SessionLost(self.ENDED)
            )
        elif self._lease.lapsed:
            self.end(SessionLost(self.ENDED))
        elif state == KazooState.SUSPENDED:
            self._set_state("suspended")
        else:
            self._connect()

    def _connect(self) -> None:
        identity = self._client.client_id
        if identity is None:
            return  # disconnected again: kazoo reports that next
        if self.session and identity[0] != self.session:
            self.end(SessionLost(self.ENDED))
            return
        if self._vitals is not None:
            self._vitals.beat()
        self.session = identity[0]
        if not self._begun.done():
            self._begun.set_result(None)
        self._set_state("connected")
        self._refresh_state()

    def _refresh_state(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._state == "lost":
            return
        if self._lease.lapsed:
            self.end(SessionLost(self.ENDED))
            return
        if self._vitals is not None:
            self._vitals.beat()
        wait = min(self._lease.timeout / LEASE_CHECKS_PER_TIMEOUT, self._lease.remaining + 0.001)
        self._timer = self._loop.call_later(wait, self._refresh_state)

    def _end_as_lost(self, why: CoordinationError) -> None:
        if self._state == "lost":
            return
        super()._end_as_lost(why)
        if self._timer is not None:
            self._timer.cancel()
        if not self._begun.done():
            self._begun.set_exception(why)
            self._begun.exception()  # marks it as retrieved if nobody waits

    def _retire(self) -> None:
        """Starts to stop the client, unless it is disconnected from a session that it can still end later."""
        if self._client.connected or self._handler.over or not self.session:
            self._stop()

    def _stop(self) -> None:
        if self._stopped is None:
            self._stopped = self._loop.create_future()
            self._handler.spawn(self._stop_client, self._stopped)

    async def _wait_until_stopped(self) -> None:
        if self._stopped is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._stopped), CLOSE_TIMEOUT + 1)

    def _leave_at_exit(self) -> None:
        if os.getpid() == self._process:
            self._end_client()

    def _end_client(self) -> None:
        for step in (self._client.stop, self._client.close):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - closing goes on with the next step
                log.info("closing: %r", error)

    def _stop_client(self, stopped: asyncio.Future[None]) -> None:
        """Runs in a new thread, because kazoo waits for the thread that reads the connection."""
        self._end_client()
        if self._vitals is not None:
            self._vitals.close()
        atexit.unregister(self._leave_at_exit)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(stopped.set_result, None)


CLOSED_STATES = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)


class BorrowedLink(ClientLink):
    """The session that an existing kazoo client has when the link is opened.

    Opening waits until the client is connected, without a timeout. Call it again to wait for a broken connection. It
    raises SessionLost if the client was stopped or never started. Closing the link leaves the session and its nodes
    unchanged.

    Kazoo reports changes of watched nodes and answers in two threads, so their order is not defined here.

    Kazoo starts another session by itself when one has ended. The link is lost then and never uses the new session. But
    a request in flight at that moment may be sent under it. If that must not happen, the request needs a check of a
    node of the first session.

    Args:
        client: A ``KazooClient`` with kazoo's own threading handler.
    """

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - kazoo has no types
        super().__init__(0.0)
        self._client: KazooClient = client

    @property
    def state(self) -> State:
        if self._state in {"new", "lost"}:
            return self._state
        identity = self._client.client_id
        if identity is None:
            return "suspended"
        return self._state if identity[0] == self.session else "lost"

    @property
    def timeout(self) -> float:
        return float(self._client._session_timeout) / 1000  # noqa: SLF001 - kazoo has no public attribute for it

    @property
    def finished(self) -> bool:
        return self._state == "lost"

    async def open(self) -> None:
        first = self._state == "new"
        if first:
            self._client.add_listener(self._listen)
        self._refresh_state()
        await self._settled.wait()
        if self._error is not None:
            raise self._error
        if first and self._client.chroot:
            await self._request_all([partial(self._client.ensure_path_async, "/")])

    async def close(self) -> None:
        if self._state != "lost":
            self._end_as_lost(SessionLost("the link to the session was closed"))
        self._client.remove_listener(self._listen)

    def end(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._end_as_lost(why)
            self._client.remove_listener(self._listen)
            self.on_state("lost")

    def _listen(self, state: str) -> None:
        """Lets the loop handle the state. Called by kazoo in its thread, before kazoo does anything else."""
        self._inbox.put(partial(self._handle_state, state, self.session))

    def _handle_state(self, state: str, session: int) -> None:
        """Applies the client's state. ``session`` is that of the link when kazoo reported it, or 0 before it began."""
        if state == KazooState.LOST and session:
            self.end(SessionLost(self.ENDED))
        elif state == KazooState.SUSPENDED and session and self._state != "lost":
            self._set_state("suspended")  # Watches are lost, even if the client is connected again by now.
        else:
            self._refresh_state()

    def _refresh_state(self) -> None:
        identity = self._client.client_id
        if self._state == "lost":
            return
        if self._client.client_state in CLOSED_STATES or (
            identity is not None and self.session not in {0, identity[0]}
        ):
            self.end(SessionLost(self.ENDED))
        elif identity is not None:
            self.session = identity[0]
            self._set_state("connected")
        elif self.session:
            self._set_state("suspended")
