"""A process answers no claim and no receipt from an outdated log."""

from __future__ import annotations

from queuey.storage import Store
from tests.blocking import blocking
from tests.contract.claims.test_claims import claimed_bodies, enter
from tests.contract.samples import fill_queue


def test_a_showing_knows_what_others_did(store: Store, other: Store) -> None:
    """A poll with a ttl of 0 shows no message that another process has delivered or acknowledged."""
    queue = fill_queue(store, "a", "b", "c")
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=0)) == ["a", "b", "c"]
    [first, second] = blocking(peer.claims).claim(peer_access, limit=2, ttl=60)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=0)) == ["c"]
    blocking(peer.claims).acknowledge(peer_access, [first.receipt])
    blocking(peer.claims).release(peer_access, [second.receipt])
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=0)) == ["b", "c"]
