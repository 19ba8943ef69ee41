"""Ordered queues: messages of one key are claimed in the order of their ids, one batch at a time."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.claims.log import message_finder
from queuey.claims.log.log_requests import ClaimDelivery, ClaimUndecided
from queuey.claims.log.message_finder import MAX_PAGE_MESSAGES
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.claims.rules.waiting import MAX_WAITING
from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.deadletters import decode_dead_letter
from queuey.model.messages import Location, NewMessage, Queue, Slice
from queuey.model.partitions import by_key
from queuey.storage import Store, bridge
from tests.backends import PROMPT
from tests.blocking import blocking, post
from tests.contract.claims.test_claims import EventWaiter, claimed_bodies, enter, statuses
from tests.contract.samples import eventually, make_queue, read_one
from tests.replacing import replace_in


def make_ordered(store: Store, **fields: Any) -> Queue:  # noqa: ANN401 - of a spec
    """Makes an ordered queue, whose messages can be claimed some seconds after they were stored."""
    return make_queue(store, **{"read_delay": None, "consistency": PROMPT, "kind": "ordered"} | fields)


def send(service: Service, access: QueueAccess, *texts: str, ttl: int = 3600) -> list[Location]:
    """Posts messages, whose keys are their first letters, and waits until they can be claimed."""
    places = post(service, access, [Draft(text, key=text[0], ttl=ttl) for text in texts]).locations
    last = max(position for _, position in places)
    part = Slice(1, ids.LAST, ids.LAST, ahead=True)
    assert eventually(lambda: (read_one(service.claims._store, access.queue, part).horizon, ids.LOW_MIN) > last)
    return places


def claim(way: tuple[Service, QueueAccess], limit: int = 9, ttl: float = 600, **asked: Any) -> list[ClaimDelivery]:  # noqa: ANN401
    service, access = way
    return blocking(service.claims).claim(access, limit=limit, ttl=ttl, **asked)


def claim_soon(way: tuple[Service, QueueAccess], limit: int = 9) -> list[ClaimDelivery]:
    """Claims messages, and retries for a minute until it gets some."""
    until = time.monotonic() + 60
    while not (claimed := claim(way, limit)) and time.monotonic() < until:
        time.sleep(0.01)
    return claimed


def acknowledge(way: tuple[Service, QueueAccess], *claimed: ClaimDelivery) -> None:
    service, access = way
    settled = blocking(service.claims).acknowledge(access, [delivery.receipt for delivery in claimed])
    assert statuses(settled) == [ReceiptStatus.ACCEPTED] * len(claimed)


def test_what_is_posted_later_comes_later(store: Store) -> None:
    """A post is answered once no other clock can make an id below its message's, also if that is delayed."""
    queue = make_ordered(store)
    way = enter(store, queue)
    for delay in (0.0, 60.0):
        [(_, position)] = post(*way, [Draft("a", key="a", delay=delay)]).locations
        ahead = (position[0] - store.clock.now_ticks()) / ids.TICKS_PER_SECOND
        assert ahead - delay < (-store.clock_difference if store.ids_follow_clocks else 0.1)


@pytest.mark.slow_on("cassandra")
def test_one_batch_of_a_key(store: Store, other: Store) -> None:
    """While messages of a key are claimed no process delivers others of it; other keys are not held up."""
    queue = make_ordered(store)
    here, there = enter(store, queue), enter(other, queue)
    send(*here, "a1", "a2", "a3", "b1", "a4", "b2", "c1")
    first = claim(here, limit=2)
    assert claimed_bodies(first) == ["a1", "a2"]
    second = claim(there, limit=2)
    assert claimed_bodies(second) == ["b1", "b2"]
    third = claim(here)
    assert claimed_bodies(third) == ["c1"]
    assert claim(there) == []
    acknowledge(there, first[0], *second)
    assert claim(here) == claim(there) == []
    acknowledge(here, first[1])
    last = claim(there)
    assert claimed_bodies(last) == ["a3", "a4"]
    acknowledge(here, *last, *third)
    assert claim(here) == claim(there) == []
    assert here[0].core.run(here[0].claims.overview.size(here[1], 100)).size == 0


@pytest.mark.slow_on("cassandra", "simulated")
def test_what_comes_back_comes_first(store: Store, other: Store) -> None:
    """A message whose claim is released or has expired is delivered again before the later ones of its key."""
    queue = make_ordered(store)
    here, there = enter(store, queue), enter(other, queue)
    send(*here, "a1", "a2", "a3")
    first = claim(here, limit=2)
    blocking(here[0].claims).release(here[1], [first[1].receipt])
    assert claim(there) == []
    blocking(there[0].claims).release(there[1], [first[0].receipt])
    again = claim(there, limit=1, ttl=1)
    assert [(one.message.body, one.deliveries) for one in again] == [("a1", 2)]
    assert claim(here) == []
    claimed = claim_soon(here, limit=1)
    assert [(delivery.message.body, delivery.deliveries) for delivery in claimed] == [("a1", 3)]
    acknowledge(here, *claimed)
    assert [(delivery.message.body, delivery.deliveries) for delivery in claim(there)] == [("a2", 2), ("a3", 1)]


@pytest.mark.slow_on("cassandra", "simulated")
def test_dead_letters(store: Store) -> None:
    """A dead letter frees its key and keeps it, so an ordered queue of dead letters is in order, too."""
    letters = make_ordered(store, partitions=3)
    queue = make_ordered(store, max_deliveries=1, dead_letter=letters.name)
    here, dead = enter(store, queue), enter(store, letters)
    send(*here, "a1", "a2", "b1")
    for number in (1, 2):
        [given] = claim(here, limit=1)
        assert given.message.body == f"a{number}"
        blocking(here[0].claims).release(here[1], [given.receipt], retry=number == 1)
    assert claimed_bodies(claim(here)) == ["b1"]
    claimed = claim_soon(dead, limit=1)
    assert claimed_bodies(claimed) == ["a1"]
    assert claim(dead) == []
    acknowledge(dead, *claimed)
    claimed = claim_soon(dead, limit=1)
    [one] = claimed
    assert (one.message.body, one.message.partition, one.message.meta and one.message.meta.key) == (
        "a2",
        by_key("a", 3),
        "a",
    )
    headers = dict(one.message.meta.headers) if one.message.meta else {}
    letter = decode_dead_letter(headers, "a2", lies=(letters.name, 1, one.message.id), content_type=None)
    assert letter is not None
    assert letter.queue == queue.name


@pytest.mark.slow_on("cassandra", "simulated")
def test_letters_of_a_plain_queue(store: Store) -> None:
    """In an ordered queue of dead letters, letters without a key count as one key."""
    letters = make_ordered(store)
    queue = make_queue(store, read_delay=None, max_deliveries=1, dead_letter=letters.name)
    here, dead = enter(store, queue), enter(store, letters)
    bridge.run(store.messages.append(queue, [NewMessage(text, 1, 3600) for text in ("a", "b")]))
    claimed = claim(here)
    blocking(here[0].claims).release(here[1], [delivery.receipt for delivery in claimed], retry=False)
    assert len(claim_soon(dead, limit=1)) == 1
    assert claim(dead) == []


@pytest.mark.slow_on("cassandra", "simulated")
def test_what_is_gone(store: Store, other: Store) -> None:
    """A message that is deleted by its id, while it waits or is claimed, holds nothing up."""
    queue = make_ordered(store)
    here, there = enter(store, queue), enter(other, queue)
    places = send(*here, "a1", "a2", "a3", "a4", "b1")
    [first] = claim(here, limit=1)
    assert claimed_bodies(claim(there, limit=1)) == ["b1"]
    bridge.run(store.messages.delete(queue, places[1:3]))
    acknowledge(here, first)
    assert claimed_bodies(claim(there, limit=1, ttl=0.2)) == ["a4"]
    bridge.run(store.messages.delete(queue, places[3:4]))
    send(*here, "a5")
    claimed = claim_soon(here)
    assert claimed_bodies(claimed) == ["a5"]


@pytest.mark.slow_on("cassandra", "simulated")
def test_what_expires(store: Store, other: Store) -> None:
    """Every process skips a message that expires while it waits."""
    queue = make_ordered(store)
    here, there = enter(store, queue), enter(other, queue)
    ttl = 12 if store.ids_follow_clocks else 1
    places = post(here[0], here[1], [Draft("a1", key="a"), Draft("a2", key="a", ttl=ttl), Draft("a3", key="a")])
    claimed = claim_soon(here, limit=1)
    assert claimed_bodies(claimed) == ["a1"]
    assert claim(there) == []
    assert eventually(lambda: bridge.run(store.messages.fetch(queue, places.locations[1:2])) == [])
    acknowledge(here, *claimed)
    assert claimed_bodies(claim(there)) == ["a3"]


@pytest.mark.slow_on("cassandra", "simulated")
def test_showing(store: Store) -> None:
    """A poll with a ttl of 0 shows what a claim would give."""
    queue = make_ordered(store)
    here = enter(store, queue)
    send(*here, "a1", "a2", "b1")
    assert claimed_bodies(claim(here, ttl=0)) == ["a1", "a2", "b1"]
    [first] = claim(here, limit=1)
    for _ in range(2):
        assert claimed_bodies(claim(here, ttl=0)) == ["b1"]
    acknowledge(here, first)
    assert claimed_bodies(claim(here, ttl=0)) == ["a2", "b1"]
    assert [message.body for message in here[0].core.run(here[0].claims.overview.peek(here[1], 9))] == ["a2", "b1"]


@pytest.mark.slow_on("cassandra", "simulated")
def test_waiting(store: Store, other: Store) -> None:
    """A waiting claim is woken when the blocking message is done, whichever process ended it."""
    queue = make_ordered(store)
    here, there = enter(store, queue), enter(other, queue)
    send(*here, "a1", "a2", "a3")
    [first] = claim(here, limit=1)
    for ending, body in ((there, "a2"), (here, "a3")):
        waiter = EventWaiter(here[0].reader.watchers)
        with closing(waiter):
            assert claim(here, limit=1, waiter=waiter) == []
            acknowledge(ending, first)
            [first] = claim_when_woken(here, waiter)
        assert first.message.body == body


def test_waiting_for_what_is_new(store: Store) -> None:
    """A waiting claim gets a new message as soon as it can be claimed."""
    queue = make_ordered(store)
    here = enter(store, queue)
    waiter = EventWaiter(here[0].reader.watchers)
    with closing(waiter):
        assert claim(here, limit=1, waiter=waiter) == []
        post(*here, [Draft("a1", key="a")])
        assert claimed_bodies(claim_when_woken(here, waiter)) == ["a1"]


def claim_when_woken(way: tuple[Service, QueueAccess], waiter: EventWaiter) -> list[ClaimDelivery]:
    claimed: list[ClaimDelivery] = []
    until = time.monotonic() + 60
    while not claimed and time.monotonic() < until:
        assert waiter.woken.wait(60)
        waiter.woken.clear()
        claimed = claim(way, limit=1, waiter=waiter)
        if not claimed:
            waiter.attempt_failed()
    return claimed


@pytest.mark.slow_on("cassandra", "simulated")
def test_very_much_waits(store: Store) -> None:
    """If too many messages wait, a claim is refused instead of coming back empty; it works again later."""
    queue = make_ordered(store)
    here = enter(store, queue)
    send(*here, *(f"a{number}" for number in range(8)), "b1")
    with replace_in(message_finder, MAX_WAITING, 5), replace_in(message_finder, MAX_PAGE_MESSAGES, 2):
        first = claim(here, limit=1)
        with pytest.raises(ClaimUndecided, match="wait until earlier messages"):
            claim(here)
        acknowledge(here, *first)
        claimed = claim(here, limit=5)
        assert claimed_bodies(claimed) == ["a1", "a2", "a3", "a4", "a5"]
        assert claimed_bodies(claim(here)) == ["b1"]


@pytest.mark.slow_on("cassandra", "simulated")
def test_posting(store: Store) -> None:
    """The key chooses the partition and is kept; a plain queue does not keep it."""
    queue = make_ordered(store, partitions=7)
    service, access = enter(store, queue)
    places = post(service, access, [Draft(f"m{number}", key=f"k{number % 20}") for number in range(60)]).locations
    assert [place[0] for place in places] == [by_key(f"k{number % 20}", 7) for number in range(60)]
    [message] = bridge.run(store.messages.fetch(queue, places[:1]))
    assert message.meta is not None
    assert message.meta.key == "k0"
    plain = make_queue(store)
    [place] = post(*enter(store, plain), [Draft("a", key="k")]).locations
    assert bridge.run(store.messages.fetch(plain, [place]))[0].meta is None


@pytest.mark.slow_on("cassandra", "simulated")
def test_a_bare_id_is_not_renewed(store: Store) -> None:
    """A message without a delivery gets no claim by its id; acknowledged by its id it is done."""
    queue = make_ordered(store)
    service, access = enter(store, queue)
    places = send(service, access, "a1", "a2")
    receipts = [ClaimReceipt(number, *position) for number, position in places]
    assert statuses(blocking(service.claims).renew(access, receipts, 60)) == [ReceiptStatus.FINAL] * 2
    assert statuses(blocking(service.claims).acknowledge(access, receipts[:1])) == [ReceiptStatus.ACCEPTED]
    assert claimed_bodies(claim((service, access))) == ["a2"]
