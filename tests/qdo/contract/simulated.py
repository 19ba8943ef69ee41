"""The in-memory coordination service, as the suite reaches and breaks it."""

from __future__ import annotations

import asyncio

from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.session import ZooKeeperSession
from tests.qdo.contract.backends import LONG_SESSION_SECONDS, Service
from tests.qdo.contract.events import PATIENCE
from tests.sim.groups.tree import LoopHost, TreeLink, make_loop_tree


class SimulatedService(Service):
    """Servers in this process; other processes cannot reach them."""

    short = 0.6

    def __init__(self) -> None:
        self.tree = make_loop_tree()
        self.host = LoopHost()

    def coordinator(
        self, group: str = "group", *, session_timeout: float = LONG_SESSION_SECONDS
    ) -> ZooKeeperCoordinator:
        return ZooKeeperCoordinator(
            group,
            lambda max_blocked_seconds: TreeLink(self.tree, self.host, session_timeout, max_blocked_seconds),
            session_timeout,
        )

    def link(self, *, session_timeout: float = LONG_SESSION_SECONDS) -> TreeLink:
        return TreeLink(self.tree, self.host, session_timeout)

    async def expire(self, session: ZooKeeperSession) -> None:
        """Ends the session, and waits until its member is no longer connected."""
        self.tree.end(session.link.session)
        async with asyncio.timeout(PATIENCE):
            while session.state == "connected":  # noqa: ASYNC110 - only the session's listener is notified
                await asyncio.sleep(0)

    async def cut(self) -> None:
        self.host.no_tree = True
        for link in self.tree.links:
            link.cut(0.0)

    async def heal(self) -> None:
        self.host.no_tree = False

    async def close(self) -> None:
        """Nothing is running."""
