"""Services on one store, of either kind, that can be killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from queuey.client import RetryPolicy
from queuey.storage import Store, cassandra, sqlite
from queuey.web.credentials.application_keys import digest_of
from tests.servers import keyspaces
from tests.servers.served import Served

APP, KEY = "acme", "f" * 64
PATIENT = RetryPolicy(rounds=1000, base=0.05, cap=0.5, retry_after_cap=1, deadline=300, cool_down=0.1)
"""Goes on until the service is back."""
W = 1
"""Seconds after which a post that broke off is carried out anew on Cassandra."""

Start = Callable[[int], Served]


@pytest.fixture(params=["sqlite", "cassandra"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts a service on a port; all share a store."""
    options: list[str] = []
    store: Store
    if request.param == "cassandra":
        url = keyspaces.make(request.getfixturevalue("cassandra"))
        options = ["--store", url, "--consistency-strong", f"deadline={W},delay={W + 1.5}"]
        store = cassandra.open_store(url)
    else:
        store = sqlite.open_store(tmp_path / "data")
    store.create_application(APP)
    store.add_key(APP, digest_of(KEY))
    store.close()
    return lambda port: Served(tmp_path, options, port=port)
