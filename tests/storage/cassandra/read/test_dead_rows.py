"""Tests of reads among many deleted and expired rows, on a node that allows few of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraOptions as StoreOptions
from queuey.storage.cassandra import CassandraStore, open_store
from queuey.storage.cassandra.cluster import Statement, TooManyDead
from queuey.storage.cassandra.time import bucketing
from tests.servers import keyspaces
from tests.servers.plugin import PATIENT_NODE, CassandraOptions, start_cassandra
from tests.storage.cassandra.begun import driver_of
from tests.storage.cassandra.conftest import DEFAULTS
from tests.waiting import until

THRESHOLD = 1000
"""Number of dead rows after which the node refuses a read."""


@pytest.fixture(scope="module")
def strict_store(servers: object) -> Iterator[CassandraStore]:
    """A store on a node that refuses reads over a thousand dead rows, with one application."""
    limits = {"tombstone_warn_threshold": THRESHOLD // 2, "tombstone_failure_threshold": THRESHOLD}
    with start_cassandra(1, CassandraOptions(settings=limits | PATIENT_NODE, restarts=False)) as cluster:
        store = open_store(keyspaces.make(cluster), options=StoreOptions(**DEFAULTS))
        assert store.ready(60)
        bridge.run(store.applications.create_application("acme"))
        yield store
        store.close()


def queue_of(store: CassandraStore, name: str) -> Queue:
    return bridge.run(store.catalogue.create_queue("acme", name, QueueSpec(read_delay=0.0)))[0]


def post_many(store: CassandraStore, queue: Queue, count: int, *, ttl: int = 3600) -> list[tuple[int, tuple[int, int]]]:
    positions = []
    for _ in range(0, count, 500):
        positions += bridge.run(store.messages.append(queue, [NewMessage(str(n), 1, ttl) for n in range(500)]))
    return [(1, position) for position in positions]


@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_reads_get_past_deleted_messages(strict_store: CassandraStore, direction: str) -> None:
    """A read without a cursor finds the first live message, however many deleted ones come before it."""
    descending = direction == "descending"
    queue = queue_of(strict_store, f"deleted-{direction}")
    places = post_many(strict_store, queue, 4000)
    kept = places[-1] if not descending else places[0]
    doomed = [time_bucket for time_bucket in places if time_bucket != kept]
    for start in range(0, len(doomed), 500):
        bridge.run(strict_store.messages.delete(queue, doomed[start : start + 500]))
    [page] = bridge.run(strict_store.messages.read(queue, [Slice(1, limit=10, descending=descending)]))
    assert [message.position for message in page.messages] == [kept[1]]
    _, [info] = bridge.run(strict_store.messages.inspect(queue))
    assert info.oldest == kept[1] == info.newest


def walks_over_too_many(store: CassandraStore, queue: Queue) -> bool:
    try:
        driver_of(store).run(Statement("SELECT start FROM bucket_index WHERE qid = ? AND partition = 1"), (queue.qid,))
    except TooManyDead:
        return True
    return False


def test_busy_partitions_do_not_walk_over_expired_records(strict_store: CassandraStore) -> None:
    """The tail of a partition long written at a narrow level is read without passing its old bucket records."""
    queue = queue_of(strict_store, "busy")
    driver, now = driver_of(strict_store), strict_store._clock.now()
    width = bucketing.width(1, bucketing.NARROWEST)
    record = Statement(
        "INSERT INTO bucket_index (qid, partition, width_index, start, ttl_class) VALUES (?, 1, ?, ?, 1) USING TTL ?"
    )
    for at in range(0, 3000, 100):
        starts = [(now // width - number) * width for number in range(at, at + 100)]
        ttl = 3600 if at == 0 else 1
        first, *further = [(record, (queue.qid, bucketing.NARROWEST, start, ttl)) for start in starts]
        driver.run(*first, further=further)
    until(lambda: walks_over_too_many(strict_store, queue), every=0.1)
    places = post_many(strict_store, queue, 500)
    [page] = bridge.run(strict_store.messages.read(queue, [Slice(1, (now, 0))]))
    assert len(page.messages) == 100
    assert len(bridge.run(strict_store.messages.fetch(queue, places[:5]))) == 5
