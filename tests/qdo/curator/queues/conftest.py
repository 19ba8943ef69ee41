"""A place for a queue, for each test its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.scene import Heard, Place
from tests.servers.plugin import ZooKeeper, unique_name


@pytest.fixture
def place(zookeeper: ZooKeeper) -> Iterator[Place]:
    """A place on the shared server; what is left there goes with the server's data."""
    place = Place(zookeeper.connect_string, f"/{unique_name('curator')}")
    try:
        yield place
    finally:
        place.close()


@pytest.fixture
def client(place: Place) -> Any:  # noqa: ANN401 - kazoo's
    """A client of the shared server."""
    return place.client()


@pytest.fixture
def proxy(place: Place) -> Proxy:
    """A network that can be cut."""
    return place.proxy()


@pytest.fixture
def heard() -> Iterator[Heard]:
    """A consumer; whatever it holds up is let go at the end."""
    heard = Heard()
    yield heard
    heard.gate.set()
