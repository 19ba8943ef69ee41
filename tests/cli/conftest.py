"""A real service for the commands, which run in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from queuey.cli import main
from queuey.client import Client
from tests.commands import Run, make_runner
from tests.servers.served import Served


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all tests of commands; each makes queues of its own."""
    with Served(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with served.client() as opened:
        yield opened


@pytest.fixture
def run(served: Served, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as ``queuey <arguments>`` would."""
    for name in [name for name in os.environ if name.startswith("QUEUEY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUEY_PROFILE", str(served.profile_path))
    return make_runner("queuey", main, monkeypatch)


@pytest.fixture
def queue(client: Client) -> str:
    return client.create_queue(partitions=3).name
