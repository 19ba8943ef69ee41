"""Fixtures for the whole suite."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from queuey.model.errors import ApplicationExists
from queuey.storage import Store, bridge
from tests.backends import APP, BACKENDS, CAPABILITIES, Backend, Clock, StoreLocation
from tests.servers.processes import restore_interrupts

if TYPE_CHECKING:
    from tests.servers.plugin import Cassandra

pytest_plugins = (
    "tests.suite.watchdog",
    "tests.harness.plugin",
    "tests.suite.lanes",
    "tests.suite.needs",
    "tests.servers.plugin",
)

# All examples of a property test share a fixture on purpose: each example creates queues of its own.
# Every run has the same examples: a test fails because of a change, and fails again when it is repeated.
settings.register_profile(
    "quick",
    deadline=None,
    max_examples=30,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Each run has other and more examples; a failure prints how to repeat its example.
settings.register_profile("deep", settings.get_profile("quick"), max_examples=100, derandomize=False, print_blob=True)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
settings.load_profile(PROFILE)

SLOW_ENDS = 7200
"""Timeout in seconds of slow tests, and of any test in a run with many examples. Others have the ``timeout`` of
pyproject.toml."""


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers for stores, and prepares signals for the programs that tests start."""
    restore_interrupts()
    config.addinivalue_line("markers", "needs(*capabilities): skipped on stores without these capabilities")
    config.addinivalue_line("markers", "one_app: tests of a module share an application (tests/tenants.py)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets the timeout of slow tests; outside the profile ``quick`` that of all tests."""
    for item in items:
        if PROFILE != "quick" or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_ENDS))


@pytest.fixture(scope="session")
def contract_keyspace(cassandra: Cassandra) -> Iterator[str]:
    """The URL of a keyspace for the contract suite, which :func:`location` empties for each test."""
    from tests.servers import keyspaces  # noqa: PLC0415 - most tests do not need the driver

    yield keyspaces.make(cassandra)
    keyspaces.close()


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn. Skips the test if a needed capability is missing; fails if no backend ever has it."""
    backend_ = BACKENDS[request.param]
    needed = {name for mark in request.node.iter_markers("needs") for name in mark.args}
    assert needed <= CAPABILITIES, f"no store claims to have {needed - CAPABILITIES}"
    if missing := needed - backend_.capabilities:
        pytest.skip(f"{backend_.name} has no {', '.join(sorted(missing))}")
    return backend_


@pytest.fixture
def location(backend: Backend, request: pytest.FixtureRequest) -> StoreLocation:
    """Fresh data for one test."""
    return backend.fresh_location(request)


@pytest.fixture
def clock(backend: Backend) -> Clock:
    """A clock moved by hand. A test that requests it gets stores with this clock; stores without a clock skip it."""
    if "clock" not in backend.capabilities:
        pytest.skip(f"{backend.name} has no clock")
    return Clock()


@pytest.fixture
def open_store(location: StoreLocation, request: pytest.FixtureRequest) -> Iterator[Callable[[], Store]]:
    """Returns a function that opens a Store object on the test's data, with its clock. All are closed afterwards."""
    clock = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
    with contextlib.ExitStack() as opened:

        def open_one() -> Store:
            store = location.open(clock)
            opened.callback(store.close)
            return store

        yield open_one


@pytest.fixture
def store(open_store: Callable[[], Store]) -> Store:
    """An open store with one application."""
    store = open_store()
    with contextlib.suppress(ApplicationExists):
        bridge.run(store.applications.create_application(APP))
    return store


@pytest.fixture
def other(open_store: Callable[[], Store], store: Store) -> Store:
    """A second Store object on the same data, as in another process."""
    return open_store()


@pytest.fixture
def open_with_clock(location: StoreLocation) -> Iterator[Callable[[Clock], Store]]:
    """Returns a function that opens a Store object with one application on the test's data, with a clock of its own."""
    with contextlib.ExitStack() as opened:

        def open_one(clock: Clock) -> Store:
            store = location.open(clock)
            opened.callback(store.close)
            with contextlib.suppress(ApplicationExists):
                bridge.run(store.applications.create_application(APP))
            return store

        yield open_one
