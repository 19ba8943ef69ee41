"""The coordination services that the suite runs on: how each is reached, broken, and what it can do.

A difference is a named capability. A test that needs one says so with ``@pytest.mark.needs(name)`` and is skipped,
visibly, where it is missing:

* ``whole``: ``set_offsets`` moves the offsets of several queues all or none as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

from qdo.coordination import Coordinator, Session

if TYPE_CHECKING:
    from tests.servers.plugin import ZooKeeper

LONG = 20.0
"""Seconds of a session that shall outlast a test, also on a machine that has much else to do."""

LONG_ENOUGH = 8.0
"""Seconds of a session that outlasts a short pause of the machine, and whose signs of life are not far apart."""


class Service(Protocol):
    """A coordination service with nothing in it, for one test."""

    @property
    def url(self) -> str:
        """What ``open_coordinator`` takes, in other processes as well."""

    @property
    def short(self) -> float:
        """Seconds of a session that a test can wait for the end of."""

    def coordinator(self, group: str = "group", *, session_timeout: float = LONG) -> Coordinator:
        """Returns a coordinator that is not open; the test closes it."""

    async def expire(self, session: Session) -> None:
        """Has the service end a session; its member hears of it later."""

    async def cut(self) -> None:
        """Makes the service unreachable for everybody in this test."""

    async def heal(self) -> None:
        """Makes it reachable again, with all that it had."""

    def unfenced(self, coordinator: Coordinator) -> contextlib.AbstractContextManager[None]:
        """Has commits through a coordinator ask neither who owns the partition nor for the offset's version."""

    async def write_target(self, group: str, data: bytes) -> None:
        """Puts bytes where a group's target is stored."""

    async def write_member(self, group: str, member: str, data: bytes) -> None:
        """Puts bytes where a live member is stored."""

    async def close(self) -> None:
        """Gives back what the service took for the test."""


@dataclass(frozen=True)
class Backend:
    """One kind of service and what it can do."""

    name: str
    capabilities: frozenset[str]
    locate: Callable[[pytest.FixtureRequest], Service]


def local_service(request: pytest.FixtureRequest) -> Service:
    """A file of its own."""
    from tests.qdo.contract.local import LocalService  # noqa: PLC0415 - only who uses it needs it

    return LocalService(request.getfixturevalue("tmp_path") / "coordination.sqlite3")


def zookeeper_service(request: pytest.FixtureRequest) -> Service:
    """A chroot of its own on the shared server."""
    from tests.qdo.contract.zookeeper import ZooKeeperService  # noqa: PLC0415 - only who uses it needs the driver

    server: ZooKeeper = request.getfixturevalue("zookeeper")
    return ZooKeeperService(server.connect_string)


BACKENDS = {
    "local": Backend("local", frozenset({"whole"}), local_service),
    "zookeeper": Backend("zookeeper", frozenset(), zookeeper_service),
}
CAPABILITIES = frozenset[str]().union(*(backend.capabilities for backend in BACKENDS.values()))
