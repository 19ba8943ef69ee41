"""Early reads and streams: they also give messages above the horizon, marked, with the cursor at the horizon."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from queuey.app.service import Service
from queuey.messages.ranges import RangeAnswer, RangeRequest, make_mark
from queuey.messages.streams import MAX_EARLY_PARTITIONS, Cursor, Event
from queuey.model.ids import FIRST, LOW_MIN, Position
from queuey.model.messages import Message, Queue, Slice, bytes_of
from queuey.storage import Store, bridge
from tests.backends import Backend
from tests.contract.read import test_streams
from tests.contract.read.test_streams import place_of, service_of
from tests.contract.read.test_watch import Watcher
from tests.contract.samples import append_bodies, eventually, fill_queue, make_queue, new_message

LONG_READ_DELAY = 3600.0
"""A read delay so long that no test waits for it, in seconds."""


class Early(test_streams.Reading):
    """A reader of an early stream."""

    early = True


def read(service: Service, queue: Queue, **how: Any) -> RangeAnswer:  # noqa: ANN401 - fields of a range
    access = service.queues.access_unchecked(queue)
    return bridge.run(service.reader.read(access, RangeRequest(early=True, **how)))


def bodies(messages: Any) -> list[str]:  # noqa: ANN401 - messages or events
    return [str(getattr(message, "message", message).body) for message in messages]


@pytest.fixture
def stream_of(store: Store) -> Iterator[Callable[..., Early]]:
    """Makes streams, which are closed at the end."""
    begun: list[Early] = []

    def begin(*queues: Queue, limit: int = 100, cursor: str = "", page_bytes: int = 1 << 20) -> Early:
        begun.append(Early(service_of(store, page_bytes), queues, limit, cursor))
        return begun[-1]

    yield begin
    for stream in begun:
        stream.close()


def test_the_part_above_the_horizon(store: Store) -> None:
    """A delayed page ends at the horizon, and an early slice gives the due messages above it."""
    queue = fill_queue(store, "a", "b", read_delay=LONG_READ_DELAY)
    bridge.run(store.messages.append(queue, [new_message("not due", delay=60.0)]))
    [page] = bridge.run(store.messages.read(queue, [Slice(1)]))
    assert (page.messages, page.next) == ([], (page.horizon, LOW_MIN))
    above = Slice(1, (page.horizon, LOW_MIN), keeps_read_delay=False, early=True)
    [early] = bridge.run(store.messages.read(queue, [above]))
    assert bodies(early.messages) == ["a", "b"]


def test_a_read(store: Store) -> None:
    """Early messages are in their own list; the cursor stays at the horizon, however often it is read from."""
    service, queue = service_of(store), make_queue(store, read_delay=LONG_READ_DELAY)
    append_bodies(store, queue, "a", "b")
    reading = read(service, queue)
    assert (reading.messages, bodies(reading.early), reading.more) == ([], ["a", "b"], False)
    assert reading.next == {1: (reading.horizon, LOW_MIN)}
    assert reading.early[0].position >= (reading.horizon, LOW_MIN)
    again = read(service, queue, since={1: make_mark(reading.next[1] or FIRST)})
    assert bodies(again.early) == ["a", "b"]


def test_above_what_was_given(store: Store) -> None:
    """A reader that names the early messages it has gets those above them, partition by partition."""
    service, queue = service_of(store), make_queue(store, partitions=2, read_delay=LONG_READ_DELAY)
    [first] = append_bodies(store, queue, "a1")
    append_bodies(store, queue, "a2", partition=2)
    append_bodies(store, queue, "b1")
    reading = read(service, queue, partitions=None, early_after={1: make_mark(first)})
    assert bodies(reading.early) == ["a2", "b1"]


@pytest.mark.parametrize("merge", [False, True])
def test_limits(store: Store, merge: bool) -> None:  # noqa: FBT001 - a parameter
    """Both parts together have no more messages and bytes than a page may have."""
    queue = make_queue(store, partitions=3, read_delay=LONG_READ_DELAY)
    for partition in (1, 2, 3):
        append_bodies(store, queue, *["x" * 100] * 4, partition=partition)
    reading = read(service_of(store), queue, partitions=None, limit=2, merge=merge)
    assert len(reading.early) == (2 if merge else 6)
    assert reading.early_more
    assert [message.position for message in reading.early] == sorted(message.position for message in reading.early)
    small = read(service_of(store, 1500), queue, partitions=None, merge=merge)
    assert small.early
    assert bytes_of(small.early) < 1500
    assert small.early_more


def test_an_early_stream(store: Store, stream_of: Callable[..., Early]) -> None:
    """A stream gives a message once early, without moving its cursor, and again only below the horizon."""
    queue = make_queue(store, read_delay=LONG_READ_DELAY)
    stream = stream_of(queue)
    assert stream.read() == []
    append_bodies(store, queue, "a")
    [event] = stream.read()
    assert (event.early, bodies([event])) == (True, ["a"])
    assert event.cursor == stream.stream.text
    assert Cursor.parse(event.cursor, queue.name).base < event.message.position
    assert stream.read() == []
    append_bodies(store, queue, "b")
    assert bodies(stream.read()) == ["b"]
    # A new stream from its cursor gets them again.
    assert bodies(stream_of(queue, cursor=stream.stream.text).read()) == ["a", "b"]


def test_what_a_stream_keeps_is_bounded(store: Store, stream_of: Callable[..., Early]) -> None:
    """A stream remembers early messages of a limited number of partitions; others get them below the horizon only."""
    queue = make_queue(store, partitions=200, read_delay=LONG_READ_DELAY)
    other = make_queue(store, partitions=200, read_delay=LONG_READ_DELAY)
    stream = stream_of(queue, other)
    events: list[Event] = []
    for target in (queue, other):
        bridge.run(store.messages.append(target, [new_message(partition=number) for number in range(1, 201)]))
        events += stream.read()
        while stream.stream.more:
            events += stream.read()
    assert len({place_of(event) for event in events}) == len(events)
    assert len(stream.stream._early_cursor.marks) <= MAX_EARLY_PARTITIONS
    assert stream.read() == []


@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_each_once_early_and_once_in_its_place(
    store: Store, backend: Backend, stream_of: Callable[..., Early], seed: int
) -> None:
    """While queues fill up, the regular events are all messages in order, and the early ones some of them."""
    rng = random.Random(seed)
    delay = 0.2
    queues = [make_queue(store, partitions=rng.choice([1, 3]), read_delay=delay) for _ in range(rng.choice([1, 3]))]
    stream = stream_of(*queues, limit=rng.choice([2, 100]), page_bytes=rng.choice([600, 1 << 20]))
    stored: list[tuple[str, int, Position]] = []
    events: list[Event] = []
    for _ in range(10 if backend.name == "cassandra" else 30):
        queue = rng.choice(queues)
        items = [new_message("x" * rng.randrange(200), partition=rng.randint(1, queue.partitions)) for _ in range(3)]
        positions = bridge.run(store.messages.append(queue, items))
        stored += [(queue.name, item.partition, at) for item, at in zip(items, positions, strict=True)]
        stream.waiter.wake(queue.qid)
        events += stream.read(short=rng.random() < 0.8)

    def all_came() -> bool:
        stream.waiter.wake(None)
        events.extend(stream.read())
        return sum(not event.early for event in events) == len(stored)

    assert eventually(all_came)
    early = [place_of(event) for event in events if event.early]
    assert early
    assert len(set(early)) == len(early)
    assert set(early) <= set(stored)
    in_place = [place_of(event) for event in events if not event.early]
    assert sorted(in_place) == sorted(stored)
    for name, number in {place[:2] for place in in_place}:
        mine = [at for *place, at in in_place if tuple(place) == (name, number)]
        assert mine == sorted(mine)


@pytest.mark.parametrize("whose", ["same store", "other store"])
def test_told_twice(store: Store, other: Store, whose: str) -> None:
    """An early reader is woken when a message is stored, and again when the read delay is over."""
    writer = store if whose == "same store" else other
    queue = make_queue(store, read_delay=0.4)
    watcher = Watcher(store, queue, early=True)
    append_bodies(writer, queue, "x")
    messages: list[Message] = []

    def early() -> bool:
        [page] = bridge.run(store.messages.read(queue, [Slice(1, keeps_read_delay=False, early=True)]))
        return bool(page.messages)

    def in_its_place() -> bool:
        [page] = bridge.run(store.messages.read(queue, [Slice(1)]))
        messages[:] = page.messages
        return bool(messages)

    assert watcher.wait_until(early)
    assert watcher.wait_until(in_its_place)
    assert bodies(messages) == ["x"]
    watcher.stop()
