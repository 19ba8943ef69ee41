"""The ledger compares entries by a token of their own, and each entry expires as a whole."""

from __future__ import annotations

import pytest

from queuey.errors import InvalidRequest, StoreUnavailable
from queuey.storage import IDENTITY, LEDGER_TTL, bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.driver import Statement
from queuey.storage.cassandra.store import ledger
from tests.cassandra.conftest import OpenStore
from tests.cassandra.interposed import Wire
from tests.cassandra.scene import S, Scene


def test_an_entry_that_was_in_doubt(open_with: OpenStore, application: str) -> None:
    """A change that was applied and whose answers are lost succeeds, and so does the next, which compares with it."""
    wire = Wire()
    store = open_with(wire)
    for sent, (expected, value) in enumerate([(None, b"a"), (b"a", b"b")], 1):
        wire.lose([ledger._UPDATE_ENTRY], times=2)
        assert bridge.run(store.ledger.enter(application, 0, value, expected=expected)) == value
        assert wire.log.count([ledger._UPDATE_ENTRY]) == 3 * sent
    assert bridge.run(store.ledger.entry(application, 0)) == b"b"


def test_an_entry_ends_as_a_whole(store: CassandraStore, application: str) -> None:
    """Each change sets token and value to expire 30 days later; nothing of an entry outlives the rest."""
    for expected, value in ((None, b"a"), (b"a", b"b")):
        bridge.run(store.ledger.enter(application, 7, value, expected=expected))
        (lifetime,) = store._driver.run(
            Statement("SELECT ttl(value), ttl(version) FROM ledger WHERE work = ? AND piece = ?"), (application, 7)
        )
        assert lifetime[0] == lifetime[1]
        assert LEDGER_TTL - 600 < lifetime[0] <= LEDGER_TTL
    # No row marker was written; it would expire 30 days after the first change, or never.
    store._driver.run(
        Statement(
            "UPDATE ledger SET value = null, version = null WHERE work = ? AND piece = ? IF EXISTS", idempotent=False
        ),
        (application, 7),
    )
    assert store._driver.run(Statement("SELECT * FROM ledger WHERE work = ? AND piece = ?"), (application, 7)) == []


@pytest.mark.parametrize(("work", "piece"), [("", 0), ("é" * 251, 0), ("w", -1), ("w", 1 << 63)])
def test_names_that_are_none(store: CassandraStore, work: str, piece: int) -> None:
    """A name that is empty or too long, or an invalid piece number, is refused."""
    with pytest.raises(InvalidRequest):
        bridge.run(store.ledger.enter(work, piece, b"", expected=None))
    with pytest.raises(InvalidRequest):
        bridge.run(store.ledger.entry(work, piece))


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
    statement = Statement("SELECT ttl(value), ttl(version) FROM ledger WHERE work = ? AND piece = 0")
    assert [tuple(row) for row in store._driver.run(statement, (IDENTITY,))] == [(None, None)]
