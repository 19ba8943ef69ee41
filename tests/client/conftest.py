"""Both clients, on scripted servers and on the real service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from queuey.app.service import App
from queuey.client import AsyncClient, Client
from queuey.client.credentials.profile import read_profile
from tests.client.live import LOCAL, LOCAL_KEY, Bridge, Served, application
from tests.client.live import served as serving
from tests.client.scripted import BlockingClient, async_client, sync_client
from tests.in_process import InProcess

Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Isolates tests from the user's environment and profile."""
    for name in ("QUEUEY_URL", "QUEUEY_KEY", "QUEUEY_APP", "QUEUEY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QUEUEY_PROFILE", str(tmp_path_factory.mktemp("config") / "profile.toml"))


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def connect(kind: str) -> Iterator[Connect]:
    """Returns a maker of clients of either kind on a script; the async one is called like the sync one."""
    with ExitStack() as opened:

        def make(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - those of sync_client; a client of either kind
            if kind == "sync":
                return opened.enter_context(sync_client(*args, **options))
            client = BlockingClient(async_client(*args, **options))
            opened.callback(client.shut)
            return client

        yield make


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    with application(tmp_path_factory.mktemp("data")) as opened:
        yield opened


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("service")) as running:
        yield running


@contextmanager
def opened(kind: str, url: str, key: str, app: App | None = None, receipts: Path | None = None) -> Iterator[Any]:
    """Yields a client with blocking methods, also for ``async``; with `app` it calls in process."""
    if kind == "sync":
        transport = None if app is None else InProcess(app)
        with Client(url, key=key, transport=transport, receipts=receipts) as client:
            yield client
    else:
        bridge = None if app is None else Bridge(app)
        blocking = BlockingClient(AsyncClient(url, key=key, transport=bridge, receipts=receipts))
        yield blocking
        blocking.shut()


@pytest.fixture
def over_socket(kind: str, served: Served) -> Iterator[Any]:
    """A client of either kind on the service in a process of its own."""
    profile = read_profile(served.profile)
    with opened(kind, profile.url, profile.key) as client:
        yield client


@pytest.fixture(params=["in process", "over_socket"])
def queuey(request: pytest.FixtureRequest, kind: str) -> Iterator[Any]:
    """A client of either kind on the real service, in this process and over a socket."""
    if request.param == "over_socket":
        yield request.getfixturevalue("over_socket")
        return
    with opened(kind, LOCAL, LOCAL_KEY, request.getfixturevalue("app")) as client:
        yield client


@pytest.fixture
def queue(queuey: Any) -> Iterator[str]:  # noqa: ANN401 - either client
    name = queuey.create_queue(partitions=3).name
    yield name
    queuey.delete_queue(name)
