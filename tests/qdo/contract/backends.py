"""The coordination services that the suite runs on: how each is reached and broken.

Tests of sessions, fencing, watches and names run on each. Tests of group state run once.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from qdo.group.opening import open_coordinator
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.group.zookeeper.paths import GroupPaths
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.group.zookeeper.tree import ANY_VERSION, Applied, Link, SetData

if TYPE_CHECKING:
    from tests.servers.plugin import ZooKeeper

LONG_SESSION_SECONDS = 20.0
"""Session timeout in seconds that outlasts a test, also on a busy machine."""

RESPONSIVE_SESSION_SECONDS = 8.0
"""Session timeout in seconds that outlasts a short pause of the machine, with frequent heartbeats."""


class Service(abc.ABC):
    """A coordination service with nothing in it, for one test.

    Attributes:
        url: The argument of ``open_coordinator``, also in other processes; the simulated service has none.
        root: The path of the group's parent.
        short: Session timeout in seconds that is short enough for a test to wait for.
    """

    url: str
    root: str = ""
    short: float

    def coordinator(
        self, group: str = "group", *, session_timeout: float = LONG_SESSION_SECONDS
    ) -> ZooKeeperCoordinator:
        """Returns a coordinator that is not open; the test closes it."""
        return open_coordinator(self.url, group, session_timeout=session_timeout)

    @abc.abstractmethod
    def link(self, *, session_timeout: float = LONG_SESSION_SECONDS) -> Link:
        """Returns a link that is not open."""

    @abc.abstractmethod
    async def expire(self, session: ZooKeeperSession) -> None:
        """Ends a session at the service; its member notices later."""

    @abc.abstractmethod
    async def cut(self) -> None:
        """Makes the service unreachable for the whole test."""

    @abc.abstractmethod
    async def heal(self) -> None:
        """Makes it reachable again, with all its data."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Releases the resources of the test."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Link]:
        link = self.link()
        await link.open()
        try:
            yield link
        finally:
            await link.close()

    async def write_target(self, group: str, data: bytes) -> None:
        await self.write(GroupPaths(self.root, group).target, data)

    async def write_member(self, group: str, member: str, data: bytes) -> None:
        await self.write(GroupPaths(self.root, group).member(member), data)

    async def write(self, path: str, data: bytes) -> None:
        async with self.opened() as link:
            (outcome,) = await link.apply([(SetData(path, data, ANY_VERSION),)])
        assert isinstance(outcome, Applied)


def make_zookeeper(request: pytest.FixtureRequest) -> Service:
    """Returns a service in a chroot of its own on the shared server."""
    from tests.qdo.contract.zookeeper import ZooKeeperService  # noqa: PLC0415 - needs the driver

    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return ZooKeeperService(server.connect_string)


def make_borrowed(request: pytest.FixtureRequest) -> Service:
    """Returns a service on the shared server whose links use the sessions of a program's own clients."""
    from tests.qdo.contract.zookeeper import LendingService  # noqa: PLC0415 - needs the driver

    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return LendingService(server.connect_string)


def make_simulated(_: pytest.FixtureRequest) -> Service:
    from tests.qdo.contract.simulated import SimulatedService  # noqa: PLC0415 - it needs this module

    return SimulatedService()


BACKENDS = {"simulated": make_simulated, "zookeeper": make_zookeeper}
once = pytest.mark.parametrize("backend", ["simulated"], indirect=True)
"""For tests of group state alone, which is the same on every tree that passes ``test_tree.py``: one tree is enough."""
from_outside = pytest.mark.parametrize(
    "backend", [pytest.param("zookeeper", marks=pytest.mark.needs_programs)], indirect=True
)
"""For tests with members in other processes, which cannot reach the simulated tree."""
