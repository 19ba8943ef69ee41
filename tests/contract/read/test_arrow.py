"""Tests of whole ranges as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from queuey.model import ids
from queuey.model.errors import QueueChanged
from queuey.model.messages import Message, Meta, Queue, Slice
from queuey.storage import Catalogue, Store, arrow_format, bridge
from tests.backends import Clock
from tests.contract.samples import make_queue, messages_in_partition, method_of, new_message, positions, whole_partition

HOUR = 3600 * ids.TICKS_PER_SECOND
METAS = (None, Meta(), Meta("text/plain"), Meta(json=True), Meta("a/b", (("x", "1"), ("y", "ü"))))


def make_past_messages(count: int, *, body: str | bytes = "x", step: int = HOUR // 10) -> list[Message]:
    now = ids.now_ticks()
    return [Message(now - (count - n) * step, n, 1, now + 24 * HOUR, body, Meta()) for n in range(count)]


def unpack_batches(batches: list[pa.RecordBatch], partition: int = 1) -> list[Message]:
    messages = []
    for batch in batches:
        for row in batch.to_pylist():
            text, meta = arrow_format.decode_typed_meta(row["meta"])
            body = row["body"].decode() if text else row["body"]
            messages.append(Message(row["ticks"], row["low"], partition, row["expires"], body, meta))
    return messages


def scan_part(store: Store, queue: Queue, part: Slice) -> list[Message]:
    messages = [message for some in bridge.iterate(store.bulk.scan(queue, part)) for message in some]
    return [structs.replace(message, meta=message.meta or Meta()) for message in messages]


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=9) | st.binary(min_size=1, max_size=9), st.sampled_from(METAS))),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_any_messages(
    store: Store, given_messages: list[tuple[str | bytes, Meta | None]], limit: int, size: int
) -> None:
    """Columns hold the messages in order, however small the batches are."""
    queue = make_queue(store)
    if given_messages:
        bridge.run(store.messages.append(queue, [new_message(body, meta=meta) for body, meta in given_messages]))
    part = Slice(1, limit=limit, max_bytes=size)
    batches = list(bridge.iterate(store.bulk.scan_arrow(queue, part)))
    assert all(0 < len(batch) <= limit for batch in batches)
    assert unpack_batches(batches) == scan_part(store, queue, whole_partition())


@pytest.mark.parametrize("bodies", [True, False])
def test_batches_are_bounded(store: Store, *, bodies: bool) -> None:
    """A batch has at most the slice's limit of rows and about its bytes, and is never empty."""
    queue = make_queue(store)
    bridge.run(store.bulk.load(queue, make_past_messages(400, body="x" * 1000)))
    batches = list(bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=30), bodies=bodies)))
    assert all(0 < len(batch) <= 30 for batch in batches)
    assert sum(len(batch) for batch in batches) == 400
    if bodies:
        batches = list(bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=1000, max_bytes=50_000))))
        assert all(0 < len(batch) <= 100 for batch in batches)
        assert sum(len(batch) for batch in batches) == 400


def test_without_bodies(store: Store) -> None:
    """Without bodies the positions and ends are the same, and the columns of bodies are missing."""
    queue = make_queue(store)
    bridge.run(store.bulk.load(queue, make_past_messages(50, body=b"x" * 5000)))
    batches = list(bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=20), bodies=False)))
    assert {batch.schema for batch in batches} == {arrow_format.SCHEMA_WITHOUT_BODIES}
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows == [(message.ticks, message.low, message.expires) for message in messages_in_partition(store, queue)]


@pytest.mark.parametrize("bodies", [True, False])
def test_bounds(store: Store, *, bodies: bool) -> None:
    """The lower bound is inclusive and the upper one exclusive, also between ids of one tick."""
    queue = make_queue(store)
    messages = make_past_messages(40, step=HOUR // 10)
    messages += [structs.replace(messages[20], low=low) for low in range(100, 110)]
    bridge.run(store.bulk.load(queue, messages))
    messages = messages_in_partition(store, queue)
    part = Slice(1, messages[5].position, messages[25].position, limit=7)
    batches = list(bridge.iterate(store.bulk.scan_arrow(queue, part, bodies=bodies)))
    places = [(row["ticks"], row["low"]) for batch in batches for row in batch.to_pylist()]
    assert places == positions(messages[5:25])


def test_only_what_is_due_and_alive(store: Store, clock: Clock) -> None:
    """Columns leave out expired messages and those at or above the horizon."""
    queue = make_queue(store)
    items = [new_message("short", ttl=5), new_message("long"), new_message("late", delay=60.0)]
    bridge.run(store.messages.append(queue, items))
    for seconds, expected in ((1, ["short", "long"]), (9, ["long"]), (60, ["long", "late"])):
        clock.advance(seconds)
        batches = list(bridge.iterate(store.bulk.scan_arrow(queue, whole_partition())))
        assert [message.body for message in unpack_batches(batches)] == expected


@pytest.mark.parametrize("change", [Catalogue.purge_queue, Catalogue.delete_queue], ids=lambda change: change.__name__)
def test_a_queue_that_goes_away(store: Store, change: Callable[..., Any]) -> None:
    """A scan fails if its queue is purged or deleted meanwhile, because its columns are incomplete."""
    queue = make_queue(store)
    bridge.run(store.bulk.load(queue, make_past_messages(300)))
    batches = bridge.iterate(store.bulk.scan_arrow(queue, Slice(1, limit=10)))
    next(batches)
    bridge.run(method_of(store, change)(queue))
    with pytest.raises(QueueChanged):
        list(batches)
