"""How long the rows of kept messages stay in Cassandra, whose nodes remove rows by their own TTL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs

from queuey.model.errors import NameChanged
from queuey.model.messages import KEPT_SECONDS, Queue, QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.read.bucket_index import LOW_WATERMARK_INTERVAL, MAX_FIRST_ROWS
from queuey.storage.cassandra.time import bucketing
from queuey.storage.cassandra.time.bucketing import BucketWidths
from tests.backends import APP, cassandra_options
from tests.contract.samples import bodies, bodies_in_partition, new_message, pages, whole_partition
from tests.replacing import replace
from tests.sim.cassandra.one_node.in_process import InProcessCluster, InProcessStore, make_cluster

HOUR = bucketing.HOUR
TTL = 6 * HOUR
SPEC = QueueSpec(ttl=TTL, read_delay=0.0, on_ack="delete", on_expiry="dead-letter")


@pytest.fixture
def cluster() -> InProcessCluster:
    """A node whose time can be skipped."""
    return make_cluster()


@pytest.fixture
def store(cluster: InProcessCluster) -> Iterator[CassandraStore]:
    opened = InProcessStore(cluster, cassandra_options(by_hand=False), None)
    assert opened.ready(60)
    bridge.run(opened.applications.create_application(APP))
    yield opened
    opened.close()


def kept_bodies(store: CassandraStore, queue: Queue) -> list[str | bytes]:
    """Returns the bodies that a kept read shows, and checks that fetches by id show the same."""
    read_pages = pages(store, queue, structs.replace(whole_partition(), kept=True))
    shown = [message for page in read_pages for message in page.messages]
    assert bridge.run(store.messages.fetch(queue, [(1, message.position) for message in shown], kept=True)) == shown
    return bodies(shown)


@pytest.mark.parametrize(("ttl", "later"), [(6 * HOUR, False), (6 * HOUR, True), (10 * HOUR, True)])
def test_rows_stay_for_a_day(cluster: InProcessCluster, store: CassandraStore, ttl: int, *, later: bool) -> None:
    """A kept message's row stays for a day after its end, in a queue created with the option or changed to it."""
    spec = structs.replace(SPEC, ttl=ttl)
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec(ttl=ttl, read_delay=0.0) if later else spec))
    if later:
        queue = bridge.run(store.catalogue.update_queue(queue, spec))
    else:
        row = store._parts.rows.get(APP, "q")
        assert row is not None
        assert (row.home_class, row.longest_ttl) == (bucketing.class_of(30 * HOUR), 30 * HOUR)
    items = [
        new_message("kept", ttl=ttl, kept=True),
        new_message("dropped", ttl=ttl),
        new_message("kept", ttl=ttl, kept=True),
    ]
    first, _, _ = bridge.run(store.messages.append(queue, items))
    assert cluster.leap(ttl - 60)
    assert bodies_in_partition(store, queue) == kept_bodies(store, queue) == ["kept", "dropped", "kept"]
    assert cluster.leap(120)
    assert (bodies_in_partition(store, queue), kept_bodies(store, queue)) == ([], ["kept", "kept"])
    assert cluster.leap(KEPT_SECONDS - 120)
    assert (bodies_in_partition(store, queue), kept_bodies(store, queue)) == ([], ["kept", "kept"])
    bridge.run(store.messages.delete(queue, [(1, first)]))
    assert kept_bodies(store, queue) == ["kept"]
    assert cluster.leap(120)
    assert kept_bodies(store, queue) == []


def test_rows_below_the_low_watermark_are_found(cluster: InProcessCluster, store: CassandraStore) -> None:
    """Ended messages behind more buckets than one lookup shows are still read, fetched and deleted."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", SPEC))
    with replace(BucketWidths.width_at, lambda _self, _now: bucketing.NARROWEST):
        for _ in range(MAX_FIRST_ROWS + 2):
            (last,) = bridge.run(store.messages.append(queue, [new_message("kept", ttl=60, kept=True)]))
            assert cluster.leap(6)
    assert cluster.leap(60)
    for _ in range(2):
        assert bodies_in_partition(store, queue) == []
        assert cluster.leap(LOW_WATERMARK_INTERVAL)
    [lookup] = store._driver.calls.run(
        store._parts.bucket_index.read_lookups([(queue.qid, 1, 0)], consistency="ONE", trust_low_watermarks=True)
    )
    assert lookup.low_watermark is not None
    assert lookup.low_watermark > last
    assert len(kept_bodies(store, queue)) == MAX_FIRST_ROWS + 2
    bridge.run(store.messages.delete(queue, [(1, last)]))
    assert len(kept_bodies(store, queue)) == MAX_FIRST_ROWS + 1


def test_names_stay_as_long_as_their_rows(cluster: InProcessCluster, store: CassandraStore) -> None:
    """A new value of a name replaces an ended one; a removed name row would hide the name's own message."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", SPEC))
    first = bridge.run(store.names.write_named(queue, "n", new_message("first", ttl=TTL, kept=True), b"", None))
    assert cluster.leap(TTL + KEPT_SECONDS - 60)
    assert kept_bodies(store, queue) == ["first"]
    with pytest.raises(NameChanged):
        bridge.run(store.names.write_named(queue, "n", new_message("second", kept=True), b"", None))
    bridge.run(store.names.write_named(queue, "n", new_message("second", kept=True), b"", first))
    assert kept_bodies(store, queue) == ["second"]


def test_estimates_of_a_queue_that_gets_the_option(store: CassandraStore) -> None:
    """Estimates of a queue that gets the option count the messages posted before, none of which is kept."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec(ttl=100, read_delay=0.0)))
    for _ in range(5):
        bridge.run(store.messages.append(queue, [new_message(str(number), ttl=100) for number in range(600)]))
    [before] = bridge.run(store.messages.lag(queue, [(1, None)]))
    queue = bridge.run(store.catalogue.update_queue(queue, structs.replace(SPEC, ttl=100)))
    [after] = bridge.run(store.messages.lag(queue, [(1, None)]))
    assert (after.count, after.exact) == (before.count, before.exact) == (3000, False)
