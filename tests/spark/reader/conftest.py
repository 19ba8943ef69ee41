"""An embedded store on a clock that the test moves, and options for a reader of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queuey.storage import Store, bridge
from tests.backends import APP, CassandraLocation, Clock, SqliteLocation, StoreLocation
from tests.spark.reader.micro_batches import opened
from tests.spark.reader.queues import Options


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    """An embedded store on the clock, with one application; readers with :func:`options` use it, too."""
    store = SqliteLocation(tmp_path / "data").open(clock)
    bridge.run(store.applications.create_application(APP))
    with opened({"data": str(tmp_path / "data"), "subscribe": "any"}, store):
        yield store
    store.close()


@pytest.fixture
def options(tmp_path: Path, store: Store) -> Options:
    """Returns options of a read of queue ``a`` from its beginning, changed by arguments."""

    def make(**more: str) -> dict[str, str]:
        chosen = {} if {"assign", "subscribePattern"} & more.keys() else {"subscribe": "a"}
        return {"data": str(tmp_path / "data"), **chosen, "startingOffsets": "earliest", **more}

    return make


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    """Fresh data on the store under test."""
    if request.param == "sqlite":
        return SqliteLocation(tmp_path / "data")
    return CassandraLocation(request.getfixturevalue("contract_keyspace")).make_fresh()
