"""The stores that the suite runs on: where each keeps its data, how it is opened, and what it can do.

A difference between stores is a named capability. A test that needs one is marked ``@pytest.mark.needs(name)`` and is
visibly skipped on stores without it:

* ``clock``: the store reads a given clock, so tests move time by hand.
* ``one_generator``: ids ascend over all Store objects on the same data, not only within one.
* ``exact_horizon``: without a read delay, an acknowledged message is below the horizon of every later read.
* ``ordered_begins``: appends that one thread begins one after another, without waiting, get ids in that order. (Ids of
  appends that the caller waited for ascend on every store, and ``after`` extends that over all processes.)
* ``whole_puts``: a failed ``put`` at several ids has written none of them.
* ``counts_deletes``: ``delete`` knows how many of the messages existed.
* ``sorted_listing``: queues are listed in the order of their names' code points.
* ``creates_by_thousands``: a thousand queues are created in well under a second. (On Cassandra each is a lightweight
  transaction, so a million take most of an hour on one node.)
* ``processes``: several processes may use the same data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from queuey.model import ids
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from queuey.storage.cassandra import CassandraOptions

APP = "acme"
"""The application of every store under test."""


class Clock:
    """A clock that stands still until it is moved by hand."""

    def __init__(self, ticks: int | None = None) -> None:
        self.ticks = ids.now_ticks() if ticks is None else ticks

    def __call__(self) -> int:
        return self.ticks

    def advance(self, seconds: float) -> None:
        """Moves the clock forward, or backward by negative seconds."""
        self.ticks += round(seconds * ids.TICKS_PER_SECOND)


class StoreLocation(Protocol):
    """Where the data of a store is. Child processes get it pickled, and may open it as well."""

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens another Store object on the data."""

    def make_fresh(self) -> StoreLocation:
        """Returns a location without data: another one, or this one emptied."""


UNSYNCED = ("PRAGMA synchronous = OFF",)
"""No test cuts the power, and data in the page cache survives a killed process. A run has tens of thousands of writes,
and on some machines each would wait milliseconds for the disk."""


@dataclass(frozen=True)
class SqliteLocation:
    """A directory."""

    path: Path

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens the directory, without waiting for the disk in writes. With a clock moved by hand, sweeps are off."""
        from queuey.storage.sqlite import SqliteOptions, open_store  # noqa: PLC0415 - imported when used

        if clock is None:
            return open_store(self.path, options=SqliteOptions(pragmas=UNSYNCED))
        return open_store(self.path, options=SqliteOptions(clock=clock, sweep_interval=None, pragmas=UNSYNCED))

    def make_fresh(self) -> StoreLocation:
        return prepare_sqlite(Path(tempfile.mkdtemp(prefix="data-", dir=self.path.parent)))


@cache
def _empty_store() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        SqliteLocation(Path(directory)).open().close()
        [file] = Path(directory).iterdir()
        return file.read_bytes()


def prepare_sqlite(directory: Path) -> SqliteLocation:
    """Puts an empty store into a directory, also in place of another; returns its location."""
    from queuey.storage.sqlite.connection import FILE  # noqa: PLC0415 - imported when used

    directory.mkdir(mode=0o700, exist_ok=True)
    file = directory / FILE
    file.touch(mode=0o600)
    file.write_bytes(_empty_store())
    return SqliteLocation(directory)


@dataclass(frozen=True)
class Backend:
    """One kind of store, and its capabilities."""

    name: str
    capabilities: frozenset[str]
    fresh_location: Callable[[pytest.FixtureRequest], StoreLocation]


@dataclass(frozen=True)
class CassandraLocation:
    """A keyspace of the run, emptied for each test. Its stores cache queue rows only briefly (C)."""

    url: str

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens the keyspace, once it is ready. A clock moved by hand may differ from the nodes' by any amount."""
        from queuey.storage.cassandra import CassandraStore, open_store  # noqa: PLC0415 - imported when used
        from tests.servers.keyspaces import HandClock, HandedStore, LastingDriver  # noqa: PLC0415 - likewise

        options = cassandra_options(by_hand=clock is not None)
        store: CassandraStore
        if clock is None:
            store = open_store(self.url, options=options, driver=LastingDriver)
        else:
            store = HandedStore(self.url, options, HandClock(clock), driver=LastingDriver)
        assert store.ready(60), bridge.run(store.statistics())
        return store

    def make_fresh(self) -> StoreLocation:
        """Empties the keyspace: all tests of a run share one, as creating one takes seconds."""
        from tests.servers.keyspaces import empty  # noqa: PLC0415 - imported when used

        empty(self.url)
        return self


class SimulatedLocation:
    """A simulated Cassandra node in this process."""

    def __init__(self) -> None:
        from tests.sim.cassandra.one_node import in_process  # noqa: PLC0415 - imported when used

        self._cluster = in_process.make_cluster()

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        from tests.sim.cassandra.one_node.in_process import InProcessStore  # noqa: PLC0415 - imported when used

        store = InProcessStore(self._cluster, cassandra_options(by_hand=clock is not None), clock)
        assert store.ready(60), bridge.run(store.statistics())
        return store

    def make_fresh(self) -> StoreLocation:
        return SimulatedLocation()


def cassandra_options(*, by_hand: bool) -> CassandraOptions:
    """Returns the options of stores under test, without garbage collection by themselves.

    With a clock moved by hand, which may be wrong, all levels are slow.
    """
    from queuey.storage.cassandra import CassandraOptions, Level  # noqa: PLC0415 - imported when used
    from queuey.storage.cassandra.cluster.options import WEAK  # noqa: PLC0415 - likewise

    difference = ANY_DIFFERENCE if by_hand else 0.7
    strong = Level(None, None, delay=PATIENCE + 2 * difference, deadline=WRITE_DEADLINE)
    prompt = Level(None, None, delay=3.7, deadline=3.0)
    return CassandraOptions(
        row_age=ROW_AGE,
        reap_interval=None,
        clock_difference=difference,
        levels={"strong": strong} | ({"weak": strong, PROMPT: strong} if by_hand else {"weak": WEAK, PROMPT: prompt}),
        **PATIENT,
    )


ANY_DIFFERENCE = 1e10
"""Seconds."""
PATIENCE = 60.0
"""Seconds that stores under test wait for Cassandra. Long, because the machine may stand still for some."""
PATIENT: dict[str, Any] = {"timeout": PATIENCE, "deadline": 2 * PATIENCE, "catalogue_deadline": PATIENCE}
"""Timeouts of the Cassandra store, from PATIENCE."""
WRITE_DEADLINE = 9.0
"""Max seconds of a write: messages that tests post ahead of readers are due in ten seconds."""
PROMPT = "very_strong"
"""A consistency level whose read delay takes only seconds on the real clock. A write may be too late."""
ROW_AGE = 0.1
"""Max age of queue rows in seconds (C). Purges, deletes and updates wait this long."""


def sqlite_location(request: pytest.FixtureRequest) -> StoreLocation:
    path: Path = request.getfixturevalue("tmp_path")
    return prepare_sqlite(path / "data")


def cassandra_location(request: pytest.FixtureRequest) -> StoreLocation:
    url: str = request.getfixturevalue("contract_keyspace")
    return CassandraLocation(url).make_fresh()


BACKENDS = {
    "cassandra": Backend("cassandra", frozenset({"clock", "sorted_listing", "processes"}), cassandra_location),
    "simulated": Backend("simulated", frozenset({"clock", "sorted_listing"}), lambda _request: SimulatedLocation()),
    "sqlite": Backend(
        "sqlite",
        frozenset(
            {
                "clock",
                "one_generator",
                "exact_horizon",
                "ordered_begins",
                "whole_puts",
                "counts_deletes",
                "sorted_listing",
                "creates_by_thousands",
                "processes",
            }
        ),
        sqlite_location,
    ),
}
CAPABILITIES = frozenset[str]().union(*(backend.capabilities for backend in BACKENDS.values()))
