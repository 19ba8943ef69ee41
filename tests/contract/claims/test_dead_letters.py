"""Dead letters in queues that also hold other messages: none overwrites another message, and each is stored once."""

from __future__ import annotations

from typing import Any

from queuey.deadletters import HEADER_PREFIX
from queuey.errors import StoreUnavailable
from queuey.messages import NewMessage, PostKey, PostResult, Queue, QueueSpec
from queuey.metrics import Metrics
from queuey.service import ClaimUseCases, Limits, QueueAccess, Service
from queuey.service.claims.follow_ups import OVERDUE_SECONDS
from queuey.service.core import Core
from queuey.storage import KeyedPosts, Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.samples import (
    append_bodies,
    count_outbox,
    eventually,
    fresh_name,
    messages_in_partition,
    new_message,
)
from tests.interposed_store import InterposedStore
from tests.replacing import replace


def test_letters_that_share_a_partition_are_there_once(store: Store, other: Store, clock: Clock) -> None:
    """Two letters of one id stay beside the message that had it; letters whose post got no answer are not repeated."""
    shared, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(read_delay=0.0)))
    spec = QueueSpec(partitions=2, read_delay=0.0, max_deliveries=1, dead_letter=shared.name)
    queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), spec))
    [place] = append_bodies(store, shared, "wages")
    bridge.run(store.messages.put(queue, [(1, place)], new_message("one")))
    bridge.run(store.messages.put(queue, [(2, place)], new_message("two")))
    doubted = InterposedStore(store)

    def append_once(target: Queue, items: list[NewMessage], key: PostKey, **named: Any) -> PostResult:  # noqa: ANN401 - as the store's
        bridge.run(store.keyed_posts.append_once(target, items, key, **named))
        raise StoreUnavailable("no answer", outcome="unknown")

    doubted.instead(KeyedPosts.append_once, append_once)
    service = Service(doubted.store)
    access = service.enter(queue, lambda _queue: None)
    claimed = [
        *blocking(service.claims).claim(access, limit=1, ttl=10),
        *blocking(service.claims).claim(access, limit=1, ttl=10),
    ]
    assert sorted(delivery.message.body for delivery in claimed) == ["one", "two"]
    clock.advance(100)
    assert blocking(service.claims).claim(access, limit=9, ttl=10) == []
    assert eventually(lambda: len(messages_in_partition(store, shared)) == 3)
    core = Core()
    late = ClaimUseCases(other, Limits(), Metrics(), core=core)
    there = QueueAccess(core, other, queue, lambda _queue: None)
    began = core.boottime()
    with replace(Core.boottime, lambda _self: began):
        assert count_outbox(late, there) == {1: 1, 2: 1}
    with replace(Core.boottime, lambda _self: began + OVERDUE_SECONDS):
        assert blocking(late).claim(there, limit=9, ttl=10) == []
        assert eventually(lambda: not any(count_outbox(late, there).values()))
    assert messages_in_partition(store, shared)[0].body == "wages"
    said = [
        (one.body, dict(one.meta.headers)[f"{HEADER_PREFIX}partition"])
        for one in messages_in_partition(store, shared)[1:]
        if one.meta
    ]
    assert sorted(said) == [("one", "1"), ("two", "2")]
    assert bridge.run(store.catalogue.queue(APP, shared.name, fresh=True)).partitions == 1
