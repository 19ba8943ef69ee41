"""Limits of simultaneous claims, per key and per queue, over all processes."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from queuey.claims.log.claim_search import PiggybackedAck
from queuey.claims.rules.receipts import ReceiptStatus
from queuey.messages.posts import Draft
from queuey.model.messages import Queue, QueueSpec
from queuey.model.partitions import by_key
from queuey.storage import Store, bridge
from tests.backends import PROMPT
from tests.blocking import blocking, post
from tests.contract.claims.test_claims import EventWaiter, claimed_bodies, enter, statuses
from tests.contract.claims.test_ordered import acknowledge, claim, claim_soon, claim_when_woken, send
from tests.contract.samples import make_queue


def make_limited(store: Store, **fields: Any) -> Queue:  # noqa: ANN401 - of a spec
    """Makes a queue with limits, whose messages can be claimed some seconds after they were stored."""
    return make_queue(store, **{"read_delay": None, "consistency": PROMPT} | fields)


def test_so_many_of_a_key(store: Store, other: Store) -> None:
    """At most two messages of a key are claimed, by any process; other messages are not held up."""
    queue = make_limited(store, max_claimed_per_key=2)
    here, there = enter(store, queue), enter(other, queue)
    post(*here, [Draft("none"), Draft("none")])
    send(*here, "a1", "a2", "a3", "b1", "a4")
    first = claim(here, limit=3)
    second = claim(there)
    assert sorted(claimed_bodies([*first, *second])) == ["a1", "a2", "b1", "none", "none"]
    assert claim(here) == claim(there) == []
    by_body = {one.message.body: one for one in [*first, *second]}
    acknowledge(there, by_body["a2"])
    third = claim(here)
    assert claimed_bodies(third) == ["a3"]
    assert third[0].message.meta is not None
    assert third[0].message.meta.key == "a"
    acknowledge(here, by_body["a1"], *third)
    assert claimed_bodies(claim(there)) == ["a4"]


def test_so_many_of_a_queue(store: Store, other: Store) -> None:
    """A queue's claims are divided among its partitions; one entry can end some and claim as many."""
    queue = make_limited(store, partitions=2, max_claimed=3)
    here, there = enter(store, queue), enter(other, queue)
    for number in (1, 2):
        post(*here, [Draft(f"{number}", partition=number) for _ in range(4)])
    claimed = [*claim(here, gather=True), *claim(there, gather=True)]
    assert Counter(claimed_bodies(claimed)) == {"1": 2, "2": 1}
    assert claim(here) == claim(there) == []
    ended = [delivery.receipt for delivery in claimed if delivery.message.body == "1"]
    ack = PiggybackedAck(ended, [str(one) for one in ended])
    assert claimed_bodies(claim(there, partitions=[1], ack=ack)) == ["1", "1"]
    assert claim(here) == []


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize("limit", [{"max_claimed_per_key": 1}, {"max_claimed": 1}])
def test_changing_a_limit(store: Store, limit: dict[str, Any]) -> None:
    """Lowering a limit ends no claim, and allows no new one until there is room; raising it allows more."""
    [(option, _)] = limit.items()
    two: dict[str, Any] = {option: 2}
    more: dict[str, Any] = {option: 3}
    queue = make_limited(store, **two)
    way = enter(store, queue)
    send(*way, "a1", "a2", "a3", "a4", "a5")
    claimed = claim(way)
    assert claimed_bodies(claimed) == ["a1", "a2"]
    lower = enter(store, bridge.run(store.catalogue.update_queue(queue, QueueSpec(**limit))))
    acknowledge(lower, claimed[0])
    assert claim(lower) == []
    acknowledge(lower, claimed[1])
    assert claimed_bodies(claim(lower)) == ["a3"]
    higher = enter(store, bridge.run(store.catalogue.update_queue(lower[1].queue, QueueSpec(**more))))
    assert claimed_bodies(claim(higher)) == ["a4", "a5"]


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize("limit", [{"max_claimed_per_key": 1}, {"max_claimed": 1}])
def test_waiting(store: Store, other: Store, limit: dict[str, int]) -> None:
    """A waiting claim is woken when a slot is free, whichever process has freed it, and how."""
    queue = make_limited(store, **limit)
    here, there = enter(store, queue), enter(other, queue)
    send(*here, "a1", "a2", "a3", "a4")
    [first] = claim(here, limit=1)
    for ending, way in (("acknowledge", there), ("acknowledge", here), ("delay", there)):
        with closing(EventWaiter(here[0].reader.watchers)) as waiter:
            assert claim(here, limit=1, waiter=waiter) == []
            if ending == "delay":
                blocking(way[0].claims).release(way[1], [first.receipt], delay=500)
            else:
                acknowledge(way, first)
            [first] = claim_when_woken(here, waiter)
    assert first.message.body == "a4"


@pytest.mark.slow_on("cassandra", "simulated")
def test_an_expired_claim(store: Store, other: Store) -> None:
    """An expired claim gives its slot to another message; it is not renewed, and its own message waits for a slot."""
    queue = make_limited(store, max_claimed_per_key=1)
    here, there = enter(store, queue), enter(other, queue)
    send(*here, "a1", "a2")
    [first] = claim(here, limit=1, ttl=1)
    with closing(EventWaiter(there[0].reader.watchers)) as waiter:
        assert claim(there, limit=1, waiter=waiter) == []
        [again] = claim_when_woken(there, waiter)
    assert (again.message.body, again.deliveries) == ("a1", 2)
    assert statuses(blocking(here[0].claims).renew(here[1], [first.receipt], 60)) == [ReceiptStatus.SUPERSEDED]
    blocking(there[0].claims).release(there[1], [again.receipt], delay=0.1)
    [second] = claim_soon(there, limit=1)
    if second.message.body == "a2":
        assert statuses(blocking(there[0].claims).renew(there[1], [again.receipt], 60)) == [ReceiptStatus.SUPERSEDED]
    acknowledge(there, second)
    assert len(claim_soon(there)) == 1


@pytest.mark.slow_on("cassandra", "simulated")
def test_posting(store: Store) -> None:
    """The key chooses the partition; a message without a key may choose its own."""
    queue = make_limited(store, max_claimed_per_key=2, partitions=5)
    service, access = enter(store, queue)
    places = post(service, access, [Draft("x", key=key) for key in "abc"]).locations
    assert [number for number, _ in places] == [by_key(key, 5) for key in "abc"]
    assert post(service, access, [Draft("x", partition=3)]).locations[0][0] == 3


@pytest.mark.slow_on("cassandra", "simulated")
def test_why_a_message_waits(store: Store) -> None:
    """An explanation of a message says which limit it waits for."""
    queue = make_limited(store, max_claimed_per_key=1, max_claimed=2)
    service, access = enter(store, queue)
    places = send(service, access, "a1", "a2", "b1", "c1")
    claimed = claim((service, access), limit=1)

    def told(number: int) -> list[str]:
        explanation = service.core.run(service.explaining.explain(access, places[number][1], 1))
        return [one.text for one in explanation.reasons if one.code == "limits"]

    assert told(1) == ["It waits for its key: 1 of its messages are claimed, max_claimed_per_key is 1."]
    assert told(0) == told(2) == []
    claimed += claim((service, access))
    assert [text.split(":")[0] for text in told(3)] == ["It waits for its partition"]
    acknowledge((service, access), *claimed)
    assert told(3) == []
