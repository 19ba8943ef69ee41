"""Garbage collection removes what purges and deletes leave behind, and nothing else."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.groups import OwnedOffset
from queuey.model.ids import TICKS_PER_SECOND
from queuey.model.messages import LogEntry, NewMessage, OffsetChange, Queue, QueueSpec
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.catalogue import garbage_collection as grave_rows
from queuey.storage.cassandra.catalogue.garbage_collection import PendingDelete, unrecorded_buckets
from queuey.storage.cassandra.cluster import Statement
from queuey.storage.cassandra.time.bucketing import CLASSES, NAMES, bucket_of
from tests.contract.samples import append_log_entry, make_queue
from tests.storage.cassandra.begun import driver_of, parts_of
from tests.storage.cassandra.conftest import OpenStore
from tests.storage.cassandra.interposed import UNLIMITED, Wire

SELECT_OLDER = grave_rows._SELECT_OLDER
TABLES = [f"messages_{name}" for name in NAMES] + ["bucket_index", "claims", "claim_snapshots"]


def rows_left(store: CassandraStore, qid: int) -> dict[str, int]:
    """Returns the numbers of a queue's rows by table, without tables that have none of it."""
    counts = {}
    for table in TABLES:
        statement = Statement(f"SELECT partition FROM {table} WHERE qid = ? ALLOW FILTERING")
        counts[table] = len(driver_of(store).run(statement, (qid,), timeout=30.0))
    return {table: count for table, count in counts.items() if count}


def groups_left(store: CassandraStore, queue: Queue) -> list[str]:
    offsets: Any = store.offsets
    groups: list[str] = driver_of(store).calls.run(offsets._groups_with_offsets(queue.uid))
    return groups


def pending_deletes(store: CassandraStore, application: str) -> list[PendingDelete]:
    """Returns an application's pending deletes, read as if an hour later."""
    later = bridge.run(store.ledger.now()) + 3600 * TICKS_PER_SECOND
    deletes: list[PendingDelete] = []
    for shard in range(grave_rows.SHARDS):
        after: ids.Position | None = ids.FIRST
        while after is not None:
            page, after = driver_of(store).calls.run(parts_of(store).pending_deletes.read_older(later, shard, after))
            deletes += page
    return [pending for pending in deletes if pending.application == application]


def fill(store: CassandraStore, queue: Queue) -> None:
    """Writes messages to every kind of bucket (plain, longer classes, delayed, old given ids), claims, and offsets.

    Of two groups, one has an owned offset.
    """
    for partition in range(1, queue.partitions + 1):
        ttls = [60, 5 * 86_400, 100 * 86_400]
        bridge.run(store.messages.append(queue, [NewMessage("x", partition, ttl) for ttl in ttls]))
        bridge.run(store.messages.append(queue, [NewMessage("x", partition, 60, None, 7200.0)]))
        bridge.run(
            store.messages.put(queue, [(partition, (ids.seconds_to_ticks(1.5e9), 7))], NewMessage("x", partition, 60))
        )
        for number in (1, 2):
            assert append_log_entry(store, queue, LogEntry(number, b"claim"), partition)
        bridge.run(store.claim_logs.write_snapshot(queue, partition, 2, b"snapshot"))
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, ids.LAST)]))
    version = bridge.run(store.offsets.owned_offsets(queue, "members")).version
    assert bridge.run(store.offsets.hand_over(queue, "members", version, [OwnedOffset(1, owner=1, epoch=1)]))


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def reaping(open_with: OpenStore, wire: Wire) -> CassandraStore:
    return open_with(wire, reap_after=-1.0)


@pytest.fixture
def queue(reaping: CassandraStore, application: str) -> Queue:
    """Makes a queue with messages of all kinds."""
    queue = make_queue(reaping, "queue", application=application, partitions=2, ttl=3600)
    fill(reaping, queue)
    return queue


@pytest.mark.parametrize("deleted", [False, True])
def test_nothing_but_what_was_there_before(
    reaping: CassandraStore, application: str, queue: Queue, *, deleted: bool
) -> None:
    """A purge removes all messages from before it, in every bucket, a delete also offsets; later ones stay."""
    assert sum(rows_left(reaping, queue.qid).values()) > 10
    if deleted:
        bridge.run(reaping.catalogue.delete_queue(queue))
        successor, _ = bridge.run(reaping.catalogue.create_queue(application, "queue", QueueSpec()))
    else:
        successor = bridge.run(reaping.catalogue.purge_queue(queue))
    fill(reaping, successor)
    rows_before = rows_left(reaping, successor.qid)
    assert bridge.run(reaping.reap()) >= 1
    assert rows_left(reaping, queue.qid) == {}
    assert groups_left(reaping, queue) == ([] if deleted else ["group", "members"])
    assert rows_left(reaping, successor.qid) == rows_before
    assert bridge.run(reaping.offsets.groups(successor)) == ["group", "members"]
    assert pending_deletes(reaping, application) == []


@pytest.mark.parametrize("deleted", [False, True])
def test_change_that_was_not_made(reaping: CassandraStore, application: str, queue: Queue, *, deleted: bool) -> None:
    """The pending delete of a purge or delete that was refused or never sent removes nothing and is dropped."""
    rows_before = rows_left(reaping, queue.qid)
    calls = driver_of(reaping).calls
    row = calls.run(parts_of(reaping).rows.find_current(queue))
    calls.run(parts_of(reaping).pending_deletes.add(row, bridge.run(reaping.ledger.now()), deleted=deleted))
    bridge.run(reaping.reap())
    assert rows_left(reaping, queue.qid) == rows_before
    assert bridge.run(reaping.offsets.groups(queue)) == ["group", "members"]
    assert pending_deletes(reaping, application) == []


def test_stopped_in_the_middle(reaping: CassandraStore, wire: Wire, application: str, queue: Queue) -> None:
    """A run that fails at any point keeps the pending delete while rows are left; the next run continues."""
    bridge.run(reaping.catalogue.delete_queue(queue))
    left = 0

    def fails(statement: Statement) -> bool:
        nonlocal left
        left -= not statement.reads
        return left < 0 and not statement.reads

    wire.fail(fails, UNLIMITED)
    stops = 0
    (pending,) = pending_deletes(reaping, application)
    for allowed in range(60):
        left = allowed
        with contextlib.suppress(StoreUnavailable):
            driver_of(reaping).calls.run(reaping._garbage_collector._remove_data(pending), long=True)
        if not pending_deletes(reaping, application):
            break
        stops += 1
    assert stops >= 3
    assert rows_left(reaping, queue.qid) == {}
    assert groups_left(reaping, queue) == []


def test_left_alone_for_a_while(open_with: OpenStore, application: str, queue: Queue) -> None:
    """Recent leftovers are not touched, because somebody may still write with the previous row."""
    store = open_with(reap_after=600.0)
    bridge.run(store.catalogue.purge_queue(queue))
    bridge.run(store.reap())
    assert rows_left(store, queue.qid) != {}
    assert [pending.qid for pending in pending_deletes(store, application)] == [queue.qid]


def test_one_that_fails_does_not_stop_the_others(
    reaping: CassandraStore, wire: Wire, application: str, queue: Queue
) -> None:
    """What is left of one queue stays for the next run if it cannot be removed; that of others is removed."""
    bridge.run(reaping.reap())  # What other tests have left, which the failure below would meet first.
    more, _ = bridge.run(reaping.catalogue.create_queue(application, "more", QueueSpec()))
    for each in (queue, more):
        bridge.run(reaping.catalogue.delete_queue(each))
    wire.fail(lambda statement: not statement.reads)
    bridge.run(reaping.reap())
    assert len(pending_deletes(reaping, application)) == 1
    bridge.run(reaping.reap())
    assert pending_deletes(reaping, application) == []


def test_done_in_the_background(open_with: OpenStore, application: str, queue: Queue) -> None:
    """A store collects garbage in the background, and continues after a failure."""
    failed = threading.Event()
    failing = Wire()
    failing.fail([SELECT_OLDER], then=failed.set)
    store, other = open_with(failing, reap_after=-1.0, reap_interval=0.05), open_with()
    assert failed.wait(60)
    bridge.run(other.catalogue.purge_queue(queue))
    until = time.monotonic() + 60
    while pending_deletes(other, application) and time.monotonic() < until:
        pass
    assert pending_deletes(other, application) == []
    store.close()
    lookups = failing.log.count([SELECT_OLDER])
    time.sleep(0.2)
    assert failing.log.count([SELECT_OLDER]) == lookups


@given(st.integers(0, 3), st.integers(0, 500 * 86_400), st.data())
def test_places_that_may_hold_something(home_class: int, since: int, data: st.DataObject) -> None:
    """Every bucket with a live message is emptied even long after the purge, with few other buckets visited."""
    buried = ids.seconds_to_ticks(1.7e9)
    now = buried + since * TICKS_PER_SECOND
    span = CLASSES[home_class] * TICKS_PER_SECOND
    pending = PendingDelete(
        recorded_at=(buried, 0),
        qid=1,
        uid=None,
        partitions=1,
        home_class=home_class,
        longest_ttl=1,
        application="a",
        name="q",
    )
    places = unrecorded_buckets(pending, now)
    at = data.draw(st.integers(buried - span, buried + span))
    if at + span > now:
        assert bucket_of(at, home_class, 0) in places
    assert len(places) <= 4
