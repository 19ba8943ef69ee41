"""Fixtures that all rooms of the suite share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from queuey.errors import ApplicationExists
from queuey.storage import Store, bridge
from tests.backends import APP, BACKENDS, CAPABILITIES, Backend, Clock, StoreLocation
from tests.servers.processes import hear_interrupts

if TYPE_CHECKING:
    from tests.servers.plugin import Cassandra

pytest_plugins = (
    "tests.suite.watchdog",
    "tests.harness.plugin",
    "tests.suite.lanes",
    "tests.suite.needs",
    "tests.servers.plugin",
)

# A fixture is shared by all examples of a property test here on purpose: each example makes queues of its own.
# The same examples at every run: a test that fails does so because of what was changed, and again when it is repeated.
settings.register_profile(
    "quick",
    deadline=None,
    max_examples=30,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Others at every run, and many; a failure prints how to have its example again.
settings.register_profile("deep", settings.get_profile("quick"), max_examples=100, derandomize=False, print_blob=True)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
settings.load_profile(PROFILE)

SLOW_ENDS = 7200
"""Seconds after which a slow test is given up, or any of a run with many examples; the others have ``timeout`` of
pyproject.toml."""


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers by which tests name stores; readies what tests start."""
    hear_interrupts()
    config.addinivalue_line("markers", "needs(*capabilities): skipped on stores without these capabilities")
    config.addinivalue_line("markers", "slow_on(*backends): slow on these stores, where other tests cover what differs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests slow on the stores that their closest ``slow_on`` names; gives slow tests the time that they need."""
    for item in items:
        on = item.get_closest_marker("slow_on")
        if on and getattr(item, "callspec", None) and item.callspec.params.get("backend") in on.args:  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.slow)
        if PROFILE != "quick" or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(SLOW_ENDS))


@pytest.fixture(scope="session")
def contract_keyspace(cassandra: Cassandra) -> Iterator[str]:
    """The URL of a keyspace for the contract suite; each test finds it emptied."""
    from tests.servers import keyspaces  # noqa: PLC0415 - only who uses it needs the driver

    yield keyspaces.make(cassandra)
    keyspaces.close()


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn; skips what it cannot do."""
    found = BACKENDS[request.param]
    wanted = {name for mark in request.node.iter_markers("needs") for name in mark.args}
    assert wanted <= CAPABILITIES, f"no store claims to have {wanted - CAPABILITIES}"
    if missing := wanted - found.capabilities:
        pytest.skip(f"{found.name} has no {', '.join(sorted(missing))}")
    return found


@pytest.fixture
def location(backend: Backend, request: pytest.FixtureRequest) -> StoreLocation:
    """Fresh data for one test."""
    return backend.fresh_location(request)


@pytest.fixture
def clock(backend: Backend) -> Clock:
    """A clock moved by hand; a test that asks for it gets stores that run on it."""
    if "clock" not in backend.capabilities:
        pytest.skip(f"{backend.name} has no clock")
    return Clock()


@pytest.fixture
def open_store(location: StoreLocation, request: pytest.FixtureRequest) -> Iterator[Callable[[], Store]]:
    """Opens further Store objects on the test's data and closes them at its end."""
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
    """A second Store object on the same data, as another process would have it."""
    return open_store()


@pytest.fixture
def open_with_clock(location: StoreLocation) -> Iterator[Callable[[Clock], Store]]:
    """Opens Store objects on the test's data, each with a clock of its own; one application is there."""
    with contextlib.ExitStack() as opened:

        def open_one(clock: Clock) -> Store:
            store = location.open(clock)
            opened.callback(store.close)
            with contextlib.suppress(ApplicationExists):
                bridge.run(store.applications.create_application(APP))
            return store

        yield open_one
