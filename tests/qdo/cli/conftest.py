"""A real service and a group for the commands, which run in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from qdo.cli import main
from qdo.coordination import Coordinator
from qdo.coordination.opening import open_coordinator
from qdo.partitions import Partition, Queue
from queuey.client import Client
from tests.commands import Run, runner
from tests.qdo.cli.workers import Hire
from tests.servers.served import Served, environment

GROUP = "group"
Answer = TypeVar("Answer")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all tests of commands; each makes queues of its own."""
    with Served(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A client of the service, to look behind the command's back."""
    with served.client() as opened:
        yield opened


@pytest.fixture
def queue(client: Client) -> str:
    """A new queue with three partitions."""
    return client.create_queue(partitions=3).name


class Group:
    """The group of a test, as its coordination service knows it.

    Args:
        url: Of the group.
        store: The id of the service's store.
    """

    def __init__(self, url: str, store: str) -> None:
        self.url = url
        self.store = store

    def partition(self, queue: str, number: int) -> Partition:
        """A partition of the service's application."""
        return Partition(Queue(self.store, "queuey", queue), number)

    def ask(self, question: Callable[[Coordinator], Awaitable[Answer]], group: str = GROUP) -> Answer:
        """Opens a coordinator for one question."""

        async def asked() -> Answer:
            coordinator = open_coordinator(self.url, group)
            await coordinator.open()
            try:
                return await question(coordinator)
            finally:
                await coordinator.close()

        return anyio.run(asked)

    def offsets(self, group: str = GROUP) -> dict[tuple[str, int], str | None]:
        """The recorded ids by queue and partition."""
        found = self.ask(lambda coordinator: coordinator.offsets(), group)
        return {(partition.queue.name, partition.number): offset.id for partition, offset in found.items()}

    def record(self, offsets: dict[Partition, str | None], group: str = GROUP) -> None:
        """Records ids."""
        self.ask(lambda coordinator: coordinator.set_offsets(offsets), group)


@pytest.fixture
def group(client: Client, tmp_path: Path) -> Group:
    """A file of the test's own."""
    return Group(f"local://{tmp_path / 'qdo.sqlite3'}", client.hello().id)


@pytest.fixture
def run(served: Served, group: Group, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as ``qdo <arguments>`` would, for the group of the test."""
    for name in [name for name in os.environ if name.startswith(("QUEUEY_", "QDO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
    monkeypatch.setenv("QDO_COORDINATION", group.url)
    monkeypatch.setenv("QDO_GROUP", GROUP)
    return runner("qdo", main, monkeypatch)


@pytest.fixture
def hire(served: Served, group: Group, tmp_path: Path) -> Hire:
    """Starts workers that belong to the test's group."""
    variables = {"QUEUEY_PROFILE": str(served.profile_path), "QDO_COORDINATION": group.url, "QDO_GROUP": GROUP}
    return Hire(tmp_path, environment(**variables, QDO_SESSION_TIMEOUT="20"))


@pytest.fixture
def qdo_status(client: Client) -> Iterator[None]:
    """The queue that the original's workers made."""
    client.create_queue("qdo_status", partitions=7)
    yield
    client.delete_queue("qdo_status")


def write_status(client: Client, name: str, processed: str, partition: int, identifier: str) -> None:
    """Writes a status message as a worker of the original did."""
    body = json.dumps({"partition": name, "processed": processed, "last_worker": "host-1"})
    client.put("qdo_status", (partition, identifier), body, ttl=2_592_000)
