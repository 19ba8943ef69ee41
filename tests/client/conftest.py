"""Both clients, on scripted servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from queuey.client import RetryPolicy
from tests.client.scripted import ONE, Blocking, Script, async_client, sync_client

Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the environment or the profile of whoever runs it."""
    for name in ("QUEUEY_URL", "QUEUEY_KEY", "QUEUEY_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("QUEUEY_PROFILE", str(tmp_path_factory.mktemp("config") / "profile.toml"))


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Makes clients of either kind that speak to a script; the async one is called like the sync one."""
    with ExitStack() as opened:

        def make(script: Script, url: Any = ONE, retry: RetryPolicy | None = None) -> Any:  # noqa: ANN401
            if request.param == "sync":
                return opened.enter_context(sync_client(script, url, retry))
            client = Blocking(async_client(script, url, retry))
            opened.callback(client.shut)
            return client

        yield make
