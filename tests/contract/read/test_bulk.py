"""Tests of scanning and loading whole ranges."""

from __future__ import annotations

import pytest
from msgspec import structs

from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import Message, Meta, Queue, Slice
from queuey.storage import Store, bridge
from queuey.storage.range_scans import divide
from tests.contract.samples import (
    append_bodies,
    bodies,
    make_queue,
    messages_in_partition,
    new_message,
    pages,
    positions,
    whole_partition,
)

HOUR = 3600 * ids.TICKS_PER_SECOND


def old_messages(count: int, *, partition: int = 1, step: int = HOUR // 10) -> list[Message]:
    now = ids.now_ticks()
    return [
        Message(now - (count - n) * step, n, partition, now + 24 * HOUR, f"{partition}-{n}", Meta("text/plain"))
        for n in range(count)
    ]


def slices(
    store: Store, queue: Queue, lower: Position = ids.FIRST, upper: Position = ids.LAST, *, pieces: int = 1
) -> list[Slice]:
    horizon, partitions = bridge.run(store.messages.inspect(queue))
    return divide(partitions, lower, min(upper, (horizon, ids.LOW_MIN)), pieces=pieces)


def scan_parts(store: Store, queue: Queue, parts: list[Slice]) -> list[Message]:
    return [message for part in parts for some in bridge.iterate(store.bulk.scan(queue, part)) for message in some]


@pytest.mark.parametrize("pieces", [1, 2, 7, 40])
def test_slices_cover_everything_once(store: Store, pieces: int) -> None:
    """However finely a queue is divided, its slices together give each message once, in order within a partition."""
    queue = make_queue(store, partitions=3)
    messages = old_messages(60) + old_messages(25, partition=3, step=HOUR // 3600)
    assert bridge.run(store.bulk.load(queue, messages)) == 85
    assert scan_parts(store, queue, slices(store, queue, pieces=pieces)) == messages


def test_slices_end_at_the_horizon(store: Store) -> None:
    """A message that is not due yet belongs to no slice."""
    queue = make_queue(store)
    positions = append_bodies(store, queue, "a", "b")
    bridge.run(store.messages.append(queue, [new_message("late", delay=3600.0)]))
    horizon, partitions = bridge.run(store.messages.inspect(queue))
    assert horizon > positions[-1][0]
    parts = divide(partitions, ids.FIRST, (horizon, ids.LOW_MIN), pieces=1)
    assert all(part.upper <= (horizon, ids.LOW_MIN) for part in parts)
    assert bodies(scan_parts(store, queue, parts)) == ["a", "b"]


def test_a_scan_comes_in_portions(store: Store) -> None:
    """A scan gives lists no longer than the slice's limit, in either direction."""
    queue = make_queue(store)
    messages = old_messages(23)
    bridge.run(store.bulk.load(queue, messages))
    for descending in (False, True):
        part = structs.replace(whole_partition(), limit=5, descending=descending)
        portions = list(bridge.iterate(store.bulk.scan(queue, part)))
        assert max(len(some) for some in portions) <= 5
        read_messages = [message for some in portions for message in some]
        assert read_messages == (messages[::-1] if descending else messages)


def test_loading_again_changes_nothing(store: Store, other: Store) -> None:
    """A load may be repeated by any process, in part or as a whole: each message is stored once."""
    queue = make_queue(store)
    messages = old_messages(30)
    bridge.run(store.bulk.load(queue, messages))
    bridge.run(other.bulk.load(queue, messages[10:20]))
    bridge.run(store.bulk.load(queue, messages))
    assert messages_in_partition(store, queue) == messages
    assert messages_in_partition(other, queue) == messages


def test_loaded_messages_are_like_others(store: Store) -> None:
    """Loaded messages are read by range beside new ones, found, counted, overwritten and deleted by id."""
    queue = make_queue(store)
    messages = old_messages(6)
    append_bodies(store, queue, "new")
    bridge.run(store.bulk.load(queue, messages))
    assert bodies(messages_in_partition(store, queue)) == [*[message.body for message in messages], "new"]
    assert bridge.run(store.messages.fetch(queue, [(1, messages[3].position)])) == [messages[3]]
    assert bridge.run(store.messages.inspect(queue))[1][0].count == 7
    bridge.run(store.messages.put(queue, [(1, messages[0].position)], new_message("put")))
    bridge.run(store.messages.delete(queue, [(1, messages[1].position)]))
    assert bodies(messages_in_partition(store, queue)) == ["put", *[message.body for message in messages[2:]], "new"]
    assert next(bodies(page.messages) for page in pages(store, queue, structs.replace(whole_partition(), limit=4))) == [
        "put",
        *[message.body for message in messages[2:5]],
    ]


def test_expired_messages_are_left_out(store: Store) -> None:
    """Expired messages are not written and not counted."""
    queue = make_queue(store)
    messages = old_messages(4)
    ended = [structs.replace(message, expires=ids.now_ticks() - HOUR) for message in messages[:2]]
    assert bridge.run(store.bulk.load(queue, [*ended, *messages[2:]])) == 2
    assert positions(messages_in_partition(store, queue)) == positions(messages[2:])
