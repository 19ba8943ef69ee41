"""A service that the tests of one module share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.wire import Wire
from tests.servers.served import Served

MAX_BODY = 4096
MAX_BATCH = 200_000
SLOTS = 3
OPTIONS = ["--max-body", str(MAX_BODY), "--max-batch-bytes", str(MAX_BATCH), "--wait-slots", str(SLOTS)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One service for all tests that do not stop it. It must log nothing that looks like a defect."""
    with Served(tmp_path_factory.mktemp("gateway"), OPTIONS) as running:
        yield running
        assert "Traceback" not in running.output
        assert running.end(signal.SIGTERM) == 0
        assert "Traceback" not in running.output


@pytest.fixture
def wire(served: Served) -> Iterator[Wire]:
    with Wire(served) as connection:
        yield connection


@pytest.fixture
def queue(served: Served) -> str:
    """A queue of the test's own, which the service's process has in its cache."""
    with served.client() as client:
        name = client.create_queue().name
        client.send(name, "known")
    return name
