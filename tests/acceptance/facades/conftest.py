"""A service with facades beside its own API, for all tests that do not stop it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from queuey.client import Client
from tests.acceptance.facades.calls import find_adjacent_free_ports, write_settings_file
from tests.servers.served import Served

LONG_REDELIVERY = """
[facades.emodb]
beside = true

[facades.mq]
prefix = "/mq"
redelivery = 3600

[facades.rqms]
prefix = "/rqms"
"""
"""Settings with which a message that was fetched through MQ is not delivered again during the tests."""


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The service. It must log nothing that looks like a defect."""
    directory = tmp_path_factory.mktemp("facades")
    with Served(directory, write_settings_file(directory, LONG_REDELIVERY), port=find_adjacent_free_ports()) as running:
        yield running
        assert "Traceback" not in running.output


@pytest.fixture
def native(served: Served) -> Iterator[Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def queue() -> str:
    """Name of a queue that does not exist."""
    return f"q{uuid.uuid4().hex[:12]}"
