"""Stores with other options than the contract suite's, on its keyspace. Each test makes its own application."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore, Level, open_store
from tests.backends import PATIENCE, PATIENT, ROW_AGE
from tests.servers.keyspaces import LastingDriver
from tests.servers.plugin import unique_name
from tests.storage.cassandra.interposed import Wire
from tests.storage.cassandra.scene import Scene, open_scene

DEFAULTS: dict[str, Any] = {
    "row_age": ROW_AGE,
    "reap_interval": None,
    "clock_difference": 2.0,
    "speculative": 0.0,
    "levels": {"strong": Level(None, None, delay=PATIENCE + 2.0, deadline=PATIENCE)},
    **PATIENT,
}


class OpenStore(Protocol):
    """Opens a store with these options, whose requests go through a wire if one is given."""

    def __call__(self, wire: Wire | None = None, **options: Any) -> CassandraStore:  # noqa: ANN401 - options of any type
        """See the class."""


@pytest.fixture
def application() -> str:
    """Returns the name of an application that no other test uses."""
    return unique_name("app")


@pytest.fixture
def open_with(contract_keyspace: str, application: str) -> Iterator[OpenStore]:
    """Returns a function that opens a ready store on the keyspace, with the application. All are closed afterwards."""
    with contextlib.ExitStack() as opened:

        def open_one(wire: Wire | None = None, **options: Any) -> CassandraStore:  # noqa: ANN401 - options of any type
            store = open_store(
                contract_keyspace,
                options=CassandraOptions(**(DEFAULTS | options)),
                driver=LastingDriver if wire is None else wire.driver,
            )
            opened.callback(store.close)
            assert store.ready(60)
            if not bridge.run(store.applications.has_application(application)):
                bridge.run(store.applications.create_application(application))
            return store

        yield open_one


@pytest.fixture
def store(open_with: OpenStore) -> CassandraStore:
    return open_with()


@pytest.fixture
def scene(contract_keyspace: str, application: str) -> Iterator[Scene]:
    """Processes whose time and requests the test controls."""
    yield from open_scene(contract_keyspace, application)
