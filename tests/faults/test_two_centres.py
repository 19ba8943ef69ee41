"""Messages that one data centre acknowledges while it is cut off are shown in both once the link is back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import TICKS_PER_SECOND, Position
from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions, CassandraStore, Level
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import parse_url
from queuey.storage.cassandra.statements.consistency_levels import ConsistencyLevels, ResolvedLevel
from queuey.storage.cassandra.time.clock import SteadyClock
from tests.faults.centres import NAMES, Centres, make_keyspace_on, start_centres
from tests.faults.cluster import prepare_store_between
from tests.faults.message_run import MessageRun
from tests.faults.webs import Span
from tests.harness.checking.rules import Limits
from tests.harness.nemesis import Step, Wave
from tests.harness.plans import Plan, Record, plans, verify
from tests.servers.plugin import unique_name
from tests.waiting import until

pytestmark = pytest.mark.slow

EAST, WEST = NAMES
W, S, D, C = 2.0, 1.0, 3.5, 1.0
PATIENCE = 90.0
"""Timeout in seconds for what a test waits for."""
APPLICATION = "centres"


class Concluding(ConsistencyLevels):
    """Concludes that a range is empty if none was found there, without regard to other data centres."""

    def is_empty_read_proof(self, level: ResolvedLevel) -> bool:
        return True


class Hasty(CassandraStore):
    """A store without the rule about other data centres."""

    def __init__(self, url: str, options: CassandraOptions, clock: SteadyClock) -> None:
        super().__init__(url, options, clock)
        self._levels.__class__ = Concluding  # All parts of the store share this object.


def options_of(centre: str) -> CassandraOptions:
    return CassandraOptions(
        local_dc=centre,
        levels={
            "strong": Level(None, None, delay=D, deadline=W),
            "very_strong": Level("EACH_QUORUM", "LOCAL_QUORUM", delay=D, deadline=W),
        },
        clock_difference=S,
        row_age=C,
        catalogue_write="EACH_QUORUM",
        catalogue_read="LOCAL_QUORUM",
        reap_interval=None,
        timeout=20.0,
    )


@dataclass
class CentreStores:
    url: str
    opened: contextlib.ExitStack

    def connect(self) -> Driver:
        driver = Driver(parse_url(self.url), options_of(EAST))
        self.opened.callback(driver.close)
        assert driver.ready(PATIENCE), driver.problem()
        return driver

    def open(self, kind: type[CassandraStore], centre: str, **changed: Any) -> CassandraStore:  # noqa: ANN401 - options
        store = kind(self.url, replace(options_of(centre), **changed), SteadyClock())
        self.opened.callback(store.close)
        assert store.ready(PATIENCE), bridge.run(store.statistics())
        return store


@contextlib.contextmanager
def stores_on(url: str) -> Iterator[CentreStores]:
    with contextlib.ExitStack() as opened:
        centre_stores = CentreStores(url, opened)
        store = centre_stores.open(CassandraStore, EAST)
        if not bridge.run(store.applications.has_application(APPLICATION)):
            bridge.run(store.applications.create_application(APPLICATION))
        yield centre_stores


@pytest.fixture
def centre_stores(centres_keyspace: str) -> Iterator[CentreStores]:
    """Stores on the keyspace shared by the tests of two data centres."""
    with stores_on(centres_keyspace) as stores:
        yield stores


def make_queue(store: CassandraStore, consistency: str = "strong") -> Queue:
    queue, _ = bridge.run(
        store.catalogue.create_queue(APPLICATION, unique_name("queue"), QueueSpec(consistency=consistency))
    )
    return queue


def post(store: CassandraStore, queue: Queue) -> Position:
    """Posts until a message is acknowledged, and returns its id. Earlier attempts may be stored as well."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            [position] = bridge.run(store.messages.append(queue, [NewMessage("x", 1, 3600, None, 0.0)]))
        except StoreUnavailable:
            assert time.monotonic() < deadline, "no post is acknowledged"
        else:
            return position


def read_shown(store: CassandraStore, queue: Queue) -> list[Position]:
    [page] = bridge.run(store.messages.read(queue, [Slice(1)]))
    return [message.position for message in page.messages]


@dataclass
class Party:
    """A queue, and a store in each data centre that uses it."""

    kind: type[CassandraStore]
    near: CassandraStore
    far: CassandraStore
    queue: Queue
    position: Position = ids.FIRST

    def look_too_early(self) -> None:
        """Waits until the near data centre could show the message, which only the far one has; fails if it does."""
        until(lambda: self.near._clock.now() > self.position[0] + (D + 0.5) * TICKS_PER_SECOND)
        assert read_shown(self.near, self.queue) == []

    def has_come_over(self) -> bool:
        """Returns whether the message has reached the near data centre. A fetch by id finds it in any case."""
        return bool(bridge.run(self.near.messages.fetch(self.queue, [(1, self.position)])))


def replay(centres: Centres, centre_stores: CentreStores) -> dict[type[CassandraStore], list[bool]]:
    """Replays how messages vanished: one data centre acknowledges, the other reads, and they agree only afterwards.

    Returns:
        For stores with the rule and without it: whether the message is shown to the early reader, to a new process in
        the same data centre, and where it was written.
    """
    parties = []
    for kind in (CassandraStore, Hasty):
        near, far = centre_stores.open(kind, EAST), centre_stores.open(kind, WEST)
        parties.append(Party(kind, near, far, make_queue(near)))
    centres.link.cut()
    for party in parties:
        party.position = post(party.far, party.queue)
    for party in parties:
        party.look_too_early()
    centres.link.heal()
    until(lambda: all(party.has_come_over() for party in parties))
    shown_by_kind = {}
    for party in parties:
        readers = party.near, centre_stores.open(party.kind, EAST), party.far
        shown_by_kind[party.kind] = [party.position in read_shown(reader, party.queue) for reader in readers]
    return shown_by_kind


def test_what_came_late_is_shown(centres: Centres, centre_stores: CentreStores) -> None:
    """A reader that found nothing does not hide what another data centre acknowledged; without the rule it does."""
    shown_by_kind = replay(centres, centre_stores)
    assert shown_by_kind[CassandraStore] == [True, True, True]
    assert shown_by_kind[Hasty][:2] == [False, False]


SPAN = Span(deadline=1.5, delay=3.0)
CUTS: list[Wave] = [(Step("cut", "link", 3.0 * SPAN.delay),), (Step("cut", "link", 0.3),)]
"""A long cut, and a short one."""
CUT_TWICE = Plan(1, "two-cuts", least={"acknowledged": 400, "shown": 1000, "during_faults": 200})


def cut(plan: Plan, directory: Path, centres: Centres, url: str, record: Record) -> None:
    store = prepare_store_between(centres, url, SPAN, difference=1.0, row_age=1.0)
    run = MessageRun(directory, store, slowness=4.0, written={"two-cuts": CUTS})
    verify(plan, lambda: run.run(plan, limits=Limits(bound=20.0, grace=2.0, calm=1.5), rest=0.5), record)


@plans("messages/two-centres", CUT_TWICE)
def test_writers_and_readers_on_both_sides(
    tmp_path: Path, record_property: Record, centres: Centres, centres_keyspace: str, plan: Plan
) -> None:
    """Both data centres serve while they are cut off from each other, and agree on everything afterwards."""
    cut(plan, tmp_path, centres, centres_keyspace, record_property)


@plans("messages/two-nodes-each", CUT_TWICE)
def test_two_nodes_each(tmp_path: Path, record_property: Record, servers: contextlib.ExitStack, plan: Plan) -> None:
    """The guarantees also hold if each data centre has two nodes and two copies."""
    with start_centres(2) as centres:
        url = make_keyspace_on(centres)
        with stores_on(url) as centre_stores:
            shown_by_kind = replay(centres, centre_stores)
        assert shown_by_kind[CassandraStore] == [True, True, True]
        assert shown_by_kind[Hasty][:2] == [False, False]
        cut(plan, tmp_path, centres, url, record_property)


def test_a_data_centre_is_added(centre_stores: CentreStores, centres: Centres) -> None:
    """A running process learns of a second data centre from the schema, and concludes nothing from then on."""
    driver = centre_stores.connect()
    replicate(driver, f"'{EAST}': 1")
    try:
        store = centre_stores.open(CassandraStore, EAST)
        level = store._levels.resolve(make_queue(store))
        assert store._levels.is_empty_read_proof(level)
        replicate(driver, f"'{EAST}': 1, '{WEST}': 3")
        until(lambda: not store._levels.is_empty_read_proof(level))
    finally:
        replicate(driver, centres.copies)


def replicate(driver: Driver, copies: str) -> None:
    replication = f"{{'class': 'NetworkTopologyStrategy', {copies}}}"
    change = f"ALTER KEYSPACE {driver.target.keyspace} WITH replication = {replication}"
    driver.run(Statement.make_unprepared(change), timeout=PATIENCE)
