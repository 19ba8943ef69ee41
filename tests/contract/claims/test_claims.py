"""Claims as use cases, by two processes over one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from msgspec import structs

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.claims.log.claim_search import PiggybackedAck
from queuey.claims.log.follow_ups import OVERDUE_SECONDS
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptOutcome, ReceiptStatus
from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.deadletters import decode_dead_letter
from queuey.model.errors import ClaimsRefused, InvalidRequest, QueueNotFound, StoreIncompatible, StoreUnavailable
from queuey.model.ids import Position
from queuey.model.messages import LogPage, Meta, Principal, Queue
from queuey.runtime.event_loop import Core
from queuey.runtime.waiters import Waiter, Watchers
from queuey.storage import ClaimLogs, Messages, Store, bridge
from tests.backends import APP, Backend, Clock
from tests.blocking import BlockingNames, blocking
from tests.contract.samples import append_bodies, bodies, count_outbox, eventually, fill_queue, make_queue, new_message
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in


def enter(store: Store, queue: Queue) -> tuple[Service, QueueAccess]:
    service = Service(store)
    return service, service.queues.access_unchecked(queue)


def claimed_bodies(claimed: list[ClaimDelivery]) -> list[str | bytes]:
    return [delivery.message.body for delivery in claimed]


def statuses(settled: list[ReceiptOutcome]) -> list[ReceiptStatus]:
    return [settlement.status for settlement in settled]


def test_from_claim_to_acknowledgement(store: Store, other: Store) -> None:
    """A message is delivered to one caller, by whichever process, until it is acknowledged or released."""
    queue = fill_queue(store, "a", "b", "c")
    (one, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    first = blocking(one.claims).claim(access, limit=2, ttl=60)
    assert [(claimed.message.body, claimed.deliveries) for claimed in first] == [("a", 1), ("b", 1)]
    assert claimed_bodies(blocking(peer.claims).claim(peer_access, limit=9, ttl=60)) == ["c"]
    for service, way in ((one, access), (peer, peer_access)):
        assert blocking(service.claims).claim(way, limit=9, ttl=60) == []
    receipts = [claimed.receipt for claimed in first]
    assert statuses(blocking(peer.claims).acknowledge(peer_access, receipts[:1])) == [ReceiptStatus.ACCEPTED]
    assert statuses(blocking(one.claims).acknowledge(access, receipts[:1])) == [ReceiptStatus.FINAL]
    released = blocking(peer.claims).release(peer_access, receipts)
    assert statuses(released) == [ReceiptStatus.FINAL, ReceiptStatus.ACCEPTED]
    assert [
        (claimed.message.body, claimed.deliveries) for claimed in blocking(one.claims).claim(access, limit=9, ttl=60)
    ] == [("b", 2)]
    assert statuses(blocking(peer.claims).acknowledge(peer_access, receipts)) == [
        ReceiptStatus.FINAL,
        ReceiptStatus.SUPERSEDED,
    ]


def test_a_claim_expires(store: Store, clock: Clock) -> None:
    """A message that is not acknowledged in time is delivered again, and its old receipt is void."""
    queue = fill_queue(store, "a", "b")
    service, access = enter(store, queue)
    [old, kept] = blocking(service.claims).claim(access, limit=2, ttl=30)
    [renewed] = blocking(service.claims).renew(access, [kept.receipt], 90)
    assert renewed.expires == pytest.approx(kept.expires + 60, abs=1)
    clock.advance(32)
    [new_one] = blocking(service.claims).claim(access, limit=2, ttl=30)
    assert (new_one.message.body, new_one.deliveries) == ("a", 2)
    assert statuses(blocking(service.claims).acknowledge(access, [old.receipt, new_one.receipt, kept.receipt])) == [
        ReceiptStatus.SUPERSEDED,
        ReceiptStatus.ACCEPTED,
        ReceiptStatus.ACCEPTED,
    ]
    clock.advance(1000)
    assert blocking(service.claims).claim(access, limit=2, ttl=30) == []


def test_partitions(store: Store) -> None:
    """A claim finds messages in any partition, or in the partitions it names; receipts of several can be combined."""
    queue = make_queue(store, partitions=3)
    append_bodies(store, queue, "a", partition=1)
    append_bodies(store, queue, "c", "d", partition=3)
    service, access = enter(store, queue)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=60, partitions=[2, 1])) == ["a"]
    [c, d] = blocking(service.claims).claim(access, limit=9, ttl=60)
    assert claimed_bodies([c, d]) == ["c", "d"]
    assert blocking(service.claims).claim(access, limit=9, ttl=60) == []
    bare = ClaimReceipt(2, *ids.parse_position(d.message.id))
    settled = blocking(service.claims).acknowledge(access, [d.receipt, bare, c.receipt])
    assert [settlement.receipt for settlement in settled] == [d.receipt, bare, c.receipt]
    assert statuses(settled) == [ReceiptStatus.ACCEPTED] * 3
    with pytest.raises(InvalidRequest, match="4 is not a partition"):
        blocking(service.claims).claim(access, limit=9, ttl=60, partitions=[4])
    with pytest.raises(InvalidRequest, match="4 is not a partition"):
        blocking(service.claims).acknowledge(access, [ClaimReceipt(4, 1, 1, 1)])


def test_what_fails_in_one_of_several_partitions(store: Store) -> None:
    """If a call succeeds in one partition and fails in another, the error does not say that nothing was done."""
    queue = make_queue(store, partitions=2)
    for partition in (1, 2):
        append_bodies(store, queue, "x", partition=partition)
    failing = InterposedStore(store)
    service, access = enter(failing.store, queue)
    receipts = [blocking(service.claims).claim(access, limit=1, ttl=60)[0].receipt for _ in range(2)]

    async def append(queue: Queue, partition: int, *given: Any, **more: Any) -> bool:  # noqa: ANN401
        if partition == receipts[0].partition:
            raise StoreUnavailable("not now", outcome="none")
        return await store.claim_logs.append_entry(queue, partition, *given, **more)

    failing.instead(ClaimLogs.append_entry, append)
    for some, outcome in ((receipts[:1], "none"), (receipts, "unknown")):
        with pytest.raises(StoreUnavailable, match="not now") as caught:
            blocking(service.claims).acknowledge(access, some)
        assert caught.value.outcome == outcome
    failing.restore(ClaimLogs.append_entry)
    settled = blocking(service.claims).acknowledge(access, receipts)
    assert statuses(settled) == [ReceiptStatus.ACCEPTED, ReceiptStatus.FINAL]


def test_what_fails_after_a_message_was_claimed(store: Store) -> None:
    """A claim returns the messages that it already has if another partition fails; without any it fails."""
    queue = make_queue(store, partitions=3)
    for partition in (1, 2, 3):
        append_bodies(store, queue, "x", partition=partition)
    failing, written = InterposedStore(store), []
    service, access = enter(failing.store, queue)

    async def append(queue: Queue, partition: int, *given: Any, **more: Any) -> bool:  # noqa: ANN401
        written.append(partition)
        if len(written) > 1:
            raise StoreUnavailable("not now", outcome="none")
        return await store.claim_logs.append_entry(queue, partition, *given, **more)

    failing.instead(ClaimLogs.append_entry, append)
    claimed = blocking(service.claims).claim(access, limit=9, ttl=60, gather=True)
    assert [delivery.message.partition for delivery in claimed] == written[:1]
    with pytest.raises(StoreUnavailable, match="not now"):
        blocking(service.claims).claim(access, limit=9, ttl=60, gather=True)


def test_receipts_of_elsewhere(store: Store) -> None:
    """A receipt of another queue, or from before a purge, is refused, and nothing is done."""
    queue, elsewhere = make_queue(store), make_queue(store)
    service, access = enter(store, queue)
    append_bodies(store, elsewhere, "x")
    [other] = blocking(service.claims).claim(service.queues.access_unchecked(elsewhere), limit=1, ttl=60)
    for call in (blocking(service.claims).acknowledge, blocking(service.claims).release):
        with pytest.raises(InvalidRequest, match="receipts"):
            call(access, [other.receipt])
    assert bridge.run(store.claim_logs.read_log(queue, 1, 1)).last == 0
    append_bodies(store, queue, "a")
    [claimed] = blocking(service.claims).claim(access, limit=1, ttl=60)
    row = bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
    bridge.run(store.catalogue.purge_queue(row))
    with pytest.raises(InvalidRequest, match="receipts"):
        blocking(service.claims).acknowledge(access, [claimed.receipt])


def test_receipts_of_several_partitions(store: Store, other: Store) -> None:
    """An impossible receipt is refused before the others are processed; if all are valid, all are processed.

    It does not depend on whether the process has read the logs.
    """
    queue = make_queue(store, partitions=3)
    for number in (1, 2, 3):
        append_bodies(store, queue, "x", partition=number)
    service, access = enter(store, queue)
    receipts = [claimed.receipt for claimed in blocking(service.claims).claim(access, limit=9, ttl=600, gather=True)]
    forged = structs.replace(receipts[2], number=1000)
    for process, way in ((service, access), enter(other, queue)):
        for call in (blocking(process.claims).acknowledge, blocking(process.claims).release):
            with pytest.raises(InvalidRequest, match="receipts"):
                call(way, [*receipts[:2], forged])
        counts = process.core.run(process.claims.overview.count_claims(way)).partitions.values()
        assert [(each.claimed, each.waiting) for each in counts] == [(1, 0)] * 3
    fresh, way = enter(other, queue)
    assert statuses(blocking(fresh.claims).acknowledge(way, receipts)) == [ReceiptStatus.ACCEPTED] * 3


def test_a_purged_and_a_deleted_queue(store: Store) -> None:
    """Claims of purged messages end; claims of a deleted queue get the error that the queue is gone."""
    queue = fill_queue(store, "a")
    service, access = enter(store, queue)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=1, ttl=60)) == ["a"]
    queue = bridge.run(store.catalogue.purge_queue(queue))
    append_bodies(store, queue, "b")
    assert claimed_bodies(blocking(service.claims).claim(access, limit=1, ttl=60)) == ["b"]
    bridge.run(store.catalogue.delete_queue(queue))
    with pytest.raises(QueueNotFound):
        blocking(service.claims).claim(access, limit=1, ttl=60)


def test_what_is_gone_is_not_given(store: Store, clock: Clock, backend: Backend) -> None:
    """A message that was deleted or has expired is not delivered, also not again."""
    queue = make_queue(store)
    places = append_bodies(store, queue, "a", "b", "c") + bridge.run(
        store.messages.append(queue, [new_message("short", ttl=50)])
    )
    service, access = enter(store, queue)
    assert len(blocking(service.claims).claim(access, limit=2, ttl=10)) == 2
    bridge.run(store.messages.delete(queue, [(1, places[0]), (1, places[2])]))
    clock.advance(100)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=10)) == ["b"]
    [counts] = service.core.run(service.claims.overview.count_claims(access)).partitions.values()
    # Where a message may still be in flight, one that is not seen is not given up.
    gone = "exact_horizon" in backend.capabilities
    assert (counts.claimed, counts.waiting) == (1, 0 if gone else 1)


def test_whole_queues(store: Store, other: Store) -> None:
    """All claims of a queue can be counted and ended; its size and a peek leave out finished messages."""
    queue = make_queue(store, partitions=2)
    append_bodies(store, queue, "a", "b", "c", partition=1)
    append_bodies(store, queue, "d", partition=2)
    (service, access), (peer, peer_access) = enter(store, queue), enter(other, queue)
    [a, _] = blocking(service.claims).claim(access, limit=2, ttl=60, partitions=[1])
    blocking(service.claims).acknowledge(access, [a.receipt])
    counts = peer.core.run(peer.claims.overview.count_claims(peer_access)).partitions
    assert [(each.claimed, each.waiting) for each in counts.values()] == [(1, 0), (0, 0)]
    size = peer.core.run(peer.claims.overview.size(peer_access, 100))
    assert (size.size, size.exact) == (3, True)
    assert [message.body for message in peer.core.run(peer.claims.overview.peek(peer_access, 100))] == ["b", "c", "d"]
    assert [message.body for message in peer.core.run(peer.claims.overview.peek(peer_access, 1))] == ["b"]
    blocking(peer.claims).release_all(peer_access)
    assert [
        each.waiting for each in service.core.run(service.claims.overview.count_claims(access)).partitions.values()
    ] == [1, 0]
    assert claimed_bodies(blocking(service.claims).claim(access, limit=9, ttl=60, partitions=[1])) == ["b", "c"]


class EventWaiter(Waiter):
    """Records that it was woken."""

    def __init__(self, watchers: Watchers) -> None:
        super().__init__(watchers)
        self.woken = threading.Event()

    def wake(self, qid: int | None = None) -> None:
        self.woken.set()


def test_waiting(store: Store) -> None:
    """A caller whose claim found nothing is woken when a message arrives."""
    queue = make_queue(store)
    service, access = enter(store, queue)
    waiter = EventWaiter(service.reader.watchers)
    asked = {"limit": 1, "ttl": 60, "waiter": waiter}
    with closing(waiter):
        assert blocking(service.claims).claim(access, **asked) == []
        assert not waiter.woken.is_set()
        append_bodies(store, queue, "a")
        assert waiter.woken.wait(60)
        assert claimed_bodies(blocking(service.claims).claim(access, **asked)) == ["a"]


def test_acknowledge_and_claim(store: Store) -> None:
    """One request acknowledges and claims, in one entry if both are in the first partition; it can be repeated."""
    queue = make_queue(store, partitions=2)
    service, access = enter(store, queue)
    places = append_bodies(store, queue, "a", "b", "c", partition=1)
    append_bodies(store, queue, "d", partition=2)
    [a] = blocking(service.claims).claim(access, limit=1, ttl=60, partitions=[1])
    number = bridge.run(store.claim_logs.read_log(queue, 1, 1)).last
    ack = PiggybackedAck([a.receipt])
    [b] = blocking(service.claims).claim(access, limit=1, ttl=60, partitions=[1], ack=ack)
    assert b.message.position == places[1]
    assert statuses(ack.settled or []) == [ReceiptStatus.ACCEPTED]
    assert bridge.run(store.claim_logs.read_log(queue, 1, 1)).last == number + 1
    again = PiggybackedAck([a.receipt, b.receipt])
    [d] = blocking(service.claims).claim(access, limit=1, ttl=60, partitions=[2], ack=again)
    assert d.message.body == "d"
    assert statuses(again.settled or []) == [ReceiptStatus.FINAL, ReceiptStatus.ACCEPTED]
    both = PiggybackedAck([d.receipt, a.receipt])
    assert claimed_bodies(blocking(service.claims).claim(access, limit=1, ttl=60, partitions=[1], ack=both)) == ["c"]
    assert statuses(both.settled or []) == [ReceiptStatus.ACCEPTED, ReceiptStatus.FINAL]
    assert blocking(service.claims).claim(access, limit=1, ttl=60, ack=both) == []
    assert service.core.run(service.claims.overview.count_claims(access)).claimed == 1


@pytest.mark.parametrize("partitions", [[1], [2]])
def test_acknowledge_what_another_process_gave(store: Store, other: Store, partitions: list[int]) -> None:
    """A process that has not read the log does both; if a receipt names a missing entry, it claims nothing."""
    queue = make_queue(store, partitions=2)
    one, access = enter(store, queue)
    two, there = enter(other, bridge.run(other.catalogue.queue(APP, queue.name)))
    for number in (1, 2):
        append_bodies(store, queue, "a", "b", partition=number)
    held = [blocking(one.claims).claim(access, limit=1, ttl=60, partitions=[number])[0].receipt for number in (1, 2)]
    wrong = PiggybackedAck([structs.replace(held[0], number=99)])
    with pytest.raises(InvalidRequest):
        blocking(two.claims).claim(there, limit=1, ttl=60, partitions=partitions, ack=wrong)
    assert one.core.run(one.claims.overview.count_claims(access)).claimed == 2
    ack = PiggybackedAck(held)
    assert claimed_bodies(blocking(two.claims).claim(there, limit=1, ttl=60, partitions=partitions, ack=ack)) == ["b"]
    assert statuses(ack.settled or []) == [ReceiptStatus.ACCEPTED] * 2


def test_snapshots(store: Store, other: Store) -> None:
    """After hundreds of entries a new process starts from a snapshot, with the same result."""
    queue = fill_queue(store, *map(str, range(300)))
    service, access = enter(store, queue)
    for _ in range(300):
        [claimed] = blocking(service.claims).claim(access, limit=1, ttl=600)
    assert bridge.run(store.claim_logs.read_log(queue, 1, 1)).snapshot is not None
    late, there = enter(other, queue)
    assert statuses(blocking(late.claims).acknowledge(there, [claimed.receipt])) == [ReceiptStatus.ACCEPTED]
    assert late.core.run(late.claims.overview.count_claims(there)).partitions[1].claimed == 299


def test_an_entry_that_has_not_reached_all_replicas(store: Store, other: Store) -> None:
    """If a read shows the number of an entry but not the entry itself, it is repeated until it shows it."""
    queue = fill_queue(store, "a")
    watched, reads = InterposedStore(other), []
    (service, access), (peer, peer_access) = enter(store, queue), enter(watched.store, queue)
    assert claimed_bodies(blocking(peer.claims).claim(peer_access, limit=1, ttl=0)) == ["a"]

    def torn(queue: Queue, partition: int, first: int, *, newest: bool = False) -> LogPage:
        reads.append(newest)
        return bridge.run(other.claim_logs.read_log(queue, partition, first, newest=True)) if newest else LogPage(1, [])

    watched.instead(ClaimLogs.read_log, torn)
    assert claimed_bodies(blocking(service.claims).claim(access, limit=1, ttl=60)) == ["a"]
    assert blocking(peer.claims).claim(peer_access, limit=1, ttl=60) == []
    assert reads == [False, True]
    watched.instead(ClaimLogs.read_log, lambda *_, **__: LogPage(9, []))
    with pytest.raises(StoreIncompatible, match="ends at 9, and entry 2 is missing"):
        peer.core.run(peer.claims.overview.count_claims(peer_access))


def test_dead_letters(store: Store, clock: Clock) -> None:
    """A message at its delivery limit becomes a dead letter, and is not delivered again."""
    queue = make_queue(store, partitions=2, max_deliveries=2, principals=(Principal("app:other"),))
    meta = Meta("text/plain", (("x-color", "blue"),))
    [place] = bridge.run(store.messages.append(queue, [new_message("bad", partition=2, meta=meta)]))
    service, access = enter(store, queue)
    for number in (1, 2):
        [claimed] = blocking(service.claims).claim(access, limit=9, ttl=10)
        assert claimed.deliveries == number
        blocking(service.claims).release(access, [claimed.receipt])
    assert blocking(service.claims).claim(access, limit=9, ttl=10) == []
    assert eventually(lambda: count_outbox(service.claims, access)[2] == 0)
    assert statuses(blocking(service.claims).acknowledge(access, [claimed.receipt])) == [ReceiptStatus.SUPERSEDED]
    dead = bridge.run(store.catalogue.queue(APP, f"{queue.name}.dead", fresh=True))
    assert (dead.partitions, dead.principals) == (2, queue.principals)
    [letter] = bridge.run(store.messages.fetch(dead, [(2, place)]))
    assert letter.meta is not None
    lies = dead.name, letter.partition, letter.id
    parsed = decode_dead_letter(dict(letter.meta.headers), letter.body, lies=lies, content_type="text/plain")
    assert parsed is not None
    assert (parsed.queue, parsed.partition, parsed.body, parsed.cause.attempts) == (queue.name, 2, "bad", 2)
    assert parsed.headers == {"x-color": "blue"}


def raise_unavailable(*_: object) -> None:
    raise StoreUnavailable("not now")


def test_deleted_after_the_acknowledgement(store: Store, other: Store) -> None:
    """A queue that deletes acknowledged messages does so later if the first delete fails."""
    queue = make_queue(store, on_ack="delete")
    places = append_bodies(store, queue, "a", "b", "c")
    failing = InterposedStore(store)
    service, access = enter(failing.store, queue)
    claimed = blocking(service.claims).claim(access, limit=3, ttl=600)
    assert statuses(blocking(service.claims).acknowledge(access, [claimed[0].receipt])) == [ReceiptStatus.ACCEPTED]
    assert bodies(bridge.run(store.messages.fetch(queue, [(1, place) for place in places]))) == ["b", "c"]
    failing.instead(Messages.delete, raise_unavailable)
    assert statuses(blocking(service.claims).acknowledge(access, [claimed[1].receipt])) == [ReceiptStatus.ACCEPTED]
    failing.restore(Messages.delete)
    assert statuses(blocking(service.claims).acknowledge(access, [claimed[2].receipt])) == [ReceiptStatus.ACCEPTED]
    assert bodies(bridge.run(store.messages.fetch(queue, [(1, place) for place in places]))) == ["b"]
    with replace_in(Core, Core.boottime, lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + OVERDUE_SECONDS):
        append_bodies(store, queue, "d")
        assert claimed_bodies(blocking(service.claims).claim(access, limit=3, ttl=600)) == ["d"]
    assert eventually(lambda: bridge.run(store.messages.fetch(queue, [(1, place) for place in places])) == [])


def refuse_made_up_receipts(store: Store, access: QueueAccess, *places: Position) -> None:
    """Checks that messages cannot be settled by receipts made of their ids and the numbers of the log's entries."""
    service, last = Service(store), bridge.run(store.claim_logs.read_log(access.queue, 1, 1)).last
    made_up = [ClaimReceipt(1, *place, number) for place in places for number in range(1, 1 + last)]
    assert len(made_up) >= len(places) > 0
    settled = blocking(service.claims).renew(access, made_up, 60) + blocking(service.claims).acknowledge(
        access, made_up
    )
    assert set(statuses(settled)) == {ReceiptStatus.SUPERSEDED}


def test_made_up_receipts_of_what_was_renewed_by_its_id(store: Store) -> None:
    """A message that was only ever renewed by its bare id has no receipt."""
    queue = make_queue(store)
    [place] = append_bodies(store, queue, "a")
    service, access = enter(store, queue)
    bare = ClaimReceipt(1, *place)
    assert statuses(blocking(service.claims).renew(access, [bare], 60)) == [ReceiptStatus.ACCEPTED]
    refuse_made_up_receipts(store, access, place)
    assert statuses(blocking(service.claims).acknowledge(access, [bare])) == [ReceiptStatus.ACCEPTED]


def test_levels_that_cannot_be_claimed(store: Store) -> None:
    """If the store refuses claims at a level, every use case says why, and does nothing."""
    queue = make_queue(store)
    refusing = InterposedStore(store)
    refusing.instead(ClaimLogs.claims_refusal, lambda _queue: "Choose very_strong.")
    service, access = enter(refusing.store, queue)
    refusals: list[Callable[[], object]] = [
        lambda: blocking(service.claims).claim(access, limit=1, ttl=60),
        lambda: blocking(service.claims).acknowledge(access, [ClaimReceipt(1, 1, 1)]),
        lambda: blocking(service.claims).release_all(access),
        lambda: service.core.run(service.claims.overview.count_claims(access)),
        lambda: service.core.run(service.claims.overview.size(access, 1)),
        lambda: service.core.run(service.claims.overview.peek(access, 1)),
        lambda: BlockingNames(service).create(access, "n", Draft("a")),
        lambda: BlockingNames(service).replace(access, "n", Draft("a")),
        lambda: BlockingNames(service).fetch(access, "n"),
        lambda: BlockingNames(service).delete(access, "n"),
    ]
    for call in refusals:
        with pytest.raises(ClaimsRefused, match="very_strong"):
            call()
