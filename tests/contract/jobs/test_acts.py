"""Operators' acts on jobs: a cancelled job is not delivered any more, and a retried one is delivered at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from queuey.claims.claims import HandlerFailure
from queuey.claims.job_records import JobRecords
from queuey.claims.jobs import CANCELLED_ERROR
from queuey.claims.rules.receipts import ReceiptStatus
from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.errors import InvalidRequest, MessageNotFound, StoreUnavailable
from queuey.storage import ClaimLogs, Ledger, Messages, Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking, post
from tests.contract.claims.test_claims import claimed_bodies, enter
from tests.contract.claims.test_ordered import claim_soon, make_ordered, send
from tests.contract.samples import append_bodies, make_queue, method_of
from tests.interposed_store import InterposedStore

FAILED = HandlerFailure("ValueError", "no egg")


def test_what_nobody_works_on_is_removed(store: Store, other: Store) -> None:
    """Cancelled jobs that wait, are delayed or rest are never delivered; their attempts show who ended them."""
    queue = make_queue(store, partitions=2)
    [waits, rests] = append_bodies(store, queue, "waits", "rests")
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    [(_, later)] = post(service, access, [Draft("later", partition=2, delay=60)]).locations
    claimed = blocking(service.claims).claim(access, limit=2, ttl=60)
    blocking(service.claims).release(access, [claimed[0].receipt])
    blocking(service.claims).release(access, [claimed[1].receipt], 60, FAILED)
    cancel = blocking(peer.claims).cancel
    assert [cancel(peer_access, waits), cancel(peer_access, rests), cancel(peer_access, later, None)] == ["removed"] * 3
    assert [cancel(peer_access, waits), cancel(peer_access, rests)] == ["done"] * 2
    for place in (later, (5, 5)):
        with pytest.raises(MessageNotFound, match=ids.to_hex(place)):
            cancel(peer_access, place, None)
    assert blocking(service.claims).claim(access, limit=9, ttl=60) == []
    assert service.core.run(service.claims.overview.size(access, 9)).size == 0
    attempts = bridge.run(JobRecords(store.ledger).read(queue, 1, rests)).attempts
    assert [attempt.error for attempt in attempts] == ["ValueError", CANCELLED_ERROR]


@pytest.mark.parametrize("end", ["fails", "fails for good", "dies", "is given back"])
def test_who_works_on_it_is_asked_to_stop(store: Store, other: Store, clock: Clock, end: str) -> None:
    """The worker of a cancelled job is told at its next renewal, in any process; that attempt is the last one."""
    queue = make_queue(store, max_deliveries=9)
    place, _ = append_bodies(store, queue, "job", "neighbour")
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    job, neighbour = blocking(service.claims).claim(access, limit=2, ttl=60)
    assert blocking(peer.claims).cancel(peer_access, place) == "claimed"
    assert blocking(peer.claims).cancel(peer_access, place) == "claimed"
    renewed = blocking(service.claims).renew(access, [job.receipt, neighbour.receipt], 60)
    assert [(settlement.status, settlement.cancelled) for settlement in renewed] == [
        (ReceiptStatus.ACCEPTED, True),
        (ReceiptStatus.ACCEPTED, False),
    ]
    receipts = [job.receipt, neighbour.receipt]
    match end:
        case "fails":
            blocking(service.claims).release(access, receipts, 0.0, FAILED)
        case "fails for good":
            blocking(service.claims).release(access, [job.receipt], reason=FAILED, retry=False)
            blocking(service.claims).release(access, [neighbour.receipt])
        case "is given back":
            blocking(peer.claims).release_all(peer_access)
        case _:
            clock.advance(70)
    assert claimed_bodies(blocking(peer.claims).claim(peer_access, limit=9, ttl=60)) == ["neighbour"]
    assert blocking(peer.claims).find_status(queue, (1, place)) is None
    assert [found.name for found in bridge.run(store.catalogue.list_queues(APP, start=queue.name, limit=2))][1:] != [
        f"{queue.name}.dead"
    ]


def test_a_mark_comes_too_late(store: Store, other: Store) -> None:
    """A cancelled job whose worker finishes before it is told is done; then nothing is left to cancel."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "job")
    (service, access), (peer, there) = enter(store, queue), enter(other, queue)
    [job] = blocking(service.claims).claim(access, limit=1, ttl=60)
    assert blocking(peer.claims).cancel(there, place) == "claimed"
    [settled] = blocking(service.claims).acknowledge(access, [job.receipt])
    assert settled.status is ReceiptStatus.ACCEPTED
    assert (
        blocking(peer.claims).cancel(there, place) == blocking(peer.claims).make_available_now(there, place) == "done"
    )


def test_what_rests_or_is_delayed_comes_at_once(store: Store, other: Store) -> None:
    """A retried job that rests or is delayed is delivered at once, once, by any process; a claimed job is unchanged."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "rests")
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    [(_, later)] = post(service, access, [Draft("later", delay=60)]).locations
    [job] = blocking(service.claims).claim(access, limit=9, ttl=60)
    assert blocking(peer.claims).make_available_now(peer_access, place) == "claimed"
    blocking(service.claims).release(access, [job.receipt], 60, FAILED)
    assert blocking(service.claims).claim(access, limit=9, ttl=60) == []
    assert [blocking(peer.claims).make_available_now(peer_access, one) for one in (place, later, later)] == [
        "waiting"
    ] * 3
    claimed = blocking(service.claims).claim(access, limit=9, ttl=60)
    assert sorted((str(each.message.body), each.deliveries) for each in claimed) == [("later", 1), ("rests", 2)]
    assert blocking(peer.claims).claim(peer_access, limit=9, ttl=60) == []
    blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
    assert [blocking(peer.claims).cancel(peer_access, one) for one in (place, later)] == ["done"] * 2


def test_what_was_retried_early_is_counted_once(store: Store) -> None:
    """A job retried before it is due counts as waiting, then claimed, then done, and not as delayed or failed."""
    queue = make_queue(store)
    service, access = enter(store, queue)
    [(_, later), (_, latest)] = post(service, access, [Draft("a", delay=60), Draft("b", delay=90)]).locations
    blocking(service.claims).make_available_now(access, later)

    def counts() -> tuple[int, int, int, int, float | None]:
        backlog = service.core.run(service.claims.overview.backlog(access, 9))
        return backlog.waiting, backlog.failed, backlog.claimed, backlog.delayed, backlog.due

    due = ids.ticks_to_seconds(latest[0])
    assert counts() == (1, 0, 0, 1, due)
    [job] = blocking(service.claims).claim(access, limit=9, ttl=60)
    assert counts() == (0, 0, 1, 1, due)
    blocking(service.claims).acknowledge(access, [job.receipt])
    assert counts() == (0, 0, 0, 1, due)


def test_dedup_queues(store: Store) -> None:
    """A delayed job of a dedup queue cannot be retried: until it is done, its copies would hold the cursor."""
    queue = make_queue(store, kind="dedup")
    service, access = enter(store, queue)
    [(_, later)] = post(service, access, [Draft("x", delay=60)]).locations
    with pytest.raises(InvalidRequest, match="delivers equal messages once, so it waits until it is due"):
        blocking(service.claims).make_available_now(access, later)


def test_ordered_queues(store: Store) -> None:
    """A cancelled job of an ordered queue frees its key; a delayed one cannot be retried, as its key is unknown."""
    queue = make_ordered(store)
    service, access = way = enter(store, queue)
    [(_, first), _] = send(service, access, "k first", "k second")
    [(_, later)] = post(service, access, [Draft("k later", key="k", delay=60)]).locations
    [job] = claim_soon(way, 1)
    assert blocking(service.claims).cancel(access, first) == "claimed"
    blocking(service.claims).release(access, [job.receipt], 60, FAILED)
    assert claimed_bodies(claim_soon(way)) == ["k second"]
    with pytest.raises(InvalidRequest, match="delivers by keys"):
        blocking(service.claims).make_available_now(access, later)


@pytest.mark.parametrize(
    "step", [ClaimLogs.append_entry, Messages.delete, Ledger.change], ids=lambda step: step.__name__
)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_process_dies_during_an_act(store: Store, other: Store, step: Callable[..., Any], *, done: bool) -> None:
    """Wherever a process dies during an act, the job exists for all or for none, and the act can be repeated."""
    queue = make_queue(store)
    between = InterposedStore(store)
    service, access = enter(between.store, queue)
    (two, there) = enter(other, queue)
    [waits] = append_bodies(store, queue, "waits")
    [(_, later)] = post(two, there, [Draft("later", delay=60)]).locations
    real = method_of(store, step)

    async def die(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - of any method
        if done:
            await real(*given, **named)
        raise StoreUnavailable("The process has ended.", outcome="none")

    for place in (waits, later):
        between.instead(step, die)
        with suppress(StoreUnavailable):
            blocking(service.claims).cancel(access, place)
        between.restore(step)
        with suppress(MessageNotFound):
            assert blocking(two.claims).cancel(there, place) in {"removed", "done"}
    assert blocking(two.claims).claim(there, limit=9, ttl=60) == []
    assert two.core.run(two.claims.overview.backlog(there, 9)).delayed == 0
