"""Both clients, on scripted servers and on the real service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from queuey.client import AsyncClient, Client, RetryPolicy
from queuey.client.calls.call import MAX_ANSWER
from queuey.client.credentials.profile import read_profile
from tests.client.live import LOCAL, LOCAL_KEY, Application, Bridge, Served, application, served
from tests.client.scripted import ONE, Blocking, Script, async_client, sync_client
from tests.in_process import InProcess

Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the environment or the profile of whoever runs it."""
    for name in ("QUEUEY_URL", "QUEUEY_KEY", "QUEUEY_APP", "QUEUEY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QUEUEY_PROFILE", str(tmp_path_factory.mktemp("config") / "profile.toml"))


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of either kind that speak to a script; the async one is called like the sync one."""
    with ExitStack() as opened:

        def make(
            script: Script,
            url: Any = ONE,  # noqa: ANN401 - one address or several
            retry: RetryPolicy | None = None,
            receipts: Path | None = None,
            max_answer: int = MAX_ANSWER,
            **credential: Any,  # noqa: ANN401 - key or token
        ) -> Any:  # noqa: ANN401 - a client of either kind
            if request.param == "sync":
                return opened.enter_context(sync_client(script, url, retry, receipts, max_answer, **credential))
            client = Blocking(async_client(script, url, retry, receipts, max_answer, **credential))
            opened.callback(client.shut)
            return client

        yield make


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """The service in this process."""
    with application(tmp_path_factory.mktemp("data")) as opened:
        yield opened


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The service as a process of its own."""
    with served(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(params=["sync in process", "async in process", "sync over a socket", "async over a socket"])
def queuey(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of either kind on the real service, in this process and over a socket."""
    kind, _, where = request.param.partition(" ")
    if where == "in process":
        url, key, app = LOCAL, LOCAL_KEY, request.getfixturevalue("app")
    else:
        profile = read_profile(request.getfixturevalue("service").profile)
        url, key, app = profile.url, profile.key, None
    if kind == "sync":
        with Client(url, key=key, transport=app and InProcess(app)) as client:
            yield client
    else:
        blocking = Blocking(AsyncClient(url, key=key, transport=app and Bridge(app)))
        yield blocking
        blocking.shut()


@pytest.fixture
def queue(queuey: Any) -> Iterator[str]:  # noqa: ANN401 - either client
    """A fresh queue with three partitions."""
    name = queuey.create_queue(partitions=3).name
    yield name
    queuey.delete_queue(name)
