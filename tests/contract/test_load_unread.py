"""Tests of loading messages at ids of the caller's choice, above all readers."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey.model import ids
from queuey.model.errors import TooLate
from queuey.model.messages import Message, Meta
from queuey.storage import Store, bridge
from tests.backends import Clock
from tests.contract.cursors import MESSAGES_PER_WRITER, Loader, Writer, check_between_threads
from tests.contract.samples import (
    append_bodies,
    bodies_in_partition,
    fill_queue,
    make_queue,
    messages_in_partition,
    new_message,
    positions,
    read_one,
    whole_partition,
)

SECOND = ids.TICKS_PER_SECOND
LOW = 12345


def make_upcoming(first: int, count: int, *, partition: int = 1, step: int = 1) -> list[Message]:
    return [
        Message(first + n * step, LOW, partition, first + 3600 * SECOND, f"{partition}-{n}", Meta("a/b"))
        for n in range(count)
    ]


def test_hidden_until_due(store: Store, other: Store, clock: Clock) -> None:
    """A message loaded ahead appears when its id comes due, like a delayed one, for every reader."""
    queue = make_queue(store, partitions=2)
    due = bridge.run(store.ledger.now()) + 30 * SECOND
    messages = make_upcoming(due, 20) + make_upcoming(due, 5, partition=2)
    assert bridge.run(store.bulk.load_unread(queue, messages)) == 25
    for handle in (store, other):
        assert messages_in_partition(handle, queue) == []
        assert bridge.run(handle.messages.fetch(queue, [(1, messages[7].position)])) == [messages[7]]
    clock.advance(29)
    assert messages_in_partition(other, queue) == []
    clock.advance(2)
    for handle in (store, other):
        assert messages_in_partition(handle, queue) == messages[:20]
        assert messages_in_partition(handle, queue, 2) == messages[20:]


@pytest.mark.parametrize("back", [1, 60, 86_400])
def test_what_readers_may_have_passed(store: Store, back: int) -> None:
    """Ids in the past are refused; one of them makes the whole call fail, and nothing is written."""
    queue = fill_queue(store, "x", partitions=2)
    now = bridge.run(store.ledger.now())
    past, ahead = make_upcoming(now - back * SECOND, 3, partition=2), make_upcoming(now + 60 * SECOND, 10)
    for messages in (past, [*ahead, past[0]]):
        with pytest.raises(TooLate) as caught:
            bridge.run(store.bulk.load_unread(queue, messages))
        assert caught.value.written is False
        places = [(message.partition, message.position) for message in messages]
        assert bridge.run(store.messages.fetch(queue, places)) == []


def test_once_it_is_due(store: Store, other: Store, clock: Clock) -> None:
    """A retry that comes after readers have passed is refused and leaves the written messages as they are."""
    queue = make_queue(store)
    messages = make_upcoming(bridge.run(store.ledger.now()) + 30 * SECOND, 4)
    bridge.run(store.bulk.load_unread(queue, messages[:2]))
    clock.advance(60)
    assert messages_in_partition(other, queue) == messages[:2]
    with pytest.raises(TooLate):
        bridge.run(store.bulk.load_unread(queue, messages))
    assert messages_in_partition(store, queue) == messages[:2]


@pytest.mark.needs("exact_horizon")
def test_the_exact_border(store: Store, other: Store, clock: Clock) -> None:
    """Ids from the horizon on can be written and are not missed; the id below it is refused."""
    queue = make_queue(store)
    append_bodies(other, queue, "x")
    page = read_one(other, queue, whole_partition())
    with pytest.raises(TooLate):
        bridge.run(store.bulk.load_unread(queue, make_upcoming(page.horizon - 1, 2)))
    assert page.next is not None
    messages = make_upcoming(page.horizon, 2)
    bridge.run(store.bulk.load_unread(queue, messages))
    clock.advance(1)
    assert read_one(other, queue, structs.replace(whole_partition(), lower=page.next)).messages == messages


@pytest.mark.needs("exact_horizon")
def test_a_reader_that_moved_the_clock_on(store: Store, other: Store, clock: Clock) -> None:
    """After a reader was shown a delayed message, ids up to its time are refused, though none was minted."""
    queue = fill_queue(store, "x")
    bridge.run(store.messages.append(queue, [new_message("late", delay=5.0)]))
    first = clock.ticks + 4 * SECOND
    clock.advance(6)
    assert bodies_in_partition(other, queue) == ["x", "late"]
    with pytest.raises(TooLate):
        bridge.run(store.bulk.load_unread(queue, make_upcoming(first, 1)))
    with pytest.raises(TooLate):
        bridge.run(store.bulk.load_unread(queue, make_upcoming(clock.ticks, 1)))
    assert bridge.run(store.bulk.load_unread(queue, make_upcoming(clock.ticks + 1, 1))) == 1


@pytest.mark.needs("exact_horizon")
def test_a_clock_that_steps_back(store: Store, other: Store, clock: Clock) -> None:
    """If the clock is set back, ids ahead of it may still be refused, because readers may have passed them."""
    queue = fill_queue(store, "x")
    clock.advance(-60)
    with pytest.raises(TooLate):
        bridge.run(other.bulk.load_unread(queue, make_upcoming(clock.ticks + 30 * SECOND, 1)))
    assert bridge.run(other.bulk.load_unread(queue, make_upcoming(bridge.run(store.ledger.now()) + 1, 1))) == 1


@pytest.mark.needs("exact_horizon")
def test_ids_of_a_quiet_time(store: Store, other: Store, clock: Clock) -> None:
    """Past ids above everything ever shown are accepted, and a reader that continues gets them."""
    queue = fill_queue(store, "x")
    page = read_one(other, queue, whole_partition())
    assert page.next is not None
    clock.advance(60)
    messages = make_upcoming(clock.ticks - 30 * SECOND, 5)
    assert bridge.run(store.bulk.load_unread(queue, messages)) == 5
    assert read_one(other, queue, structs.replace(whole_partition(), lower=page.next)).messages == messages


def test_new_messages_spare_what_was_loaded(store: Store, other: Store, clock: Clock) -> None:
    """Messages appended at the very moment of loaded ids overwrite none of them, and all are shown."""
    queue = make_queue(store)
    minted = append_bodies(store, queue, "x")[0]
    first = bridge.run(store.ledger.now()) + 20 * SECOND
    messages = [structs.replace(message, low=minted[1]) for message in make_upcoming(first, 300)]
    bridge.run(store.bulk.load_unread(queue, messages))
    clock.advance(20)
    places = [place for _ in range(20) for one in (store, other) for place in append_bodies(one, queue, "a", "b", "c")]
    clock.advance(5)
    assert len(set(places) | set(positions(messages)) | {minted}) == 421
    assert sorted(positions(messages_in_partition(store, queue))) == sorted({minted, *places, *positions(messages)})


def test_as_alive_as_it_says(store: Store, clock: Clock) -> None:
    """Messages end at their own end, and ended ones are left out and not counted."""
    queue = make_queue(store)
    first = bridge.run(store.ledger.now()) + 10 * SECOND
    messages = make_upcoming(first, 6)
    messages[:2] = [
        structs.replace(message, expires=bridge.run(store.ledger.now()) - SECOND) for message in messages[:2]
    ]
    messages[2:4] = [structs.replace(message, expires=first + 20 * SECOND) for message in messages[2:4]]
    assert bridge.run(store.bulk.load_unread(queue, messages)) == 4
    clock.advance(20)
    assert messages_in_partition(store, queue) == messages[2:]
    clock.advance(20)
    assert messages_in_partition(store, queue) == messages[4:]


@pytest.mark.slow_on("simulated")
@pytest.mark.parametrize("messages", MESSAGES_PER_WRITER)
def test_g1_between_threads(store: Store, other: Store, messages: int) -> None:
    """With loaded messages beside minted ones no cursor passes a message that its reader was not shown (G1)."""
    check_between_threads(store, other, [Loader, Loader, Writer] * 2, messages)
