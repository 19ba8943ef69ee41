"""Three servers of ZooKeeper as the coordination service of an experiment."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.qdo.contract.zookeeper import plain
from tests.servers import unique_name

if TYPE_CHECKING:
    from deploy.local import ZooKeeperEnsemble
    from deploy.local.zookeeper import ZooKeeperNode

LOOK_SECONDS = 0.05
LEADER_SECONDS = 30.0


class ZooKeeperService:
    """A chroot of its own on an ensemble that may be broken, by one fault at a time."""

    recovery = 6.0

    def __init__(self, ensemble: ZooKeeperEnsemble, session_timeout: float = 2.5) -> None:
        self.session_timeout = session_timeout
        self._ensemble = ensemble
        self._hosts = ensemble.connect_string
        self.url = f"zookeeper://{self._hosts}/{unique_name('faults')}?connect_timeout=20"
        self._one = threading.Lock()

    def expire(self, session: str) -> None:
        """Closes it as another client that has its number and password."""
        number, _, password = session.partition(":")
        # Nobody may be there to be asked; then it goes on.
        with contextlib.suppress(Exception), plain(self._hosts, client_id=(int(number), bytes.fromhex(password))):
            """Leaving closes the session."""

    def cut(self, seconds: float) -> None:
        """Stops all servers."""
        self._hush(self._ensemble.nodes, seconds)

    def kill_leader(self, seconds: float) -> None:
        """See the protocol."""
        with self._one:
            leader = self._leader()
            leader.kill()
            threading.Event().wait(seconds)
            leader.start()

    def hush_leader(self, seconds: float) -> None:
        """See the protocol."""
        self._hush([self._leader()], seconds)

    def restore(self) -> None:
        """See the protocol."""
        self._ensemble.restore()

    def _hush(self, nodes: Sequence[ZooKeeperNode], seconds: float) -> None:
        with self._one:
            for node in nodes:
                node.pause()
            threading.Event().wait(seconds)
            for node in nodes:
                node.resume()

    def _leader(self) -> ZooKeeperNode:
        until = time.monotonic() + LEADER_SECONDS
        while (leader := self._ensemble.leader) is None:
            assert time.monotonic() < until, "the servers agree on no leader"
            threading.Event().wait(LOOK_SECONDS)
        return leader
