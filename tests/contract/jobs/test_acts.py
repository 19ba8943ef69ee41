"""Acts of operators on jobs: what is cancelled is not delivered any more, and what is retried comes at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from queuey import ids
from queuey.claims.receipts import ReceiptStatus
from queuey.errors import InvalidRequest, MessageNotFound, StoreUnavailable
from queuey.messages import QueueSpec
from queuey.service import Draft
from queuey.service.claims import ReleaseReason
from queuey.service.claims.attempts import Attempts
from queuey.service.claims.jobs import CANCELLED
from queuey.storage import ClaimLogs, Ledger, Messages, Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking, post
from tests.contract.claims.test_claims import enter, texts
from tests.contract.claims.test_ordered import claim_soon, make_ordered, send
from tests.contract.samples import fresh_name, make_queue, method_of, say
from tests.interposed_store import InterposedStore

FAILED = ReleaseReason("ValueError", "no egg")


def test_what_nobody_works_on_is_removed(store: Store, other: Store) -> None:
    """Waiting, delayed and resting jobs are delivered to nobody, by no process; the record says who ended them."""
    queue = make_queue(store, partitions=2)
    [waits, rests] = say(store, queue, "waits", "rests")
    (one, access), (two, there) = enter(store, queue), enter(other, queue)
    [(_, later)] = post(one, access, [Draft("later", partition=2, delay=60)]).locations
    claimed = blocking(one.claims).claim(access, limit=2, ttl=60)
    blocking(one.claims).release(access, [claimed[0].receipt])
    blocking(one.claims).release(access, [claimed[1].receipt], 60, FAILED)
    cancel = blocking(two.claims).cancel
    assert [cancel(there, waits), cancel(there, rests), cancel(there, later, None)] == ["removed"] * 3
    assert [cancel(there, waits), cancel(there, rests)] == ["done"] * 2
    for place in (later, (5, 5)):
        with pytest.raises(MessageNotFound, match=ids.to_hex(place)):
            cancel(there, place, None)
    assert blocking(one.claims).claim(access, limit=9, ttl=60) == []
    assert one.claims.size(access, 9).size == 0
    known = bridge.run(Attempts(store.ledger).of(queue, 1, [rests]))
    assert [each.error for each in known[rests].attempts] == ["ValueError", CANCELLED]


@pytest.mark.parametrize("end", ["fails", "fails for good", "dies", "is given back"])
def test_who_works_on_it_is_asked_to_stop(store: Store, other: Store, clock: Clock, end: str) -> None:
    """Its next renewal says so, in any process; however that attempt ends, it is the last. Its neighbour is spared."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(read_delay=0.0, max_deliveries=9)))
    place, _ = say(store, queue, "job", "neighbour")
    (one, access), (two, there) = enter(store, queue), enter(other, queue)
    job, neighbour = blocking(one.claims).claim(access, limit=2, ttl=60)
    assert blocking(two.claims).cancel(there, place) == "claimed"
    assert blocking(two.claims).cancel(there, place) == "claimed"
    renewed = blocking(one.claims).renew(access, [job.receipt, neighbour.receipt], 60)
    assert [(each.status, each.cancelled) for each in renewed] == [
        (ReceiptStatus.DONE, True),
        (ReceiptStatus.DONE, False),
    ]
    receipts = [job.receipt, neighbour.receipt]
    match end:
        case "fails":
            blocking(one.claims).release(access, receipts, 0.0, FAILED)
        case "fails for good":
            blocking(one.claims).release(access, [job.receipt], reason=FAILED, retry=False)
            blocking(one.claims).release(access, [neighbour.receipt])
        case "is given back":
            blocking(two.claims).release_all(there)
        case _:
            clock.advance(70)
    assert texts(blocking(two.claims).claim(there, limit=9, ttl=60)) == ["neighbour"]
    assert blocking(two.claims).is_done(queue, (1, place))
    assert [found.name for found in bridge.run(store.catalogue.list_queues(APP, start=queue.name, limit=2))][1:] != [
        f"{queue.name}.dead"
    ]


def test_a_mark_comes_too_late(store: Store, other: Store) -> None:
    """A worker who has stopped for no one may finish; then there is nothing to cancel."""
    queue = make_queue(store)
    [place] = say(store, queue, "job")
    (one, access), (two, there) = enter(store, queue), enter(other, queue)
    [job] = blocking(one.claims).claim(access, limit=1, ttl=60)
    assert blocking(two.claims).cancel(there, place) == "claimed"
    [settled] = blocking(one.claims).acknowledge(access, [job.receipt])
    assert settled.status is ReceiptStatus.DONE
    assert blocking(two.claims).cancel(there, place) == blocking(two.claims).hasten(there, place) == "done"


def test_what_rests_or_is_delayed_comes_at_once(store: Store, other: Store) -> None:
    """Any process delivers it then, once; a job that a worker has stays there."""
    queue = make_queue(store)
    [place] = say(store, queue, "rests")
    (one, access), (two, there) = enter(store, queue), enter(other, queue)
    [(_, later)] = post(one, access, [Draft("later", delay=60)]).locations
    [job] = blocking(one.claims).claim(access, limit=9, ttl=60)
    assert blocking(two.claims).hasten(there, place) == "claimed"
    blocking(one.claims).release(access, [job.receipt], 60, FAILED)
    assert blocking(one.claims).claim(access, limit=9, ttl=60) == []
    assert [blocking(two.claims).hasten(there, one) for one in (place, later, later)] == ["waiting"] * 3
    found = blocking(one.claims).claim(access, limit=9, ttl=60)
    assert sorted((str(each.message.body), each.deliveries) for each in found) == [("later", 1), ("rests", 2)]
    assert blocking(two.claims).claim(there, limit=9, ttl=60) == []
    blocking(one.claims).acknowledge(access, [each.receipt for each in found])
    assert [blocking(two.claims).cancel(there, one) for one in (place, later)] == ["done"] * 2


def test_what_was_retried_early_is_counted_once(store: Store) -> None:
    """It is not delayed any more: it waits without a failure, is claimed, and is done, each at its time."""
    queue = make_queue(store)
    service, access = enter(store, queue)
    [(_, later), (_, latest)] = post(service, access, [Draft("a", delay=60), Draft("b", delay=90)]).locations
    blocking(service.claims).hasten(access, later)

    def counts() -> tuple[int, int, int, int, float | None]:
        backlog = service.claims.backlog(access, 9)
        return backlog.waiting, backlog.failed, backlog.claimed, backlog.delayed, backlog.due

    due = ids.ticks_to_seconds(latest[0])
    assert counts() == (1, 0, 0, 1, due)
    [job] = blocking(service.claims).claim(access, limit=9, ttl=60)
    assert counts() == (0, 0, 1, 1, due)
    blocking(service.claims).acknowledge(access, [job.receipt])
    assert counts() == (0, 0, 0, 1, due)


def test_dedup_queues(store: Store) -> None:
    """A delayed job is not made due: while it is not done, its copies would hold the cursor, even for months."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(read_delay=0.0, kind="dedup")))
    service, access = enter(store, queue)
    [(_, later)] = post(service, access, [Draft("x", delay=60)]).locations
    with pytest.raises(InvalidRequest, match="delivers equal messages once: it waits until it is due"):
        blocking(service.claims).hasten(access, later)


def test_ordered_queues(store: Store) -> None:
    """A cancelled job frees its key; a delayed one is not made due, because nobody knows its key yet."""
    queue = make_ordered(store)
    service, access = way = enter(store, queue)
    [(_, first), _] = send(service, access, "k first", "k second")
    [(_, later)] = post(service, access, [Draft("k later", key="k", delay=60)]).locations
    [job] = claim_soon(way, 1)
    assert blocking(service.claims).cancel(access, first) == "claimed"
    blocking(service.claims).release(access, [job.receipt], 60, FAILED)
    assert texts(claim_soon(way)) == ["k second"]
    with pytest.raises(InvalidRequest, match="delivers by keys"):
        blocking(service.claims).hasten(access, later)


@pytest.mark.parametrize(
    "step", [ClaimLogs.append_entry, Messages.delete, Ledger.enter], ids=lambda step: step.__name__
)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_process_dies_during_an_act(store: Store, other: Store, step: Callable[..., Any], *, done: bool) -> None:
    """Whichever step was the last, the job is there for all or for nobody, and the act can be repeated."""
    queue = make_queue(store)
    between = InterposedStore(store)
    service, access = enter(between.store, queue)
    (two, there) = enter(other, queue)
    [waits] = say(store, queue, "waits")
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
        between.passing(step)
        with suppress(MessageNotFound):
            assert blocking(two.claims).cancel(there, place) in {"removed", "done"}
    assert blocking(two.claims).claim(there, limit=9, ttl=60) == []
    assert two.claims.backlog(there, 9).delayed == 0
