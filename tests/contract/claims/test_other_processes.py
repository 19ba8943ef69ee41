"""A process answers no claim and no receipt by a log that another process has written further."""

from __future__ import annotations

from queuey.claims.receipts import ReceiptStatus
from queuey.storage import Store
from tests.backends import Clock
from tests.blocking import blocking
from tests.contract.claims.test_claims import enter, statuses, texts
from tests.contract.samples import make_queue, say


def test_a_showing_knows_what_others_did(store: Store, other: Store) -> None:
    """A poll with a ttl of 0 shows no message that another process has given out or acknowledged."""
    queue = make_queue(store)
    say(store, queue, "a", "b", "c")
    (one, access), (two, there) = enter(store, queue), enter(other, queue)
    assert texts(blocking(one.claims).claim(access, limit=9, ttl=0)) == ["a", "b", "c"]
    [first, second] = blocking(two.claims).claim(there, limit=2, ttl=60)
    assert texts(blocking(one.claims).claim(access, limit=9, ttl=0)) == ["c"]
    blocking(two.claims).acknowledge(there, [first.receipt])
    blocking(two.claims).release(there, [second.receipt])
    assert texts(blocking(one.claims).claim(access, limit=9, ttl=0)) == ["b", "c"]


def test_a_receipt_is_refused_by_the_whole_log(store: Store, other: Store, clock: Clock) -> None:
    """A receipt whose message another process has acknowledged meanwhile is answered as that process answers it."""
    queue = make_queue(store)
    say(store, queue, "a")
    (one, access), (two, there) = enter(store, queue), enter(other, queue)
    [old] = blocking(one.claims).claim(access, limit=1, ttl=10)
    clock.advance(20)
    [newer] = blocking(one.claims).claim(access, limit=1, ttl=60)
    assert statuses(blocking(two.claims).acknowledge(there, [old.receipt])) == [ReceiptStatus.SUPERSEDED]
    assert statuses(blocking(one.claims).acknowledge(access, [newer.receipt])) == [ReceiptStatus.DONE]
    for service, way in ((one, access), (two, there)):
        assert statuses(blocking(service.claims).acknowledge(way, [old.receipt])) == [ReceiptStatus.FINAL]
        assert statuses(blocking(service.claims).renew(way, [old.receipt], 60)) == [ReceiptStatus.FINAL]
