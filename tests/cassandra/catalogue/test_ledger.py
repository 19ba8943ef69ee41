"""The ledger: entries that are compared by a token of their own, and end together with it."""

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
    """A change whose answers are lost although it was made ends well, and so does the next, which compares with it."""
    wire = Wire()
    store = open_with(wire)
    for sent, (expected, value) in enumerate([(None, b"a"), (b"a", b"b")], 1):
        wire.lose([ledger._SET], times=2)
        assert bridge.run(store.ledger.enter(application, 0, value, expected=expected)) == value
        assert wire.log.count([ledger._SET]) == 3 * sent
    assert bridge.run(store.ledger.entry(application, 0)) == b"b"


def test_an_entry_ends_as_a_whole(store: CassandraStore, application: str) -> None:
    """Each change gives the token and the value 30 days from then on; nothing of an entry outlives the rest of it."""
    for expected, value in ((None, b"a"), (b"a", b"b")):
        bridge.run(store.ledger.enter(application, 7, value, expected=expected))
        (left,) = store._driver.run(
            Statement("SELECT ttl(value), ttl(version) FROM ledger WHERE work = ? AND piece = ?"), (application, 7)
        )
        assert left[0] == left[1]
        assert LEDGER_TTL - 600 < left[0] <= LEDGER_TTL
    # No marker of a row was written, which would end 30 days after the first change, or never.
    store._driver.run(
        Statement(
            "UPDATE ledger SET value = null, version = null WHERE work = ? AND piece = ? IF EXISTS", idempotent=False
        ),
        (application, 7),
    )
    assert store._driver.run(Statement("SELECT * FROM ledger WHERE work = ? AND piece = ?"), (application, 7)) == []


@pytest.mark.parametrize(("work", "piece"), [("", 0), ("é" * 251, 0), ("w", -1), ("w", 1 << 63)])
def test_names_that_are_none(store: CassandraStore, work: str, piece: int) -> None:
    """A name that is empty or too long, or no number of a piece, is refused."""
    with pytest.raises(InvalidRequest):
        bridge.run(store.ledger.enter(work, piece, b"", expected=None))
    with pytest.raises(InvalidRequest):
        bridge.run(store.ledger.entry(work, piece))


def test_no_time_from_a_clock_that_is_off(scene: Scene) -> None:
    """Ids are reserved by this time: no answer is better than that of a clock that the nodes contradict."""
    process = scene.start()
    assert bridge.run(process.store.ledger.now()) > 0
    process.machine.fall_behind(S)
    assert not process.check_clock()
    with pytest.raises(StoreUnavailable):
        bridge.run(process.store.ledger.now())


def test_the_identity_has_no_end(store: CassandraStore) -> None:
    """Other entries end after 30 days; which store it is does not."""
    bridge.run(store.identity())
    statement = Statement("SELECT ttl(value), ttl(version) FROM ledger WHERE work = ? AND piece = 0")
    assert [tuple(row) for row in store._driver.run(statement, (IDENTITY,))] == [(None, None)]
