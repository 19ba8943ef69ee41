"""Why messages were not acknowledged: reasons from workers, expired claims, and what dead letters keep of them."""

from __future__ import annotations

import time

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import Backlog, PartitionClaims
from queuey.app.service import Service
from queuey.claims.claims import HandlerFailure
from queuey.claims.job_records import CLAIM_EXPIRED_ERROR, MAX_KEPT_ATTEMPTS, JobRecords
from queuey.claims.overview import MAX_SHOWN_TEXT
from queuey.model import ids
from queuey.model.deadletters import Attempt, DeadLetter, decode_dead_letter
from queuey.model.ids import Position
from queuey.model.messages import Meta, Queue
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.claims.test_claims import enter
from tests.contract.samples import append_bodies, count_outbox, eventually, fill_queue, make_queue, new_message


def make_limited_queue(store: Store, most: int) -> Queue:
    return make_queue(store, max_deliveries=most)


def stored_attempts(service: Service, access: QueueAccess, place: Position) -> list[str]:
    reasons = service.core.run(service.explaining.explain(access, place, 1)).reasons
    return [reason.text for reason in reasons if reason.code == "attempt"]


def wait_for_dead_letter(store: Store, queue: Queue, place: Position) -> DeadLetter:
    """Waits for the dead letter of a message and returns it."""
    letters: list[DeadLetter] = []

    def is_there() -> bool:
        dead = f"{queue.name}.dead"
        if any(one.name == dead for one in bridge.run(store.catalogue.list_queues(APP, start=dead, limit=1))):
            for message in bridge.run(
                store.messages.fetch(bridge.run(store.catalogue.queue(APP, dead, fresh=True)), [(1, place)])
            ):
                headers = dict(message.meta.headers) if message.meta else {}
                read = decode_dead_letter(headers, message.body, lies=(dead, 1, message.id), content_type=None)
                assert read is not None
                letters.append(read)
        return bool(letters)

    assert eventually(is_there)
    return letters[0]


@pytest.mark.parametrize("delay", [None, 0.0, 20.0])
def test_reasons_outlive_the_next_delivery(store: Store, clock: Clock, delay: float | None) -> None:
    """Each attempt keeps its own reason at the next delivery, after any delay, and in the dead letter."""
    queue = make_limited_queue(store, 3)
    [place] = append_bodies(store, queue, "bad")
    service, access = enter(store, queue)
    for error in ("First", "Second", "Third"):
        [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60, worker="ann:1")
        blocking(service.claims).release(access, [claimed.receipt], delay, reason=HandlerFailure(error))
        clock.advance(120)
    assert [text.rpartition(": ")[2] for text in stored_attempts(service, access, place)] == [
        "First",
        "Second",
        "Third",
    ]
    assert blocking(service.claims).claim(access, limit=1, ttl=60, worker="ann:1") == []
    cause = wait_for_dead_letter(store, queue, place).cause
    assert ([one.error for one in cause.history], cause.error) == (["First", "Second", "Third"], "Third")


def test_a_release_with_a_delay_is_no_expired_claim(store: Store, other: Store, clock: Clock) -> None:
    """A message released with a delay and no reason has no failed attempt, whichever process delivers it again."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "later")
    for handle in (store, other, store):
        service, access = enter(handle, queue)
        [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60, worker="ann:1")
        blocking(service.claims).release(access, [claimed.receipt], 20.0)
        backlog = service.core.run(service.claims.overview.backlog(access, 100))
        assert (backlog.waiting, backlog.failed, backlog.claimed, backlog.retrying) == (0, 0, 0, 1)
        assert service.core.run(service.claims.overview.count_claims(access)).partitions[1] == PartitionClaims(
            claimed=0, waiting=0, retrying=1
        )
        assert count_outbox(service.claims, access)[1] == 0
        [job] = service.core.run(service.claims.overview.list_jobs(access, 9))
        assert (job.status, job.worker, job.expires is not None) == ("retrying", "ann:1", True)
        [reason] = [
            one
            for one in service.core.run(service.explaining.explain(access, place, 1)).reasons
            if one.code == "retrying"
        ]
        assert "and released: claims get it from " in reason.text
        clock.advance(120)
        backlog = service.core.run(service.claims.overview.backlog(access, 100))
        assert (backlog.waiting, backlog.failed, backlog.claimed, backlog.retrying) == (1, 1, 0, 0)
        assert [job.status for job in service.core.run(service.claims.overview.list_jobs(access, 9))] == ["waiting"]
    assert stored_attempts(service, access, place) == []


def test_claims_that_expire(store: Store, clock: Clock) -> None:
    """A redelivered message, and a dead letter, name the worker whose claim expired."""
    queue = make_limited_queue(store, 2)
    [place] = append_bodies(store, queue, "x")
    service, access = enter(store, queue)
    for worker in ("ann:1", "bob:2"):
        assert len(blocking(service.claims).claim(access, limit=1, ttl=10, worker=worker)) == 1
        clock.advance(60)
    assert blocking(service.claims).claim(access, limit=1, ttl=10, worker="eve:3") == []
    history = wait_for_dead_letter(store, queue, place).cause.history
    assert [(each.worker, each.error) for each in history] == [
        ("ann:1", CLAIM_EXPIRED_ERROR),
        ("bob:2", CLAIM_EXPIRED_ERROR),
    ]


def test_reasons_for_lost_claims(store: Store) -> None:
    """A worker whose claim was released or acknowledged can give no more reasons for that message."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    [first] = blocking(service.claims).claim(access, limit=1, ttl=60)
    blocking(service.claims).release(access, [first.receipt])
    [second] = blocking(service.claims).claim(access, limit=1, ttl=60)
    blocking(service.claims).release(access, [first.receipt], 0.0, reason=HandlerFailure("Late"))
    blocking(service.claims).acknowledge(access, [second.receipt])
    blocking(service.claims).release(access, [second.receipt], 0.0, reason=HandlerFailure("Later"))
    assert stored_attempts(service, access, place) == []


def test_the_last_ones_are_kept(store: Store) -> None:
    """The last of many attempts are kept, each once, in order; a purge forgets them."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    for number in range(MAX_KEPT_ATTEMPTS + 2):
        [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60)
        for _ in range(2):
            blocking(service.claims).release(access, [claimed.receipt], 0.0, reason=HandlerFailure(f"E{number}"))
    attempts = bridge.run(JobRecords(store.ledger).read(queue, 1, place)).attempts
    assert [attempt.error for attempt in attempts] == [f"E{number}" for number in range(2, MAX_KEPT_ATTEMPTS + 2)]
    purged = bridge.run(store.catalogue.purge_queue(queue))
    assert bridge.run(JobRecords(store.ledger).read(purged, 1, place)).attempts == []


def test_backlog(store: Store, other: Store) -> None:
    """A backlog counts waiting, claimed, failed and dead messages, and gives the age of the oldest unfinished one."""
    queue = make_queue(store, partitions=2, max_deliveries=1)
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    assert peer.core.run(peer.claims.overview.backlog(peer_access, 100)) == Backlog(
        0, exact=True, delayed=0, claimed=0, failed=0, dead=0, oldest=None, due=None
    )
    first = append_bodies(store, queue, "a", "b", "c")
    append_bodies(store, queue, "d", partition=2)
    bridge.run(
        store.messages.append(queue, [new_message("later", delay=2000, partition=2), new_message("late", delay=1000)])
    )
    [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60, worker="ann:1", partitions=[1])
    backlog = peer.core.run(peer.claims.overview.backlog(peer_access, 100))
    oldest = ids.ticks_to_seconds(first[0][0])
    assert backlog.due is not None
    assert 990 < backlog.due - ids.ticks_to_seconds(bridge.run(store.ledger.now())) <= 1000
    assert replace(backlog, due=None) == Backlog(
        3, exact=True, delayed=2, claimed=1, failed=0, dead=0, oldest=oldest, due=None
    )
    blocking(service.claims).release(access, [claimed.receipt])
    assert peer.core.run(peer.claims.overview.backlog(peer_access, 100)).failed == 1
    assert len(blocking(service.claims).claim(access, limit=9, ttl=60, partitions=[1])) == 2
    assert eventually(lambda: peer.core.run(peer.claims.overview.backlog(peer_access, 100)).dead == 1)
    backlog = peer.core.run(peer.claims.overview.backlog(peer_access, 100))
    assert (backlog.waiting, backlog.claimed, backlog.oldest) == (1, 2, ids.ticks_to_seconds(first[1][0]))


def test_who_has_which(store: Store) -> None:
    """Outstanding messages are listed with worker, deliveries and end of claim, expired claims first."""
    queue = fill_queue(store, "a", "b", partitions=2)
    append_bodies(store, queue, "c", partition=2)
    service, access = enter(store, queue)
    claims = blocking(service.claims)
    assert service.core.run(service.claims.overview.list_jobs(access, 9)) == []
    claims.claim(access, limit=1, ttl=60, worker="ann:1", partitions=[1])
    claims.claim(access, limit=1, ttl=30, worker="bob:2", partitions=[2])
    [ended] = claims.claim(access, limit=1, ttl=60, worker="eve:3", partitions=[1])
    claims.release(access, [ended.receipt])
    listed = service.core.run(service.claims.overview.list_jobs(access, 9))
    assert [(one.partition, one.worker, one.deliveries) for one in listed] == [
        (1, "eve:3", 1),
        (2, "bob:2", 1),
        (1, "ann:1", 1),
    ]
    assert listed[0].expires is None
    assert listed[1].expires is not None
    assert listed[2].expires is not None
    assert 29 < listed[2].expires - listed[1].expires < 31
    assert service.core.run(service.claims.overview.list_jobs(access, 2)) == listed[:2]
    assert service.core.run(service.claims.overview.list_jobs(access, 9, only_status="claimed")) == [
        job for job in listed if job.status == "claimed"
    ]


def test_what_jobs_call_and_why_they_failed(store: Store, other: Store) -> None:
    """Every process shows the task of a job with its arguments, and the last failed attempt, but only on request."""
    queue = make_queue(store)
    body = '{"task":"thumb","args":["a.jpg"],"kwargs":{"size":4}}'
    bridge.run(
        store.messages.append(
            queue,
            [new_message(body, meta=Meta(json=True)), new_message(body), new_message("b", meta=Meta("text/plain"))],
        )
    )
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    claims = blocking(service.claims).claim(access, limit=3, ttl=600, worker="ann:1")
    for error in ("First", "Last"):
        blocking(service.claims).release(access, [claims[0].receipt], 0.0, reason=HandlerFailure(error, "x" * 900))
        [claims[0]] = blocking(service.claims).claim(access, limit=1, ttl=60, worker="ann:1")
    listed = peer.core.run(peer.claims.overview.list_jobs(peer_access, 9, states=True))
    assert [(job.status, job.task, job.arguments) for job in listed] == [
        ("claimed", "thumb", '"a.jpg", size=4'),
        ("claimed", UNSET, UNSET),
        ("claimed", UNSET, UNSET),
    ]
    assert isinstance(listed[0].failure, Attempt)
    assert (listed[0].failure.error, len(listed[0].failure.text), listed[1].failure) == ("Last", MAX_SHOWN_TEXT, UNSET)
    assert {(job.task, job.failure) for job in peer.core.run(peer.claims.overview.list_jobs(peer_access, 9))} == {
        (UNSET, UNSET)
    }


def test_workers(store: Store, other: Store) -> None:
    """All processes of a store show how many messages each worker has, and when it last claimed or renewed."""
    queue = make_queue(store, partitions=2)
    for number in (1, 2):
        append_bodies(store, queue, *"abc", partition=number)
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    claims, begun = blocking(service.claims), time.time()
    assert service.core.run(service.claims.overview.list_workers(access)) == []
    claimed = claims.claim(access, limit=3, ttl=60, worker="ann:1", partitions=[1])
    assert eventually(
        lambda: len(blocking(peer.claims).claim(peer_access, limit=1, ttl=60, worker="bob:2", partitions=[2])) == 1
    )
    assert eventually(lambda: len(claims.claim(access, limit=1, ttl=60, partitions=[2])) == 1)
    claims.release(access, [claimed[0].receipt], 600.0)
    [ann, nobody, bob] = peer.core.run(peer.claims.overview.list_workers(peer_access))
    assert (ann.worker, ann.jobs) == ("ann:1", 2)
    assert (nobody.worker, nobody.jobs, bob.worker, bob.jobs) == ("", 1, "bob:2", 1)
    assert all(begun - 1 <= each.renewed <= time.time() + 1 < each.expires for each in (ann, nobody, bob))
    claims.renew(access, [claimed[1].receipt], 300)
    [later, *_] = peer.core.run(peer.claims.overview.list_workers(peer_access))
    assert (later.jobs, later.renewed >= ann.renewed, later.expires > ann.expires + 200) == (2, True, True)
