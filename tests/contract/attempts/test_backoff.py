"""When failed messages are delivered again: the queue's backoff decides, for every client."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.claims.claims import HandlerFailure
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.model.messages import Backoff, QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.attempts.test_attempts import make_limited_queue, wait_for_dead_letter
from tests.contract.claims.test_claims import claimed_bodies, enter
from tests.contract.samples import append_bodies, fresh_name, make_queue

FAILED = HandlerFailure("ValueError")


def claim(service: Service, access: QueueAccess) -> list[ClaimDelivery]:
    return blocking(service.claims).claim(access, limit=10, ttl=60)


def fail(service: Service, access: QueueAccess, receipts: Sequence[ClaimReceipt]) -> list[float]:
    """Releases messages as failed; returns the seconds until they are delivered again."""
    settled = blocking(service.claims).release(access, receipts, reason=FAILED)
    now = service.store.clock.now_ms() / 1000
    return [round(settlement.expires - now, 1) for settlement in settled]


def test_delays_grow(store: Store, clock: Clock) -> None:
    """Each delivery is later, up to the longest delay; a delay given by the caller counts instead."""
    queue = make_queue(store, backoff=Backoff(first=10, factor=3, most=50, jitter=0))
    append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    for delay in (10, 30, 50, 50):
        [claimed] = claim(service, access)
        assert fail(service, access, [claimed.receipt]) == [delay]
        clock.advance(delay - 5)
        assert claim(service, access) == []
        clock.advance(10)
    [claimed] = claim(service, access)
    blocking(service.claims).release(access, [claimed.receipt], 0.0, FAILED)
    [claimed] = claim(service, access)
    blocking(service.claims).release(access, [claimed.receipt])
    assert claimed_bodies(claim(service, access)) == ["a"]


def test_the_default(store: Store) -> None:
    """In a queue without options, failed messages are delivered again after about a second."""
    queue = make_queue(store)
    append_bodies(store, queue, "a", "b")
    service, access = enter(store, queue)
    delays = fail(service, access, [delivery.receipt for delivery in claim(service, access)])
    assert all(0.8 <= delay <= 1.0 for delay in delays)


def test_the_last_delivery_has_no_delay(store: Store) -> None:
    """A message at its delivery limit becomes a dead letter at the next claim, without a delay."""
    queue = make_limited_queue(store, 1)
    [place] = append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    [claimed] = claim(service, access)
    blocking(service.claims).release(access, [claimed.receipt], reason=FAILED)
    assert claim(service, access) == []
    assert wait_for_dead_letter(store, queue, place).cause.error == "ValueError"


def test_giving_up(store: Store, other: Store) -> None:
    """A message that a worker gives up is a dead letter at once, with the reason; the call may be repeated."""
    queue = make_limited_queue(store, 0)
    [place] = append_bodies(store, queue, "a")
    (own_service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    [claimed] = claim(own_service, access)
    for service, way in ((own_service, access), (peer, peer_access), (own_service, access)):
        [settled] = blocking(service.claims).release(way, [claimed.receipt], reason=FAILED, retry=False)
        assert settled.status in {ReceiptStatus.ACCEPTED, ReceiptStatus.FINAL}
        assert claim(peer, peer_access) == []
    cause = wait_for_dead_letter(store, queue, place).cause
    assert (cause.attempts, cause.error, len(cause.history)) == (1, "ValueError", 1)


def test_giving_up_what_another_has(store: Store) -> None:
    """A worker whose claim has ended cannot give up a message that another worker has."""
    queue = make_limited_queue(store, 0)
    append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    [first] = claim(service, access)
    blocking(service.claims).release(access, [first.receipt])
    [second] = claim(service, access)
    [settled] = blocking(service.claims).release(access, [first.receipt], retry=False)
    assert settled.status is ReceiptStatus.SUPERSEDED
    [settled] = blocking(service.claims).acknowledge(access, [second.receipt])
    assert settled.status is ReceiptStatus.ACCEPTED


def test_dead_letters_are_not_given_up(store: Store) -> None:
    """A dead letter that fails is delivered again, with the delay of a failure."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, f"{fresh_name()}.dead", QueueSpec(read_delay=0.0)))
    append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    [claimed] = claim(service, access)
    [settled] = blocking(service.claims).release(access, [claimed.receipt], retry=False)
    assert settled.expires


@given(
    first=st.floats(0, 43_200),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    deliveries=st.integers(1, 1_000_000),
    draw=st.floats(0, 1),
)
def test_delays_are_bounded(first: float, factor: float, jitter: float, deliveries: int, draw: float) -> None:
    """After any number of failures the delay is between the first and the longest, apart from jitter."""
    backoff = Backoff(first=first, factor=factor, most=43_200, jitter=jitter)
    assert (1 - jitter) * first * 0.999 <= backoff.delay(deliveries, draw) <= 43_200
