"""Dedup queues: of waiting messages with equal bodies only one is delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queuey.claims.log import message_finder
from queuey.claims.log.message_finder import MAX_COVERS
from queuey.messages.posts import Draft
from queuey.model.errors import InvalidRequest, QueueChanged, QueueExists, StoreBusy
from queuey.model.kinds import compute_body_digest
from queuey.model.messages import Meta, Page, Queue, QueueSpec, Slice
from queuey.storage import ClaimLogs, Covers, Messages, Store, bridge
from tests.backends import APP, PROMPT, Backend, Clock
from tests.blocking import adopt_own_loop, blocking, post
from tests.contract.claims.test_claims import claimed_bodies, enter
from tests.contract.samples import append_bodies, eventually, make_queue, new_message
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in

A, B = compute_body_digest("a", None), compute_body_digest("b", None)


def make_dedup(store: Store, **fields: Any) -> Queue:  # noqa: ANN401 - of a spec
    return make_queue(store, kind="dedup", **fields)


def test_one_of_equal_messages(store: Store, other: Store) -> None:
    """Copies that wait when a message is claimed are not delivered; a copy posted after the claim is."""
    queue = make_dedup(store)
    append_bodies(store, queue, "a", "b", "a", "a", "c", "b")
    (own_service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    first = blocking(own_service.claims).claim(access, limit=9, ttl=60)
    assert claimed_bodies(first) == ["a", "b", "c"]
    assert blocking(peer.claims).claim(peer_access, limit=9, ttl=60) == []
    append_bodies(other, queue, "a")
    again = blocking(peer.claims).claim(peer_access, limit=9, ttl=60)
    assert claimed_bodies(again) == ["a"]
    for service, way, given in ((peer, peer_access, first), (own_service, access, again)):
        blocking(service.claims).acknowledge(way, [claimed.receipt for claimed in given])
    assert blocking(own_service.claims).claim(access, limit=9, ttl=60) == []
    assert blocking(peer.claims).claim(peer_access, limit=9, ttl=60) == []


@pytest.mark.parametrize("on_ack", ["keep", "delete"])
def test_copies_end_with_their_message(store: Store, clock: Clock, on_ack: str) -> None:
    """When a message is acknowledged its waiting copies are dropped; a copy posted during the claim stays."""
    queue = make_dedup(store, on_ack=on_ack)
    append_bodies(store, queue, "a", "a", "b", "a")
    clock.advance(3)
    service, access = enter(store, queue)
    [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60)
    assert service.core.run(service.claims.overview.size(access, 100)).size == 4
    append_bodies(store, queue, "a")
    blocking(service.claims).acknowledge(access, [claimed.receipt])
    assert service.core.run(service.claims.overview.size(access, 100)).size == 2
    assert [message.body for message in service.core.run(service.claims.overview.peek(access, 9))] == ["b", "a"]
    deliveries = blocking(service.claims).claim(access, limit=9, ttl=60)
    assert claimed_bodies(deliveries) == ["b", "a"]
    blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in deliveries])
    assert service.core.run(service.claims.overview.size(access, 100)).size == 0


def test_copies_that_have_ended_are_forgotten(store: Store) -> None:
    """After the read delay one more claim makes the log pass the copies of finished messages."""
    queue = make_dedup(store, consistency=PROMPT)
    append_bodies(store, queue, "a", "a", "a")
    service, access = enter(store, queue)
    while claimed := blocking(service.claims).claim(access, limit=1, ttl=60):
        blocking(service.claims).acknowledge(access, [claimed[0].receipt])
    assert service.core.run(service.claims.overview.size(access, 100)).size == 0
    entries = bridge.run(store.claim_logs.read_log(queue, 1, 1)).last

    def forgotten() -> bool:
        assert blocking(service.claims).claim(access, limit=1, ttl=60) == []
        [left] = (
            blocking(service.claims)
            .look_at(queue, lambda state, _limit: len(state.above) + state.covers.count)
            .values()
        )
        return left == 0

    assert eventually(forgotten)
    assert forgotten()
    assert bridge.run(store.claim_logs.read_log(queue, 1, 1)).last <= entries + 2


def test_what_is_equal() -> None:
    """White space in JSON and headers do not make bodies different; the order of keys does."""
    value = Meta(json=True)
    same = compute_body_digest('{"a": [1, 2]}', value)
    assert compute_body_digest(b'{ "a":[1,2] }', Meta("application/json", (("x", "1"),), json=True)) == same
    assert compute_body_digest('{"a":1,"b":2}', value) != compute_body_digest('{"b":2,"a":1}', value)
    assert compute_body_digest('{"a":[1,2]}', None) != same
    assert compute_body_digest("ä", None) == compute_body_digest("ä".encode(), Meta("text/plain"))
    assert compute_body_digest("a ", None) != compute_body_digest("a", None)


def test_a_message_comes_back_alone(store: Store, clock: Clock) -> None:
    """When a claim ends without an acknowledgement, the same message is delivered again, without copies."""
    queue = make_dedup(store)
    append_bodies(store, queue, "a", "a")
    service, access = enter(store, queue)
    [first] = blocking(service.claims).claim(access, limit=9, ttl=30)
    clock.advance(100)
    [second] = blocking(service.claims).claim(access, limit=9, ttl=30)
    assert (second.message.id, second.deliveries) == (first.message.id, 2)
    blocking(service.claims).release(access, [second.receipt])
    [third] = blocking(service.claims).claim(access, limit=9, ttl=30)
    assert (third.message.id, third.deliveries) == (first.message.id, 3)
    blocking(service.claims).acknowledge(access, [third.receipt])
    clock.advance(100)
    assert blocking(service.claims).claim(access, limit=9, ttl=30) == []


@pytest.mark.needs("exact_horizon")
@pytest.mark.parametrize("deliveries", [0, 1])
def test_a_message_that_is_deleted_while_it_is_claimed(store: Store, clock: Clock, deliveries: int) -> None:
    """If a claimed message is deleted by its id and its claim ends, a copy that was not passed yet is delivered."""
    queue = make_dedup(store, max_deliveries=deliveries)
    places = append_bodies(store, queue, "a", "b", "c", "a", "a")
    clock.advance(60)
    service, access = enter(store, queue)
    first = blocking(service.claims).claim(access, limit=2, ttl=30)
    assert claimed_bodies(first) == ["a", "b"]
    blocking(service.claims).acknowledge(access, [first[1].receipt])
    bridge.run(store.messages.delete(queue, [(1, places[0])]))
    clock.advance(60)
    delivered_bodies: list[str | bytes] = []

    def is_given() -> bool:
        delivered_bodies.extend(claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=600)))
        return len(delivered_bodies) >= 2

    assert eventually(is_given)
    assert delivered_bodies == ["c", "a"]
    assert blocking(service.claims).claim(access, limit=9, ttl=600) == []


def test_a_showing_hides_copies(store: Store) -> None:
    """A poll with a ttl of 0 shows what a claim would give; a peek also shows copies."""
    queue = make_dedup(store)
    append_bodies(store, queue, "a", "a", "b")
    service, access = enter(store, queue)
    for _ in range(2):
        assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=0)) == ["a", "b"]
    assert [message.body for message in service.core.run(service.claims.overview.peek(access, 9))] == ["a", "a", "b"]
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=30)) == ["a", "b"]


def test_a_peek_shows_claimed_messages(store: Store, clock: Clock) -> None:
    """A peek shows a claimed message until it is acknowledged, even if a later copy was acknowledged before."""
    queue = make_dedup(store)
    append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    [first] = blocking(service.claims).claim(access, limit=9, ttl=600)
    append_bodies(store, queue, "a")
    clock.advance(10)
    [second] = blocking(service.claims).claim(access, limit=9, ttl=600)
    blocking(service.claims).acknowledge(access, [second.receipt])
    assert [message.id for message in service.core.run(service.claims.overview.peek(access, 9))] == [first.message.id]
    assert service.core.run(service.claims.overview.size(access, 9)).size == 1
    blocking(service.claims).acknowledge(access, [first.receipt])
    assert service.core.run(service.claims.overview.peek(access, 9)) == []


def claim_by_old_lookups(store: Store, other: Store) -> list[str | bytes]:
    """Returns what a process delivers whose lookup came before others delivered and stored the covers."""
    queue = make_dedup(store)
    first, *_ = append_bodies(store, queue, "a", "b", "c", "a")
    between = InterposedStore(other)
    (service, access), (peer, peer_access) = enter(store, queue), enter(between.store, queue)
    adopt_own_loop(service)
    reads, appends = [None], [None]

    def read(at: Queue, parts: Sequence[Slice]) -> list[Page]:
        pages = bridge.run(other.messages.read(at, parts))
        if reads:
            # Simulates a horizon far behind, where a cover that is being written is not visible to every process.
            reads.clear()
            for page in pages:
                page.messages = [message for message in page.messages if message.position != first]
                page.horizon = 0
        return pages

    def meanwhile() -> None:
        if appends:
            appends.clear()
            for body in ("a", "b"):
                assert claimed_bodies(blocking(service.claims).claim(access, limit=1, ttl=600)) == [body]
            stored.update(bridge.run(store.covers.read_covers(queue, 1, [A])))

    stored: dict[bytes, int] = {}
    between.instead(Messages.read, lambda *_: False)
    between.instead(Messages.read, read)
    between.before(ClaimLogs.append_entry, meanwhile)
    with replace_in(message_finder, MAX_COVERS, 1):
        claimed = claimed_bodies(blocking(peer.claims).claim(peer_access, limit=9, ttl=600))
    assert (reads, appends) == ([], [])
    assert stored
    return claimed


@pytest.mark.needs("exact_horizon")
def test_lookups_that_are_out_of_date(store: Store, other: Store) -> None:
    """If covers were stored meanwhile, messages are looked up again, and no copy is delivered."""
    assert claim_by_old_lookups(store, other) == ["c"]


def test_copies_are_deleted(backend: Backend, store: Store, clock: Clock) -> None:
    """Where acknowledged messages are deleted, their copies are deleted when they are passed."""
    queue = make_dedup(store, on_ack="delete")
    places = append_bodies(store, queue, "a", "a", "b", "a")
    clock.advance(60)
    service, access = enter(store, queue)
    claimed = blocking(service.claims).claim(access, limit=9, ttl=600)
    assert claimed_bodies(claimed) == ["a", "b"]
    blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
    assert blocking(service.claims).claim(access, limit=9, ttl=600) == []
    if "exact_horizon" in backend.capabilities:
        assert eventually(lambda: bridge.run(store.messages.fetch(queue, [(1, place) for place in places])) == [])


def test_posting(store: Store) -> None:
    """Equal bodies go to one partition."""
    queue = make_dedup(store, partitions=7)
    service, access = enter(store, queue)
    drafts = [Draft(f"m{number % 20}") for number in range(60)]
    places = post(service, access, drafts).locations
    of = {draft.body: place[0] for draft, place in zip(drafts, places, strict=True)}
    assert [place[0] for place in places] == [of[draft.body] for draft in drafts]
    assert len(set(of.values())) > 1


@pytest.mark.parametrize("kind", ["dedup", "ordered"])
def test_it_never_changes(store: Store, kind: str) -> None:
    """A queue's kind is fixed at creation."""
    queue = make_queue(store, read_delay=None, kind=kind, partitions=2)
    assert bridge.run(store.catalogue.queue(APP, queue.name, fresh=True)) == queue
    assert make_queue(store).kind == "plain"
    with pytest.raises(QueueExists, match="kind"):
        bridge.run(store.catalogue.create_queue(APP, queue.name, QueueSpec(kind="plain")))
    with pytest.raises(InvalidRequest, match="never change"):
        bridge.run(store.catalogue.update_queue(queue, QueueSpec(kind="plain")))
    assert bridge.run(store.catalogue.update_queue(queue, QueueSpec(ttl=9, kind=kind, partitions=2))).ttl == 9


def test_covers(store: Store, other: Store) -> None:
    """Per partition the highest number of a digest counts, until it is forgotten or the queue is purged."""
    queue = make_dedup(store, partitions=2)
    base = 1 << 59
    many = [(number.to_bytes(16), base + number) for number in range(1, 700)]
    bridge.run(store.covers.write_covers(queue, 1, [(A, base + 500), (B, base + 100), *many]))
    bridge.run(other.covers.write_covers(queue, 1, [(A, base + 300), (B, base + 400)]))
    assert bridge.run(other.covers.read_covers(queue, 1, [A, B, b"?" * 16])) == {A: base + 500, B: base + 400}
    assert bridge.run(store.covers.read_covers(queue, 1, [digest for digest, _ in many])) == dict(many)
    assert bridge.run(store.covers.read_covers(queue, 2, [A, B])) == {}
    bridge.run(store.covers.forget_covers(queue, 1, base + 450))
    assert bridge.run(other.covers.read_covers(queue, 1, [A, B])) == {A: base + 500}
    assert len(bridge.run(store.covers.read_covers(queue, 1, [digest for digest, _ in many]))) < 280
    bridge.run(store.covers.write_covers(queue, 1, [(B, base + 460)]))
    assert bridge.run(other.covers.read_covers(queue, 1, [A, B])) == {A: base + 500, B: base + 460}
    purged = bridge.run(store.catalogue.purge_queue(queue))
    assert bridge.run(store.covers.read_covers(purged, 1, [A, B])) == {}
    with pytest.raises(QueueChanged):
        bridge.run(store.covers.write_covers(queue, 1, [(A, base)]))
    with pytest.raises(InvalidRequest):
        bridge.run(store.covers.read_covers(purged, 3, [A]))


@pytest.mark.needs("exact_horizon")
def test_covers_whose_removal_failed(store: Store, clock: Clock) -> None:
    """Covers that are no longer needed are removed by a later claim if the store was busy at the first."""
    queue = make_dedup(store)
    digests = [compute_body_digest(f"m{number}", None) for number in range(20)]
    append_bodies(store, queue, *(f"m{number % 20}" for number in range(40)))
    clock.advance(60)
    between = InterposedStore(store)
    failed: list[bool] = []

    def fail_once() -> None:
        if not failed:
            failed.append(True)
            raise StoreBusy("a test")

    between.before(Covers.forget_covers, fail_once)
    service, access = enter(between.store, queue)
    with replace_in(message_finder, MAX_COVERS, 7):
        while claimed := blocking(service.claims).claim(access, limit=4, ttl=600):
            blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
        assert bridge.run(store.covers.read_covers(queue, 1, digests))

        def forgotten() -> bool:
            append_bodies(store, queue, "last")
            blocking(service.claims).claim(access, limit=4, ttl=600)
            return not bridge.run(store.covers.read_covers(queue, 1, digests))

        clock.advance(60)
        assert eventually(forgotten)
    assert failed


def test_delayed_copies(store: Store, clock: Clock) -> None:
    """A delayed copy counts as posted when it is due."""
    queue = make_dedup(store)
    bridge.run(store.messages.append(queue, [new_message("a"), new_message("a", delay=50)]))
    service, access = enter(store, queue)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=600)) == ["a"]
    clock.advance(60)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=600)) == ["a"]
