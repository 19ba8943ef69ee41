"""Queues, keys and offsets while nodes of a real cluster are paused and killed."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queuey import ids
from queuey.errors import OffsetConflict, QueueChanged, StoreUnavailable
from queuey.messages import OffsetChange, QueueSpec
from queuey.storage.cassandra import CassandraOptions, CassandraStore, open_store
from tests.servers import keyspaces
from tests.servers.plugin import CassandraCluster
from tests.waiting import join

pytestmark = pytest.mark.slow

APP = "acme"
BOUND = 60.0
"""Seconds within which every call ends, whatever the nodes do: a few requests of 4 s, a doubt of 10 s."""


@pytest.fixture
def stores(cassandra_nodes: CassandraCluster) -> Iterator[list[CassandraStore]]:
    """Two stores on a keyspace of three copies."""
    url = keyspaces.make(cassandra_nodes, 3)
    with contextlib.ExitStack() as opened:
        found = [open_store(url, options=CassandraOptions(row_age=0.2, reap_interval=None)) for _ in range(2)]
        for store in found:
            opened.callback(store.close)
            assert store.ready(60)
        found[0].create_application(APP)
        yield found


def until_it_works(call: Callable[[], object]) -> None:
    """Repeats a call until it does not fail for want of nodes."""
    until = time.monotonic() + 120
    while True:
        try:
            call()
        except StoreUnavailable:
            assert time.monotonic() < until
        else:
            return


class Count:
    """How many steps were certainly made, and how many perhaps."""

    def __init__(self) -> None:
        self.made = 0
        self.perhaps = 0
        self.longest = 0.0
        self._lock = threading.Lock()

    def step(self, call: Callable[[], object]) -> None:
        """Makes one step, or finds that somebody else was quicker."""
        began = time.monotonic()
        made = perhaps = 0
        try:
            call()
            made = 1
        except (QueueChanged, OffsetConflict):
            pass
        except StoreUnavailable as error:
            perhaps = error.outcome == "unknown"
        with self._lock:
            self.made += made
            self.perhaps += perhaps
            self.longest = max(self.longest, time.monotonic() - began)


def disturb(cluster: CassandraCluster, ended: threading.Event) -> None:
    """Pauses and kills one node after another, two at once in between, and brings them back."""
    nodes = cluster.nodes
    for number in itertools.count():
        one, other = nodes[number % 3], nodes[(number + 1) % 3]
        one.pause()
        if ended.wait(3.0):
            one.resume()
            return
        if number % 2:
            other.pause()
            ended.wait(6.0)
            other.resume()
        one.resume()
        if ended.wait(2.0):
            return


def add_partition(store: CassandraStore, name: str) -> None:
    """Adds a partition to what the queue has now."""
    row = store.queue(APP, name, fresh=True)
    store.update_queue(row, QueueSpec(partitions=row.partitions + 1))


def raise_offset(store: CassandraStore, name: str) -> None:
    """Raises an offset by one, if it is still what was read."""
    queue = store.queue(APP, name, fresh=True)
    (now,) = store.offsets(queue, "group")
    ticks, low = now.position
    store.set_offsets(queue, "group", [OffsetChange(1, (ticks + 1, low), now.position, compare=True)])


def test_every_step_counts_once(stores: list[CassandraStore], cassandra_nodes: CassandraCluster) -> None:
    """What was answered as done is done once, what was refused is not done, and only what is unknown is in between."""
    queue, _ = stores[0].create_queue(APP, "queue", QueueSpec())
    stores[0].set_offsets(queue, "group", [OffsetChange(1, (ids.EPOCH_TICKS, 0))])
    partitions, offsets = Count(), Count()
    ended = threading.Event()
    until = time.monotonic() + 60

    def work(number: int) -> None:
        store = stores[number % 2]
        while time.monotonic() < until:
            if number < 4:
                partitions.step(lambda: add_partition(store, "queue"))
            else:
                offsets.step(lambda: raise_offset(store, "queue"))

    disturber = threading.Thread(target=disturb, args=(cassandra_nodes, ended))
    disturber.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    finally:
        ended.set()
        join(disturber)
    cassandra_nodes.wait_until_settled()
    until_it_works(lambda: stores[1].queue(APP, "queue", fresh=True))
    now = stores[1].queue(APP, "queue", fresh=True)
    (offset,) = stores[1].offsets(now, "group")
    assert partitions.made <= now.partitions - 1 <= partitions.made + partitions.perhaps
    assert offsets.made <= offset.position[0] - ids.EPOCH_TICKS <= offsets.made + offsets.perhaps
    assert min(partitions.made, offsets.made) > 5
    assert max(partitions.longest, offsets.longest) < BOUND


def test_too_few_nodes(stores: list[CassandraStore], cassandra_nodes: CassandraCluster) -> None:
    """With one of three nodes every change is refused in bounded time; with two again everything works as before."""
    store, other = stores
    queue, _ = store.create_queue(APP, "queue", QueueSpec())
    for node in cassandra_nodes.nodes[1:]:
        node.kill()
    calls: list[Callable[[], object]] = [
        lambda: store.create_queue(APP, "another", QueueSpec()),
        lambda: store.update_queue(queue, QueueSpec(ttl=5)),
        lambda: store.delete_queue(queue),
        lambda: store.queue(APP, "queue", fresh=True),
        lambda: store.list_queues(APP),
        lambda: store.create_application("globex"),
        lambda: store.add_key(APP, b"k" * 32),
        lambda: store.find_key(b"k" * 32),
        lambda: store.set_offsets(queue, "group", [OffsetChange(1, ids.LAST)]),
    ]
    for call in calls:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            call()
        assert time.monotonic() - began < BOUND
    cassandra_nodes.nodes[1].start()
    until_it_works(lambda: other.update_queue(other.queue(APP, "queue", fresh=True), QueueSpec(ttl=7)))
    until_it_works(lambda: store.create_queue(APP, "another", QueueSpec()))
    assert [(found.name, found.ttl) for found in store.list_queues(APP)] == [("another", None), ("queue", 7)]
