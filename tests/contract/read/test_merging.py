"""A page merged over many partitions by time costs about as much as a page of one partition, and has its size."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from queuey.app.service import Service
from queuey.messages.ranges import RangeAnswer, RangeRequest, make_mark
from queuey.model.messages import Message, Page, Queue, Slice, bytes_of
from queuey.runtime.limits import Limits
from queuey.storage import Messages, Store, bridge
from tests.contract.samples import make_queue, new_message
from tests.interposed_store import InterposedStore

LIMITS = Limits(page_bytes=1 << 20, max_body=1 << 15)
"""An eighth of the usual limit, as are the lengths of the bodies."""
PARTITIONS = [8, 200]


class Counted(InterposedStore):
    """Records the slices of all reads and the messages that they returned, without those of empty bodies."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.pages: list[list[Message]] = []
        self.asked: list[Sequence[Slice]] = []
        self.instead(Messages.read, self._read)

    def _read(self, queue: Queue, parts: Sequence[Slice]) -> list[Page]:
        pages = bridge.run(self.real.messages.read(queue, parts))
        self.asked.append(parts)
        self.pages.append([message for page in pages for message in page.messages if message.body])
        return pages

    @property
    def bytes(self) -> int:
        return sum(bytes_of(messages) for messages in self.pages)


def fill(store: Store, partitions: int, bodies: Sequence[str], seed: int = 1, name: str = "q") -> Queue:
    queue = make_queue(store, name, partitions=partitions)
    chance = random.Random(seed)
    for start in range(0, len(bodies), 200):
        items = [new_message(body, partition=chance.randint(1, partitions)) for body in bodies[start : start + 200]]
        bridge.run(store.messages.append(queue, items))
    return queue


def read(store: Store, queue: Queue, **wanted: object) -> RangeAnswer:
    service = Service(store, limits=LIMITS)
    reach = RangeRequest(**{"partitions": None, "limit": 1000, "keeps_read_delay": False, "merge": True, **wanted})  # type: ignore[arg-type]
    return bridge.run(service.reader.read(service.queues.access_unchecked(queue), reach))


def read_and_sort(queue: Queue, store: Store, *, descending: bool) -> list[Message]:
    numbers = range(1, queue.partitions + 1)
    slices = [Slice(n, limit=10_000, max_bytes=1 << 30, keeps_read_delay=False) for n in numbers]
    pages = bridge.run(store.messages.read(queue, slices))
    messages = [message for page in pages for message in page.messages]
    return sorted(messages, key=lambda one: (one.position, one.partition), reverse=descending)


@pytest.mark.slow_on("cassandra")
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("partitions", "length"), [(8, 60), (200, 7_500), (8, 32_000)])
def test_a_merged_page_reads_what_a_plain_one_reads(
    store: Store,
    partitions: int,
    length: int,
    descending: bool,  # noqa: FBT001
) -> None:
    """A merged page reads at most half as many bytes more than a plain one, for any partitions and body lengths."""
    bodies = ["x" * length] * min(2000, 3 * (1 << 20) // length)
    plain, queue = fill(store, 1, bodies, name="plain"), fill(store, partitions, bodies)
    expected = read_and_sort(queue, store, descending=descending)
    counted = [Counted(store), Counted(store)]
    before = read(counted[0].store, plain, descending=descending)
    page = read(counted[1].store, queue, descending=descending)
    assert page.messages == expected[: len(page.messages)]
    assert bytes_of(page.messages) >= 0.7 * bytes_of(before.messages)
    assert counted[1].bytes <= 1.5 * counted[0].bytes
    assert len(counted[1].asked) <= 8
    assert sum(map(len, counted[1].asked)) <= 4 * partitions + 40


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("partitions", PARTITIONS)
def test_pages_of_any_lengths_follow_each_other(store: Store, partitions: int, descending: bool) -> None:  # noqa: FBT001
    """A chain of pages gives each message once, in order; none reads much more than a page may have."""
    chance = random.Random(partitions)
    bodies = ["x" * chance.choice([1, 1, 1, 100, 5000, 32_000]) for _ in range(400)]
    bodies += ["y"] * 300 + ["z" * 32_000] * 60
    queue = fill(store, partitions, bodies)
    messages: list[Message] = []
    cursor: dict[int, object] | None = None
    for _ in range(60):
        counted = Counted(store)
        since = {} if cursor is None else {"since": cursor}
        page = read(counted.store, queue, descending=descending, **since)
        assert counted.bytes <= 1.75 * LIMITS.page_bytes
        assert bytes_of(page.messages[:-1]) < LIMITS.page_bytes
        assert page.messages
        messages += page.messages
        cursor = {number: make_mark(at) for number, at in page.next.items() if at is not None}
        if not page.more:
            break
    assert messages == read_and_sort(queue, store, descending=descending)


def test_a_message_that_goes_meanwhile_ends_nothing(store: Store) -> None:
    """A message deleted between the read of ids and that of bodies is left out, and the page goes on."""
    queue = fill(store, 30, ["x" * 7_500] * 60)
    expected = read_and_sort(queue, store, descending=False)
    gone = expected[3]
    between = Counted(store)
    first: list[bool] = []

    def delete(queue: Queue, parts: Sequence[Slice]) -> list[Page]:
        if first and parts[0].bodies:
            bridge.run(store.messages.delete(queue, [(gone.partition, gone.position)]))
        first.append(True)
        return bridge.run(store.messages.read(queue, parts))

    between.instead(Messages.read, delete)
    page = read(between.store, queue, limit=40)
    assert page.messages == [one for one in expected if one is not gone][: len(page.messages)]
    assert len(page.messages) >= 39


def test_a_message_that_a_second_replica_does_not_have_yet_is_not_passed(store: Store) -> None:
    """At the level weak a missing body ends the page before it, and the cursor does not pass it."""
    queue = make_queue(store, partitions=30, consistency="weak")
    bridge.run(store.messages.append(queue, [new_message("x", partition=1 + number % 30) for number in range(60)]))
    expected = read_and_sort(queue, store, descending=False)
    behind = Counted(store)

    def stale(queue: Queue, parts: Sequence[Slice]) -> list[Page]:
        pages = bridge.run(store.messages.read(queue, parts))
        for part, page in zip(parts, pages, strict=True):
            if part.bodies:
                page.messages = [message for message in page.messages if message.position != expected[3].position]
        return pages

    behind.instead(Messages.read, stale)
    page = read(behind.store, queue, limit=40)
    assert page.messages == expected[:3]
    assert page.more
    assert page.next[expected[3].partition] == expected[3].position
