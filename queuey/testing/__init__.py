"""pytest fixtures for programs that use Queuey: ``pytest_plugins = ["queuey.testing"]`` in ``conftest.py``.

* ``queuey``: a client of an empty store in this process.
* ``queuey_clock``: moves the time of that store.
* ``queuey_service``: a real service in its own processes, for tests that need a socket.
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
    """The store of the session. Other fixtures create applications in it."""
    stores = TestStores(tmp_path_factory)
    yield stores
    stores.close()


@pytest.fixture(scope="session")
def queuey_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealProcess]:
    """The service of the session. ``queuey_service`` creates applications in it."""
    with RealProcess(tmp_path_factory.mktemp("queuey")) as process:
        yield process


@pytest.fixture
def queuey(queuey_stores: TestStores) -> Iterator[Client]:
    """A client of an empty store and a complete service in this process, without a socket.

    Tests share the store, but each has its own application: ``client.application``. After the test, its schedules are
    deleted, or, if it has moved the clock, the store is closed and the next test gets a new one.
    """
    service, application = queuey_stores.make_application()
    with _make_client(service, application) as client:
        yield client
    if not queuey_stores.clock.ahead:
        with _make_client(service, application) as client:  # The test may have closed its client.
            for schedule in client.schedules.list():
                client.schedules.delete(schedule.name)
    if queuey_stores.clock.ahead:
        queuey_stores.give_up()


@pytest.fixture
def queuey_clock(queuey: Client, queuey_stores: TestStores) -> Clock:
    """The clock of the store of ``queuey``. After a test that moves it, the next test gets a new store."""
    clock = queuey_stores.clock
    clock.application = queuey.application
    return clock


@pytest.fixture
def queuey_service(queuey_process: RealProcess) -> Iterator[RealService]:
    """A real service on a free port, with an empty application for this test."""
    service = queuey_process.make_application()
    yield service
    service.client.close()


def _make_client(service: EmbeddedService, application: str) -> Client:
    return Client(
        URL,
        key="",
        application=application,
        transport=SharedPool(service, application),  # type: ignore[arg-type] # as in embedded.open
    )
