"""Three servers of ZooKeeper as the coordination service of an experiment."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.harness.nemesis import inflict
from tests.harness.proxy import Proxy
from tests.qdo.contract.zookeeper import kazoo_client
from tests.qdo.faults.servers.services import Deed
from tests.servers.plugin import unique_name

if TYPE_CHECKING:
    from deploy.local import ZooKeeperEnsemble
    from deploy.local.zookeeper import ZooKeeperNode

LOOK_SECONDS = 0.05
LEADER_SECONDS = 30.0


class ZooKeeperService:
    """A chroot on an ensemble that has one fault at a time.

    Args:
        ensemble: Three servers.
        session_timeout: Session timeout in seconds.
        apart: The slots whose workers have a proxy before each server.
    """

    recovery = 6.0

    def __init__(self, ensemble: ZooKeeperEnsemble, session_timeout: float = 2.5, apart: Collection[str] = ()) -> None:
        self.session_timeout = session_timeout
        self.apart = apart
        self.faults: Mapping[str, Deed] = {
            "cut": lambda _, seconds: self._hit("pause", lambda: ensemble.nodes, seconds),
            "leader": lambda _, seconds: self._hit("kill", self._leader, seconds),
            "hush": lambda _, seconds: self._hit("pause", self._leader, seconds),
            "silence": lambda slot, seconds: inflict("silence", self._proxies[slot], seconds),
        }
        self._ensemble = ensemble
        self._hosts = ensemble.connect_string
        self._root = unique_name("faults")
        self._one = threading.Lock()
        self._proxies = {slot: [Proxy.to(host) for host in self._hosts.split(",")] for slot in apart}

    def url(self, slot: str = "") -> str:
        hosts = ",".join(proxy.address for proxy in self._proxies.get(slot, [])) or self._hosts
        return f"zookeeper://{hosts}/{self._root}?connect_timeout=20"

    def expire(self, session: str) -> None:
        """Closes the session from another client that has its number and password; ignores errors."""
        number, _, password = session.partition(":")
        # Every server may be down; then the session goes on.
        with (
            contextlib.suppress(Exception),
            kazoo_client(self._hosts, client_id=(int(number), bytes.fromhex(password))),
        ):
            """Leaving closes the session."""

    def restore(self) -> None:
        self._ensemble.restore()

    def close(self) -> None:
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.close()

    def _hit(self, kind: str, servers: Callable[[], Sequence[ZooKeeperNode]], seconds: float) -> None:
        with self._one:
            inflict(kind, servers(), seconds)

    def _leader(self) -> list[ZooKeeperNode]:
        """Returns the present leader, once the servers agree on one."""
        until = time.monotonic() + LEADER_SECONDS
        while (leader := self._ensemble.leader) is None:
            assert time.monotonic() < until, "the servers agree on no leader"
            threading.Event().wait(LOOK_SECONDS)
        return [leader]
