"""A real service and a group for the commands, which run in this process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from qdo.cli import main
from qdo.group.opening import open_coordinator
from qdo.group.records import Member
from qdo.group.service import ServiceCoordinator
from qdo.group.zookeeper import link as zookeeper_link
from qdo.group.zookeeper.connection_options import ConnectionOptions
from qdo.group.zookeeper.coordinator import ZooKeeperCoordinator
from qdo.loops import LoopThread
from qdo.partitions import Partition, Queue
from queuey.client import AsyncClient, Client
from queuey.client.credentials.profile import Profile
from tests.cli.conftest import client, queue, served
from tests.commands import Run, make_runner
from tests.qdo.cli.workers import Hire
from tests.replacing import replace_in
from tests.servers.plugin import unique_name
from tests.servers.served import Served, environment
from tests.sim.groups.tree import LoopHost, TreeLink, make_loop_tree

__all__ = ["client", "queue", "served"]

GROUP = "group"
Answer = TypeVar("Answer")


class Group:
    """The group of a test, on its coordination service.

    Args:
        url: The URL of the coordination service.
        store: The id of the service's store.
        name: The group's name.

    Attributes:
        variables: Environment variables of commands that use the group.
    """

    def __init__(self, url: str, store: str, name: str = GROUP) -> None:
        self.url = url
        self.store = store
        self.name = name
        self.variables = {"QDO_GROUP": name} | ({"QDO_COORDINATION": url} if url else {})

    def partition(self, queue: str, number: int) -> Partition:
        return Partition(Queue(self.store, "queuey", queue), number)

    async def coordinator(self, group: str, opened: AsyncExitStack) -> Any:  # noqa: ANN401 - either kind of coordinator
        return open_coordinator(self.url, group)

    def ask(self, question: Callable[[ZooKeeperCoordinator], Awaitable[Answer]], group: str = "") -> Answer:
        async def asked() -> Answer:
            async with AsyncExitStack() as opened:
                return await answered(await self.coordinator(group or self.name, opened))

        async def answered(coordinator: Any) -> Answer:  # noqa: ANN401 - either kind of coordinator
            await coordinator.open()
            try:
                return await question(coordinator)
            finally:
                await coordinator.close()

        return anyio.run(asked)

    def offsets(self, group: str = "") -> dict[tuple[str, int], str | None]:
        offsets = self.ask(lambda coordinator: coordinator.offsets(), group)
        return {(partition.queue.name, partition.number): offset.id for partition, offset in offsets.items()}

    def record(self, offsets: dict[Partition, str | None], group: str = "") -> None:
        self.ask(lambda coordinator: coordinator.set_offsets(offsets), group)

    @contextmanager
    def living(self, member: Member) -> Iterator[None]:
        """Joins a member, which lives in a loop of its own and leaves at the end."""
        thread = LoopThread("member")
        coordinator = open_coordinator(self.url, self.name, session_timeout=30.0)
        thread.call(coordinator.open())
        session = thread.call(coordinator.join(member, lambda _: None))
        try:
            yield
        finally:
            thread.call(session.leave())
            thread.call(coordinator.close())
            thread.stop()


class ServiceGroup(Group):
    """A group of the service with a unique name."""

    def __init__(self, profile: Profile, store: str) -> None:
        super().__init__("", store, unique_name("group"))
        self._profile = profile

    async def coordinator(self, group: str, opened: AsyncExitStack) -> ServiceCoordinator:
        client = AsyncClient(self._profile.url, key=self._profile.key)
        return ServiceCoordinator(await opened.enter_async_context(client), group)


@pytest.fixture
def group(client: Client) -> Iterator[Group]:
    """A group on ZooKeeper servers in this process, which other processes cannot reach."""
    tree, host = make_loop_tree(), LoopHost()

    def link(access: ConnectionOptions, _context: object, max_blocked_seconds: float) -> TreeLink:
        return TreeLink(tree, host, access.session_timeout, max_blocked_seconds)

    with replace_in(zookeeper_link, zookeeper_link.ZooKeeperLink, link):
        yield Group("zookeeper://simulated", client.hello().id)


@pytest.fixture
def service_group(client: Client, served: Served) -> ServiceGroup:
    return ServiceGroup(served.profile, client.hello().id)


@pytest.fixture
def run(served: Served, group: Group, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as ``qdo <arguments>`` would, for the group of the test."""
    for name in [name for name in os.environ if name.startswith(("QUEUEY_", "QDO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
    for name, value in group.variables.items():
        monkeypatch.setenv(name, value)
    return make_runner("qdo", main, monkeypatch)


@pytest.fixture
def hire(served: Served, group: Group, tmp_path: Path) -> Hire:
    return Hire(
        tmp_path, environment(QUEUEY_PROFILE=str(served.profile_path), QDO_SESSION_TIMEOUT="20", **group.variables)
    )
