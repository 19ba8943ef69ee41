"""Tests of messages with a delay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from queuey import ids
from queuey.messages import Slice
from queuey.storage import Store, bridge
from tests import strategies
from tests.backends import Clock
from tests.contract.samples import (
    append_bodies,
    bodies,
    bodies_in_partition,
    make_queue,
    messages_in_partition,
    new_message,
    positions,
    read_one,
    whole_partition,
)

MILLISECOND = ids.TICKS_PER_SECOND // 1000
TICK = 1 / ids.TICKS_PER_SECOND


def test_hidden_until_due(store: Store, other: Store, clock: Clock) -> None:
    """Range reads of any kind and store show a delayed message from its due time on, and not before."""
    queue = make_queue(store)
    bridge.run(store.messages.append(queue, [new_message("late", delay=10.0)]))
    kinds = [
        structs.replace(whole_partition(), descending=down, delayed=kept)
        for down in (False, True)
        for kept in (False, True)
    ]
    for handle in (store, other):
        assert [page.messages for page in bridge.run(handle.messages.read(queue, kinds))] == [[]] * 4
    clock.advance(9.99)
    for handle in (other, store):
        assert [page.messages for page in bridge.run(handle.messages.read(queue, kinds))] == [[]] * 4
    clock.advance(0.02)
    for handle in (other, store):
        assert [bodies(page.messages) for page in bridge.run(handle.messages.read(queue, kinds))] == [["late"]] * 4


def test_id_time_is_due_time(store: Store, clock: Clock) -> None:
    """The time of the id is the due time."""
    queue = make_queue(store)
    for delay in (0.5, 10.0, 86_400.0):
        (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=delay)]))
        due = clock.ticks + round(delay * ids.TICKS_PER_SECOND)
        assert abs(position[0] - due) < MILLISECOND


def test_found_by_id_before_due(store: Store, other: Store) -> None:
    """A delayed message can be fetched by its id at any time."""
    queue = make_queue(store)
    (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=3600.0)]))
    for handle in (store, other):
        assert bodies(bridge.run(handle.messages.fetch(queue, [(1, position)]))) == ["late"]


def test_ttl_counts_from_due_time(store: Store, clock: Clock) -> None:
    """A delayed message lives its TTL after it is due, however long it waited."""
    queue = make_queue(store)
    (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=100.0, ttl=10)]))
    clock.advance(109)
    assert bodies_in_partition(store, queue) == ["late"]
    assert bodies(bridge.run(store.messages.fetch(queue, [(1, position)]))) == ["late"]
    clock.advance(2)
    assert messages_in_partition(store, queue) == []
    assert bridge.run(store.messages.fetch(queue, [(1, position)])) == []


@pytest.mark.needs("exact_horizon")
def test_moves_no_generator(store: Store, other: Store, clock: Clock) -> None:
    """Messages without delay get ids of now, below a delayed one, and are shown at once."""
    queue = make_queue(store)
    (late,) = bridge.run(store.messages.append(queue, [new_message("late", delay=60.0)]))
    early = [*append_bodies(store, queue, "a"), *append_bodies(other, queue, "b")]
    assert max(early) < late
    assert max(early)[0] - clock.ticks < MILLISECOND
    assert bodies_in_partition(store, queue) == ["a", "b"]
    clock.advance(61)
    append_bodies(other, queue, "c")
    assert bodies_in_partition(store, queue) == ["a", "b", "late", "c"]


def test_due_without_further_writes(store: Store, other: Store, clock: Clock) -> None:
    """Delayed messages appear one after another without further writes, also for cursors kept since before."""
    queue, unrelated = make_queue(store), make_queue(store)
    for number in range(1, 6):
        bridge.run(
            store.messages.append(queue if number % 2 else unrelated, [new_message(str(number), delay=float(number))])
        )
    part = Slice(partition=1)
    seen = []
    for number in range(1, 7):
        clock.advance(1.0)
        page = read_one((store, other)[number % 2], queue, part)
        seen += page.messages
        assert page.next is not None
        part = structs.replace(part, lower=page.next)
    assert bodies(seen) == ["1", "3", "5"]


def test_due_behind_a_batch_of_others(store: Store, clock: Clock) -> None:
    """A message that comes due among the ids of its own batch does not hide later ones."""
    queue = make_queue(store)
    bridge.run(store.messages.append(queue, [new_message("last", delay=10.0)]))
    bridge.run(store.messages.append(queue, [new_message("soon", delay=10 * TICK), *[new_message("now")] * 100]))
    clock.advance(11)
    stored_bodies = bodies_in_partition(store, queue)
    assert sorted(map(str, stored_bodies)) == ["last", *["now"] * 100, "soon"]
    assert stored_bodies[-1] == "last"


@strategies.ON_STORES
@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.lists(st.integers(0, 20), max_size=12))
def test_delays_of_a_few_ticks(store: Store, clock: Clock, first: list[int], second: list[int]) -> None:
    """Delays that differ by single ticks give different ids, and all messages appear."""
    queue = make_queue(store)
    items = [new_message(f"{n}", delay=ticks * TICK) for n, ticks in enumerate(first)]
    more = [new_message(f"more {n}", delay=ticks * TICK) for n, ticks in enumerate(second)]
    stored_at = bridge.run(store.messages.append(queue, items)) + bridge.run(store.messages.append(queue, more))
    assert len(set(stored_at)) == len(items) + len(more)
    clock.advance(1)
    assert sorted(positions(messages_in_partition(store, queue))) == sorted(stored_at)


def test_many_delayed_for_one_moment(store: Store, other: Store, clock: Clock) -> None:
    """Any number of messages from several stores and queues may be due at one moment."""
    queues = [make_queue(store), make_queue(store)]
    positions = [
        position
        for one in (store, other)
        for queue in queues
        for position in bridge.run(one.messages.append(queue, [new_message("late", delay=5.0)] * 50))
    ]
    assert len(set(positions)) == 200
    clock.advance(6)
    assert [len(messages_in_partition(store, queue)) for queue in queues] == [100, 100]


def test_after_does_not_apply(store: Store, clock: Clock) -> None:
    """An ``after`` below the due time does not change the due time."""
    queue = make_queue(store)
    after = (clock.ticks + ids.TICKS_PER_SECOND // 2, 0)
    (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=30.0)], after=after))
    assert position > after
    clock.advance(31)
    assert bodies_in_partition(store, queue) == ["late"]


def test_purged_and_deleted_before_due(store: Store, clock: Clock) -> None:
    """A message that was delayed when its queue was purged or deleted never appears."""
    purged, deleted = make_queue(store), make_queue(store)
    for queue in (purged, deleted):
        bridge.run(store.messages.append(queue, [new_message("late", delay=10.0)]))
    purged = bridge.run(store.catalogue.purge_queue(purged))
    bridge.run(store.catalogue.delete_queue(deleted))
    again = make_queue(store, deleted.name)
    clock.advance(11)
    assert messages_in_partition(store, purged) == []
    assert messages_in_partition(store, again) == []


def test_counted_before_due(store: Store, clock: Clock) -> None:
    """Delayed messages count in a partition's size, but not in a reader's lag."""
    queue = make_queue(store)
    (now,) = append_bodies(store, queue, "now")
    (late,) = bridge.run(store.messages.append(queue, [new_message("late", delay=10.0)]))
    _, (info,) = bridge.run(store.messages.inspect(queue))
    assert (info.count, info.oldest, info.newest) == (2, now, late)
    assert bridge.run(store.messages.lag(queue, [(1, None)]))[0].count == 1
    assert bridge.run(store.messages.lag(queue, [(1, now)]))[0].count == 0
    clock.advance(11)
    assert bridge.run(store.messages.lag(queue, [(1, now)]))[0].count == 1


@pytest.mark.parametrize("pushed", [0.0, 0.9])
def test_never_below_what_a_reader_passed(store: Store, clock: Clock, pushed: float) -> None:
    """However short the delay and however far ids are ahead of the clock, no cursor has passed a delayed message."""
    queue = make_queue(store)
    for seconds in (-60.0, 0.0):
        bridge.run(
            store.messages.append(
                queue, [new_message("x")], after=(clock.ticks + round(pushed * ids.TICKS_PER_SECOND), 0)
            )
        )
        cursor = read_one(store, queue, whole_partition()).next
        clock.advance(seconds)
        assert cursor is not None
        for delay in (TICK, 0.001, 0.5, 30.0):
            (position,) = bridge.run(store.messages.append(queue, [new_message("late", delay=delay)]))
            assert position >= cursor
    clock.advance(200)
    assert bodies(messages_in_partition(store, queue)).count("late") == 8
