"""The ledger compares entries by a token of their own, and each entry expires as a whole."""

from __future__ import annotations

import pytest

from queuey.model.errors import StoreUnavailable
from queuey.storage import IDENTITY, LEDGER_TTL, bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.cluster import Statement
from queuey.storage.cassandra.tables import records
from tests.storage.cassandra.begun import driver_of
from tests.storage.cassandra.scene import S, Scene

WHERE = "WHERE kind = ? AND shard = ? AND application = ? AND name = ?"


def test_an_entry_ends_as_a_whole(store: CassandraStore, application: str) -> None:
    """Each change sets token and value to expire 30 days later; nothing of an entry outlives the rest."""
    key = records._make_key("ledger", "", f"7 {application}")
    for expected, value in ((None, b"a"), (b"a", b"b")):
        bridge.run(store.ledger.enter(application, 7, value, expected=expected))
        (lifetime,) = driver_of(store).run(Statement(f"SELECT ttl(value), ttl(version) FROM records {WHERE}"), key)
        assert lifetime[0] == lifetime[1]
        assert LEDGER_TTL - 600 < lifetime[0] <= LEDGER_TTL
    # No row marker was written; it would expire 30 days after the first change, or never.
    driver_of(store).run(
        Statement(f"UPDATE records SET value = null, due = null, version = null {WHERE} IF EXISTS", idempotent=False),
        key,
    )
    assert driver_of(store).run(Statement(f"SELECT * FROM records {WHERE}"), key) == []


def test_no_time_from_a_clock_that_is_off(scene: Scene) -> None:
    """The ledger gives no time while the nodes contradict the clock, because ids are reserved by that time."""
    process = scene.start()
    assert bridge.run(process.store.ledger.now()) > 0
    process.machine.fall_behind(S)
    assert not process.check_clock()
    with pytest.raises(StoreUnavailable):
        bridge.run(process.store.ledger.now())


def test_the_identity_has_no_end(store: CassandraStore) -> None:
    """Entries expire after 30 days; the identity of the store does not."""
    bridge.run(store.identity())
    statement = Statement(f"SELECT ttl(value), ttl(version) FROM records {WHERE}")
    key = records._make_key("ledger", "", f"0 {IDENTITY}")
    assert [tuple(row) for row in driver_of(store).run(statement, key)] == [(None, None)]
