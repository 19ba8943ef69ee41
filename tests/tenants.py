"""The application for two tenants, and its callers with different credentials: fixtures.

The ``conftest.py`` of a folder imports them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from queuey.storage.sqlite import messages
from queuey.web.admission.scheduling import FairQueue
from tests.backends import BACKENDS, Backend, prepare_sqlite
from tests.interposed_store import InterposedStore
from tests.replacing import replace, replace_in
from tests.web.caller import Caller, Tokens
from tests.web.gateway_calls import KEY, stop_all

GUEST_KEY = "f" * 64
LIMITS = Limits(max_batch=50, max_batch_bytes=1024 * 1024)

__all__ = [
    "GUEST_KEY",
    "KEY",
    "anonymous",
    "anyio_backend",
    "app",
    "backend",
    "between",
    "ended",
    "guest",
    "lasting",
    "limits",
    "owner",
    "prompt",
    "stopping",
    "store",
    "tokens",
]


@pytest.fixture(autouse=True)
def ended(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "lasting" not in request.fixturenames:
        stop_all()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def backend() -> Backend:
    """The embedded store: these tests are about HTTP, and most of them read immediately what they posted."""
    return BACKENDS["sqlite"]


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def stopping() -> threading.Event:
    return threading.Event()


@pytest.fixture
def between(store: Store) -> InterposedStore:
    return InterposedStore(store)


def make_tenants(store: Store) -> None:
    for name, key in (("queuey", KEY), ("guest", GUEST_KEY)):
        bridge.run(store.applications.create_application(name))
        bridge.run(store.applications.add_key(name, digest_of(key)))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """The application of a module with the mark ``one_app``."""
    store = prepare_sqlite(tmp_path_factory.mktemp("lasting") / "store").open()
    make_tenants(store)
    yield make_app(store, limits=LIMITS, clock=lambda: 0.0)
    stop_all()
    store.close()


def is_shared(request: pytest.FixtureRequest) -> bool:
    """Returns whether a test uses its module's application, as it changes neither store nor clock nor service."""
    marked = request.node.get_closest_marker("one_app") is not None
    return marked and not {"between", "clock", "other", "run", "stopping"} & {*request.node.fixturenames}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    if not is_shared(request):
        own: Store = request.getfixturevalue("store")
        return own
    app: App = request.getfixturevalue("lasting")
    return app.service.store


@pytest.fixture
def app(request: pytest.FixtureRequest, store: Store) -> Iterator[App]:
    """The application for two tenants with a key each, whose rows stay in memory however long a test takes."""
    if is_shared(request):
        yield request.getfixturevalue("lasting")
        for name in ("queuey", "guest"):
            for queue in bridge.run(store.catalogue.list_queues(name, start="", limit=10_000)):
                bridge.run(store.catalogue.delete_queue(queue))
        return
    make_tenants(store)
    between, limits, stopping = map(request.getfixturevalue, ("between", "limits", "stopping"))
    yield make_app(between.store, limits=limits, stopping=stopping, clock=lambda: 0.0)


@pytest.fixture
def prompt() -> Iterator[None]:
    """Keeps reads of the embedded store fast and each tenant's job at the same cost, also on a busy machine."""
    charge = FairQueue.charge

    def charge_one(turns: FairQueue[Any], tenant: str, _amount: float) -> None:
        charge(turns, tenant, 1.0)

    with replace_in(messages, monotonic, lambda: 1.0), replace(FairQueue.charge, charge_one):
        yield


@pytest.fixture
def owner(app: App) -> Caller:
    return Caller(app, f"Application {KEY}")


@pytest.fixture
def guest(app: App) -> Caller:
    """Another application that accesses the owner's queues."""
    return Caller(app, f"Application {GUEST_KEY}")


@pytest.fixture
def anonymous(app: App) -> Caller:
    return Caller(app)


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()
