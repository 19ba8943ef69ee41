"""Fixtures for the tests of programs that use Queuey: ``pytest_plugins = ["queuey.testing"]`` in ``conftest.py``.

* ``queuey``: a client on an empty store in the process.
* ``queuey_clock``: moves the time of that store.
* ``queuey_service``: a real service, in processes of its own, for what has to go over a socket.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuey.client import Client
from queuey.embedded import URL
from queuey.embedded.service import EmbeddedService
from queuey.testing.clocks import Clock
from queuey.testing.real import RealProcess, RealService
from queuey.testing.stores import SharedPool, TestStores

__all__ = ["Clock", "RealService", "queuey", "queuey_clock", "queuey_service"]


@pytest.fixture(scope="session")
def queuey_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStores]:
    """The store of the session, which other fixtures make applications in."""
    stores = TestStores(tmp_path_factory)
    yield stores
    stores.close()


@pytest.fixture(scope="session")
def queuey_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProcess]:
    """The service of the session, which ``queuey_service`` makes applications in."""
    with RealProcess(tmp_path_factory.mktemp("queuey")) as process:
        yield process


@pytest.fixture
def queuey(queuey_stores: TestStores) -> Iterator[Client]:
    """A client on an empty store in this process, whose service runs like any other, without a socket.

    Tests share the store, and each has an application of its own in it: ``client.application``.
    """
    service, application = queuey_stores.application()
    with _client(service, application) as client:
        yield client
    if not queuey_stores.clock.ahead:
        with _client(service, application) as client:  # The test may have closed its own.
            for schedule in client.schedules.list():
                client.schedules.delete(schedule.name)
    if queuey_stores.clock.ahead:
        queuey_stores.give_up()


@pytest.fixture
def queuey_clock(queuey: Client, queuey_stores: TestStores) -> Clock:
    """The clock of the store of ``queuey``. A test that moves it is the last on its store."""
    clock = queuey_stores.clock
    clock.application = queuey.application
    return clock


@pytest.fixture
def queuey_service(queuey_process: RealProcess) -> Iterator[RealService]:
    """A real service on a free port, with an empty application of its own."""
    service = queuey_process.application()
    yield service
    service.client.close()


def _client(service: EmbeddedService, application: str) -> Client:
    return Client(
        URL,
        key="",
        application=application,
        transport=SharedPool(service, application),  # type: ignore[arg-type] # as for embedded.open
    )
