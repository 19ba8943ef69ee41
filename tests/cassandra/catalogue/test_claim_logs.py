"""Claim logs while answers of Cassandra are lost, late or held."""

from __future__ import annotations

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import LogEntry, Queue, QueueSpec
from queuey.storage.cassandra import CassandraStore
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import APPENDS, QUEUES, Wire
from tests.contract.samples import begun_entry, enter


@pytest.fixture
def wire() -> Wire:
    """The way of the store under test."""
    return Wire()


@pytest.fixture
def store(open_with: OpenStore, wire: Wire) -> CassandraStore:
    """The store under test."""
    return open_with(wire)


@pytest.fixture
def queue(store: CassandraStore, application: str) -> Queue:
    """A queue with one entry in its log."""
    queue, _ = store.create_queue(application, "queue", QueueSpec())
    assert enter(store, queue, LogEntry(1, b"one"))
    return queue


def outcome_of(store: CassandraStore, queue: Queue, entry: LogEntry) -> str:
    """The outcome of an append that fails."""
    with pytest.raises(StoreUnavailable) as failed:
        begun_entry(store, queue, entry).result(60)
    return failed.value.outcome


def test_row_that_cannot_be_read(store: CassandraStore, wire: Wire, queue: Queue) -> None:
    """An append that needs the queue's row, and cannot read it, sends nothing."""
    store._rows.forget(queue.application, queue.name)
    wire.fail(QUEUES, times=3)
    assert outcome_of(store, queue, LogEntry(2, b"mine")) == "none"
    wire.clear()
    assert enter(store, queue, LogEntry(2, b"mine"))


def test_no_thread_is_held(store: CassandraStore, wire: Wire, queue: Queue) -> None:
    """Many appends that Cassandra does not answer leave the store's threads free for others."""
    gate = wire.hold(APPENDS, times=50, answered=True)
    answers = [begun_entry(store, queue, LogEntry(2, b"mine %d" % n)) for n in range(50)]
    gate.passed()
    assert store._pool.submit(lambda: "free").result(60) == "free"
    gate.open()
    assert [answer.result(60) for answer in answers].count(True) == 1
