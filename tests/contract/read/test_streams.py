"""Streams give every message once, from any of their cursors, for any number of queues."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from queuey.app.service import Service
from queuey.messages.range_reads import NotShort, Reader
from queuey.messages.streams import MAX_MARKS, Cursor, Event, OpenStreams, Stream
from queuey.model import ids
from queuey.model.ids import FIRST, Position
from queuey.model.messages import Page, Queue, Slice
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.runtime.waiters import Waiter
from queuey.storage import Messages, Store, bridge
from tests.backends import Backend
from tests.contract.samples import make_queue, new_message
from tests.interposed_store import InterposedStore

A, B = (0x1EF_0123_4567_89AB, 5), (0x1EF_0123_4567_89AC, -7)


class Waiting(Waiter):
    """A waiter that the test wakes."""

    def wake(self, qid: int | None = None) -> None:
        self.record_wake(qid)


class Reading:
    """A reader of a stream, which may start again at any event.

    Args:
        service: Reads.
        queues: The queues of the stream.
        limit: Max messages of a partition at a time.
        cursor: The cursor to start from.
    """

    early = False

    def __init__(self, service: Service, queues: Sequence[Queue], limit: int, cursor: str = "") -> None:
        self.service = service
        only = queues[0].name if len(queues) == 1 else None
        self.stream = Stream(service.streams, Cursor.parse(cursor, only), limit, None, only, early=self.early)
        for queue in queues:
            self.stream.admit(service.queues.access_unchecked(queue))
        self.waiter = Waiting(service.reader.watchers)

    def read(self, *, short: bool = True) -> list[Event]:
        """Reads once, first by a short read if ``short``, and returns the events; no partition may fail."""
        woken = self.waiter.pop_woken()
        run = self.service.core.run if short else bridge.run
        try:
            events, failed = run(self.stream.read(woken, self.waiter, short=short))
        except NotShort:
            events, failed = bridge.run(self.stream.read(woken, self.waiter))
        assert not failed
        return events

    def close(self) -> None:
        self.waiter.close()


def service_of(store: Store, page_bytes: int = 1 << 20) -> Service:
    return Service(store, Limits(page_bytes=page_bytes), metrics=Metrics())


def place_of(event: Event) -> tuple[str, int, Position]:
    return event.queue, event.message.partition, event.message.position


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3, 4, 5))])
def test_each_message_comes_once(store: Store, backend: Backend, seed: int) -> None:
    """While queues fill up and reading starts again from any of its cursors, no message is left out."""
    cheap = backend.name == "sqlite"
    for run_seed in [seed, seed + 100, seed + 200] if cheap else [seed]:
        fill_and_read(store, random.Random(run_seed), small=cheap)


def fill_and_read(store: Store, rng: random.Random, *, small: bool) -> None:
    service = service_of(store, rng.choice([400, 5_000, 1 << 20]) if small else 1 << 20)
    queues = [make_queue(store, partitions=rng.choice([1, 1, 3, 12])) for _ in range(rng.choice([1, 2, 5, 30]))]
    limit = rng.choice([1, 3, 100])
    stored: list[tuple[str, int, Position]] = []

    def fill() -> None:
        for _ in range(rng.randrange(8)):
            queue = rng.choice(queues)
            items = [
                new_message("x" * rng.randrange(300), partition=rng.randint(1, queue.partitions)) for _ in range(4)
            ]
            for item, position in zip(items, bridge.run(store.messages.append(queue, items)), strict=True):
                stored.append((queue.name, item.partition, position))
            for reader in readers:
                reader.waiter.wake(queue.qid)

    readers: list[Reading] = []
    fill()
    readers.append(Reading(service, queues, limit))
    received: list[Event] = []
    for _ in range(40 if small else 12):
        fill()
        [reader] = readers
        events = reader.read(short=rng.random() < 0.8)
        if events and rng.random() < 0.3:
            # Some events did not arrive: the reader continues after the last that did, or from the beginning.
            events = events[: rng.randrange(len(events) + 1)]
            last = events[-1].cursor if events else received[-1].cursor if received else ""
            reader.close()
            readers[:] = [Reading(service, queues, limit, last)]
        received += events
    [reader] = readers
    while (events := reader.read()) or reader.stream.more:
        received += events
    reader.waiter.wake(None)
    received += reader.read()
    reader.close()
    places = [place_of(event) for event in received]
    assert sorted(places) == sorted(stored)
    for name, partition in {place[:2] for place in places}:
        mine = [at for *place, at in places if tuple(place) == (name, partition)]
        assert mine == sorted(mine)
    assert max(len(event.cursor.split(",")) for event in received) <= 1 + MAX_MARKS


@pytest.mark.parametrize("difference", [0.25, 30.0])
def test_new_queues_are_read_from_what_no_clock_is_behind(difference: float) -> None:
    """A new queue is read from where no clock is behind, as its creator's clock may be behind by the allowed amount.

    Only the clock of ids counts: the machine's own may be off.
    """
    wrong = 3 * ids.TICKS_PER_SECOND
    reader = SimpleNamespace(clock_difference=difference, now=lambda: ids.now_ticks() - wrong)
    stream = Stream(OpenStreams(cast("Reader", reader)), Cursor(), 1, None, None)
    stream.may_grow = True
    behind = reader.now() - round(difference * ids.TICKS_PER_SECOND)
    stream.record_list()
    assert stream.listed is not None
    assert behind - 2 * ids.TICKS_PER_SECOND < stream.listed[0] < behind
    assert not stream.may_list
    assert Cursor.parse("now", None, reader.now).base[0] < ids.now_ticks() - wrong // 2


def test_only_what_was_woken_is_read(store: Store) -> None:
    """A message in one of many queues makes the stream read that queue, and no other."""
    between = InterposedStore(store)
    service = service_of(between.store)
    queues = [make_queue(store) for _ in range(20)]
    reader = Reading(service, queues, 10)
    assert reader.read() == []
    reads: list[str] = []

    def read(queue: Queue, slices: Sequence[Slice]) -> list[Page]:
        reads.append(queue.name)
        return bridge.run(store.messages.read(queue, slices))

    between.instead(Messages.read, read)
    bridge.run(store.messages.append(queues[7], [new_message("a")]))
    reader.waiter.wake(queues[7].qid)
    assert [event.message.body for event in reader.read()] == ["a"]
    assert reads == [queues[7].name]
    reader.close()


def test_a_queue_that_is_added_is_read_whatever_woke_the_stream(store: Store) -> None:
    """A queue that is added is read at the next attempt, even if only another queue has news."""
    first, other, later = (make_queue(store) for _ in range(3))
    service = service_of(store)
    reader = Reading(service, [first, other], 10)
    assert reader.read() == []
    bridge.run(store.messages.append(later, [new_message("a")]))
    reader.stream.admit(service.queues.access_unchecked(later))
    bridge.run(store.messages.append(first, [new_message("b")]))
    reader.waiter.wake(first.qid)
    assert [event.message.body for event in reader.read()] == ["a", "b"]
    assert not reader.stream.more
    reader.close()


@pytest.mark.parametrize("refreshed_by", ["the read", "another call"])
def test_a_purged_queue_is_read_by_its_new_row(store: Store, refreshed_by: str) -> None:
    """A message stored before the stream watches the new row of a queue is sent, whatever has read that row."""
    service = service_of(store)
    purged, busy = make_queue(store), make_queue(store)
    reader = Reading(service, [purged, busy], 10)
    assert reader.read() == []
    row = bridge.run(store.catalogue.purge_queue(purged))
    received: list[Event] = []
    if refreshed_by == "another call":
        bridge.run(reader.stream.accesses[0].refresh())
    else:
        bridge.run(store.messages.append(busy, [new_message("busy")]))
        reader.waiter.wake(busy.qid)
        reader.waiter.wake(purged.qid)
        received += reader.read()
    bridge.run(store.messages.append(row, [new_message("after")]))
    if refreshed_by == "another call":
        reader.waiter.wake(purged.qid)  # The watch of the former row says that the row has changed.
        received += reader.read()
    while reader.stream.more:
        received += reader.read()
    assert received[-1].message.body == "after"
    reader.close()


def test_a_cursor_is_short_and_can_be_read_back() -> None:
    """A cursor is a base and the positions ahead of it; that of one queue is also a bound of range reads."""
    cursor = Cursor(A, {("a,b/c", 2): B, ("é", 1): B})
    again = Cursor.parse(cursor.to_text(None), None)
    assert (again.base, again.marks) == (A, {("a,b/c", 2): B, ("é", 1): B})
    assert cursor.to_text(None).isascii()
    one = Cursor(A, {("q", 2): B})
    again = Cursor.parse(one.to_text("q"), "q")
    assert (again.base, again.marks) == (A, {("q", 2): B})
    assert Cursor.parse("", None).base == Cursor.parse("", "q").base == FIRST
    parted = Cursor.parse("1:" + Cursor(A).to_text("q"), "q")
    assert (parted.base, parted.marks) == (FIRST, {("q", 1): A})


@pytest.mark.parametrize(
    "text", ["x", "1:2", "12,", "q/1:0", "q:1", ",q/1:" + "0" * 32, "now,now", "0" * 32 + ",q/x:1"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    """Text that is not a cursor is an error for the caller, never another position."""
    for queue in (None, "q"):
        if (text, queue) != ("12,", "q"):
            with pytest.raises(ValueError, match=r"."):
                Cursor.parse(text, queue)


def test_two_messages_at_one_position_are_both_given() -> None:
    """Two messages at one position in two partitions are both given."""
    cursor = Cursor(A)
    cursor.advance(("a", 1), B, whole=False)
    assert (cursor.base, list(cursor.marks)) == (A, [("a", 1)])
    cursor.advance(("b", 1), B, whole=True)
    assert (cursor.base > B, cursor.marks) == (True, {})
