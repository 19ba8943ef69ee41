"""Tests of the end of messages."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from queuey.app.service import Service
from queuey.messages.posts import Draft
from queuey.model import ids
from queuey.model.errors import InvalidRequest
from queuey.model.ids import Position
from queuey.model.messages import MAX_TTL, Named, NewMessage, PostKey, PostResult, Queue, QueueSpec, Slice
from queuey.storage import ClaimLogs, KeyedPosts, Names, Store, bridge
from tests.backends import APP, PROMPT, Clock
from tests.blocking import BlockingNames
from tests.contract.moves.test_moves import Mover
from tests.contract.samples import (
    append_bodies,
    bodies,
    bodies_in_partition,
    eventually,
    fresh_name,
    make_queue,
    messages_in_partition,
    new_message,
    pages,
    positions,
    read_one,
    whole_partition,
)
from tests.interposed_store import InterposedStore

ENDED = structs.replace(whole_partition(), kept=True)
"""A slice of everything, including ended messages."""


def test_expired_messages_are_gone_everywhere(store: Store, other: Store, clock: Clock) -> None:
    """After its TTL a message is in no range, fetch, count or lag of any store."""
    queue = make_queue(store)
    (short,) = append_bodies(store, queue, "short", ttl=10)
    (long,) = append_bodies(store, queue, "long", ttl=100)
    clock.advance(9)
    assert bodies_in_partition(other, queue) == ["short", "long"]
    clock.advance(2)
    for handle in (store, other):
        assert bodies_in_partition(handle, queue) == ["long"]
        assert bodies(read_one(handle, queue, Slice(partition=1, descending=True)).messages) == ["long"]
        assert bridge.run(handle.messages.fetch(queue, [(1, short), (1, long)]))[0].position == long
        _, (info,) = bridge.run(handle.messages.inspect(queue))
        assert (info.count, info.oldest, info.newest) == (1, long, long)
        assert bridge.run(handle.messages.lag(queue, [(1, None)]))[0].count == 1
    clock.advance(100)
    for handle in (store, other):
        assert messages_in_partition(handle, queue) == []
        _, (info,) = bridge.run(handle.messages.inspect(queue))
        assert (info.count, info.oldest, info.newest) == (0, None, None)
        assert bridge.run(handle.messages.lag(queue, [(1, None)]))[0].count == 0


def test_expiry_by_the_wall_clock(store: Store) -> None:
    """A message with a TTL of one second is gone a little later, by the real clock."""
    queue = make_queue(store)
    append_bodies(store, queue, "short", ttl=1)
    append_bodies(store, queue, "long", ttl=1000)
    assert eventually(lambda: bodies_in_partition(store, queue) == ["long"])


def test_expires_says_when(store: Store, clock: Clock) -> None:
    """A message has the time of its end."""
    queue = make_queue(store)
    for ttl in (30, 60, MAX_TTL):
        (position,) = append_bodies(store, queue, "x", ttl=ttl)
        (message,) = bridge.run(store.messages.fetch(queue, [(1, position)]))
        assert abs(message.expires - clock.ticks - ttl * ids.TICKS_PER_SECOND) <= ids.TICKS_PER_SECOND


def kept_bodies(store: Store, queue: Queue) -> list[str | bytes]:
    return bodies(read_one(store, queue, ENDED).messages)


def test_ended_messages_are_shown_to_kept_reads_alone(store: Store, other: Store, clock: Clock) -> None:
    """An ended kept message is only in reads that ask for kept ones, until it is deleted; not in counts or lags."""
    queue = make_queue(store)
    items = [
        new_message("a", ttl=10, kept=True),
        new_message("b", ttl=10, delay=5, kept=True),
        new_message("c", ttl=1000),
    ]
    first, delayed, live = bridge.run(store.messages.append(queue, items))
    clock.advance(1)
    assert kept_bodies(other, queue) == bodies_in_partition(other, queue) == ["a", "c"]
    clock.advance(30)
    for one in (store, other):
        assert bodies_in_partition(one, queue) == ["c"]
        assert bodies(bridge.run(one.messages.fetch(queue, [(1, first), (1, delayed), (1, live)]))) == ["c"]
        _, (info,) = bridge.run(one.messages.inspect(queue))
        assert (info.count, info.oldest, info.newest) == (1, live, live)
        assert bridge.run(one.messages.lag(queue, [(1, None)]))[0].count == 1
        assert [measure.count for measures in bridge.iterate(one.bulk.measure([queue])) for measure in measures] == [1]
    for one in (store, other):
        assert kept_bodies(one, queue) == ["a", "c", "b"]
        assert bodies(bridge.run(one.messages.fetch(queue, [(1, delayed), (1, first)], kept=True))) == ["b", "a"]
        by_two = pages(one, queue, structs.replace(ENDED, limit=2, descending=True, bodies=False))
        assert [positions(page.messages) for page in by_two] == [[delayed, live], [first]]
    bridge.run(store.messages.delete(queue, [(1, first)]))
    assert kept_bodies(other, queue) == ["c", "b"]


def test_readers_that_have_passed_ended_messages_hide_them_from_nobody(store: Store, clock: Clock) -> None:
    """Positions of live messages that reads have cached do not hide messages from reads of kept ones."""
    queue = make_queue(store)
    for _ in range(3):
        bridge.run(store.messages.append(queue, [new_message("kept", ttl=10, kept=True)]))
        clock.advance(60)
        assert read_one(store, queue, Slice(1)).messages == []
    assert kept_bodies(store, queue) == ["kept"] * 3


def test_queues_that_cannot_be_claimed_from_drop_what_expires(store: Store) -> None:
    """A queue without claims cannot have the option, because no claim would give up its expired messages."""
    between = InterposedStore(store)
    between.instead(ClaimLogs.claims_refusal, lambda _queue: "its consistency is weak.")
    service, spec = Service(between.store), QueueSpec(on_ack="delete", on_expiry="dead-letter")
    with pytest.raises(InvalidRequest) as refused:
        service.core.run(service.queues.create(APP, fresh_name(), spec))
    text = "dead-letter needs a queue that can be claimed from: its consistency is weak."
    assert refused.value.fields == {"on_expiry": text}


def test_named_and_moved_messages_are_kept(store: Store) -> None:
    """In a queue that does not drop expired messages, moved ones and values of names without a TTL are kept."""
    target = make_queue(store, consistency=PROMPT, on_ack="delete", on_expiry="dead-letter")
    between, stored = InterposedStore(store), list[NewMessage]()

    def write_named(queue: Queue, name: str, item: NewMessage, content: bytes, seen: Named | None) -> Named:
        stored.append(item)
        return bridge.run(store.names.write_named(queue, name, item, content, seen))

    def append_once(queue: Queue, items: Sequence[NewMessage], key: PostKey, *, after: Position | None) -> PostResult:
        stored.extend(items)
        return bridge.run(store.keyed_posts.append_once(queue, items, key, after=after))

    between.instead(Names.write_named, write_named)
    between.instead(KeyedPosts.append_once, append_once)
    mover = Mover(between.store)
    names = BlockingNames(mover.service)
    names.create(mover.access(target), "a", Draft("a"))
    names.create(mover.access(target), "b", Draft("b", ttl=60))
    source = make_queue(store, consistency=PROMPT)
    append_bodies(store, source, "c", ttl=1000)
    assert mover.wait_until_ended(mover.begin(source, target)).moved == 1
    mover.stopping.set()
    assert [(item.body, item.kept) for item in stored] == [("a", True), ("b", False), ("c", True)]
