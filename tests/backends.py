"""The stores that the suite runs on: where each keeps its data, how it is opened, and what it can do.

A difference between stores is a named capability. A test that needs one says so with ``@pytest.mark.needs(name)`` and
is skipped, visibly, on stores without it:

* ``clock``: the store reads the clock it is given, so tests move time by hand.
* ``one_generator``: ids ascend over all Store objects on the same data, not only within one.
* ``exact_horizon``: without a read delay, what was acknowledged is below the horizon of every later read.
* ``ordered_begins``: appends that one thread begins one after another, without waiting, get ids in that order. (Those
  that a caller waited for do on every store, and ``after`` makes sure of it over all processes.)
* ``whole_puts``: a ``put`` at several ids that fails has written none of them.
* ``counts_deletes``: ``delete`` knows how many of the messages were there.
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

from queuey import ids
from queuey.storage import Store, bridge

if TYPE_CHECKING:
    from queuey.storage.cassandra import CassandraOptions

APP = "acme"
"""The application that every store under test has."""


class Clock:
    """A clock that stands still until it is moved by hand."""

    def __init__(self, ticks: int | None = None) -> None:
        self.ticks = ids.now_ticks() if ticks is None else ticks

    def __call__(self) -> int:
        """Gives the time in ticks."""
        return self.ticks

    def advance(self, seconds: float) -> None:
        """Moves the clock forward, or backward by negative seconds."""
        self.ticks += round(seconds * ids.TICKS_PER_SECOND)


class StoreLocation(Protocol):
    """Where the data of a store lies. Child processes get it pickled and open it as well."""

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens one more Store object on the data."""

    def fresh(self) -> StoreLocation:
        """Makes another location, without data."""


UNSYNCED = ("PRAGMA synchronous = OFF",)
"""No test cuts the power: what a process has written is there after it was killed, also if the disk does not have it.
There are tens of thousands of writes in a run, and on some machines each would wait for the disk for milliseconds."""


@dataclass(frozen=True)
class SqliteLocation:
    """A directory of its own."""

    path: Path

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens the directory; with a clock moved by hand nothing is swept behind the test's back."""
        from queuey.storage.sqlite import SqliteOptions, open_store  # noqa: PLC0415 - only who uses it needs it

        if clock is None:
            return open_store(self.path, options=SqliteOptions(pragmas=UNSYNCED))
        return open_store(self.path, options=SqliteOptions(clock=clock, sweep_interval=None, pragmas=UNSYNCED))

    def fresh(self) -> StoreLocation:
        """Makes another directory beside this one."""
        return made_ready(Path(tempfile.mkdtemp(prefix="data-", dir=self.path.parent)))


@cache
def _empty_store() -> bytes:
    """Returns the file of a store without data, which is made once: its tables take longer than most tests."""
    with tempfile.TemporaryDirectory() as directory:
        SqliteLocation(Path(directory)).open().close()
        [file] = Path(directory).iterdir()
        return file.read_bytes()


def made_ready(directory: Path) -> SqliteLocation:
    """Puts an empty store into a directory, as the first process that opens one there leaves it."""
    from queuey.storage.sqlite.connection import FILE  # noqa: PLC0415 - only who uses it needs it

    directory.mkdir(mode=0o700, exist_ok=True)
    file = directory / FILE
    file.touch(mode=0o600)
    file.write_bytes(_empty_store())
    return SqliteLocation(directory)


@dataclass(frozen=True)
class Backend:
    """One kind of store and what it can do."""

    name: str
    capabilities: frozenset[str]
    fresh_location: Callable[[pytest.FixtureRequest], StoreLocation]


@dataclass(frozen=True)
class CassandraLocation:
    """A keyspace of the run, emptied for each test; its stores hold queue rows for a moment only (C)."""

    url: str

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens the keyspace; a clock moved by hand is one that may differ from the nodes' as it likes."""
        from queuey.storage.cassandra import CassandraStore, open_store  # noqa: PLC0415 - only for who uses it
        from tests.servers.keyspaces import HandClock, HandedStore, LastingDriver  # noqa: PLC0415 - likewise

        options = cassandra_options(by_hand=clock is not None)
        store: CassandraStore
        if clock is None:
            store = open_store(self.url, options=options, driver=LastingDriver)
        else:
            store = HandedStore(self.url, options, HandClock(clock), driver=LastingDriver)
        assert store.ready(60), bridge.run(store.statistics())
        return store

    def fresh(self) -> StoreLocation:
        """Empties the keyspace: there is one for all tests of a run, because making one takes seconds."""
        from tests.servers.keyspaces import empty  # noqa: PLC0415 - only who uses it needs the driver

        empty(self.url)
        return self


class SimulatedLocation:
    """A simulated Cassandra node in this process."""

    def __init__(self) -> None:
        from tests.sim.cassandra.one_node import in_process  # noqa: PLC0415 - only for who uses it

        self._cluster = in_process.make()

    def open(self, clock: Callable[[], int] | None = None) -> Store:
        """Opens the keyspace, by the options of a store on a real node."""
        from tests.sim.cassandra.one_node.in_process import InProcessStore  # noqa: PLC0415 - only for who uses it

        store = InProcessStore(self._cluster, cassandra_options(by_hand=clock is not None), clock)
        assert store.ready(60), bridge.run(store.statistics())
        return store

    def fresh(self) -> StoreLocation:
        """Makes another node."""
        return SimulatedLocation()


def cassandra_options(*, by_hand: bool) -> CassandraOptions:
    """Returns the options of stores under test; a clock moved by hand may differ from the nodes' as it likes."""
    from queuey.storage.cassandra import CassandraOptions, Level  # noqa: PLC0415 - only for who uses it
    from queuey.storage.cassandra.options import WEAK  # noqa: PLC0415 - likewise

    difference = ANY_DIFFERENCE if by_hand else 0.7
    strong = Level(None, None, delay=PATIENCE + 2 * difference, deadline=WRITING)
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
"""Seconds for which stores under test wait for Cassandra: the machine may stand still for some."""
PATIENT: dict[str, Any] = {"timeout": PATIENCE, "deadline": 2 * PATIENCE, "catalogue_deadline": PATIENCE}
"""Options of the Cassandra store that say so."""
WRITING = 9.0
"""The same for writes: messages that tests load ahead of readers are due in ten seconds."""
PROMPT = "very_strong"
"""The consistency level at which, on the real clock, the read delay is over in seconds; a write may be too late."""
ROW_AGE = 0.1
"""Seconds (C) of the stores under test: purges, deletes and updates wait for so long."""


def sqlite_location(request: pytest.FixtureRequest) -> StoreLocation:
    """A fresh directory for one test."""
    path: Path = request.getfixturevalue("tmp_path")
    return made_ready(path / "data")


def cassandra_location(request: pytest.FixtureRequest) -> StoreLocation:
    """The keyspace of the run, emptied."""
    url: str = request.getfixturevalue("contract_keyspace")
    return CassandraLocation(url).fresh()


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
