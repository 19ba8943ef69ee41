"""A session of ZooKeeper that belongs to the program, which has made the client and stops it."""

from __future__ import annotations

from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState, KeeperState

from qdo.coordination.tree import State
from qdo.coordination.zookeeper.driver.requests import ClientLink
from qdo.errors import CoordinationError, SessionLost

CLOSED = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)


class BorrowedLink(ClientLink):
    """The session that a client of kazoo has when the link is opened.

    Opening waits until the client is connected, as long as that takes, and may be repeated to wait for a connection
    that broke. It raises SessionLost if the client was stopped or never started. Closing leaves the session and its
    nodes as they are.

    Kazoo begins another session by itself when one has ended. The link is lost then and never uses it, but a request
    that is under way at that moment may be sent under it: what must not happen there needs a check of a node of the
    first one.

    Args:
        client: A ``KazooClient`` with kazoo's own handler of threads.
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
        return float(self._client._session_timeout) / 1000  # noqa: SLF001 - kazoo tells it in no other way

    @property
    def finished(self) -> bool:
        return self._state == "lost"

    async def open(self) -> None:
        first = self._state == "new"
        if first:
            self._client.add_listener(self._listen)
        self._look_again()
        await self._settled.wait()
        if self._error is not None:
            raise self._error
        if first and self._client.chroot:
            await self._ask([partial(self._client.ensure_path_async, "/")])

    async def close(self) -> None:
        if self._state != "lost":
            self._finish(SessionLost("the session was given back"))
        self._client.remove_listener(self._listen)

    def end(self, why: CoordinationError) -> None:
        if self._state != "lost":
            self._finish(why)
            self._client.remove_listener(self._listen)
            self.on_state("lost")

    def _listen(self, state: str) -> None:
        """Called by kazoo, in its thread and before it does anything else."""
        self._inbox.put(partial(self._turn, state, self.session))

    def _turn(self, state: str, session: int) -> None:
        """``session``: of the link when the client came to this state; 0 before the first."""
        if state == KazooState.LOST and session:
            self.end(SessionLost(self.ENDED))
        elif state == KazooState.SUSPENDED and session and self._state != "lost":
            self._become("suspended")  # Watches are gone, even if the client is connected again by now.
        else:
            self._look_again()

    def _look_again(self) -> None:
        identity = self._client.client_id
        if self._state == "lost":
            return
        if self._client.client_state in CLOSED or (identity is not None and self.session not in {0, identity[0]}):
            self.end(SessionLost(self.ENDED))
        elif identity is not None:
            self.session = identity[0]
            self._become("connected")
        elif self.session:
            self._become("suspended")
