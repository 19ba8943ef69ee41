"""Reads that do not wait for the read delay."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from msgspec import structs

from queuey.messages import Page, Queue, Slice
from queuey.storage import Store
from tests.backends import Clock
from tests.contract.samples import bodies, eventually, make_queue, new, read_one, say, whole

AHEAD = structs.replace(whole(), ahead=True)


def test_delayed_messages_are_hidden_until_due(store: Store, other: Store, clock: Clock) -> None:
    """What is due later is not shown, and is shown when it is due, though nobody writes in between."""
    queue = make_queue(store)
    store.append(queue, [new("now"), new("late", delay=10.0)])
    clock.advance(1)
    for one in (store, other):
        assert bodies(read_one(one, queue, AHEAD).messages) == ["now"]
    clock.advance(8)
    assert bodies(read_one(other, queue, AHEAD).messages) == ["now"]
    clock.advance(2)
    for one in (store, other):
        assert bodies(read_one(one, queue, AHEAD).messages) == ["now", "late"]


def begun_read(store: Store, queue: Queue, part: Slice) -> Page | None:
    """What a read that holds no thread gives; None if the store would have to wait."""
    found: Future[Page] = Future()

    def done(page: Page | None, error: Exception | None) -> None:
        if page is None:
            found.set_exception(error or AssertionError("neither a page nor an error"))
        else:
            found.set_result(page)

    return found.result(60) if store.begin_read(queue, part, done) else None


def test_without_a_thread(store: Store) -> None:
    """A busy queue is read ahead without a thread."""
    queue = make_queue(store, read_delay=None)
    say(store, queue, "x")
    shown: list[Page] = []

    def reads() -> bool:
        read_one(store, queue, AHEAD)  # What has to be waited for is in memory after that.
        page = begun_read(store, queue, AHEAD)
        shown.extend([page] if page else [])
        return page is not None

    assert eventually(reads)
    assert bodies(shown[0].messages) == ["x"]


def test_only_ids(store: Store) -> None:
    """Messages that are read for their ids are the same ones, with the same ends and the same pages."""
    queue = make_queue(store, read_delay=None)
    say(store, queue, *(f"{number}" for number in range(7)))
    say(store, queue, "short-lived", ttl=60)

    def begun_and_compared(part: Slice) -> bool:
        page, bare = read_one(store, queue, part), read_one(store, queue, structs.replace(part, bodies=False))
        begun = begun_read(store, queue, structs.replace(part, bodies=False))
        if begun is None:
            return False
        for one in (bare, begun):
            assert one.more == page.more
            assert one.next == page.next or not page.more
            assert [(each.position, each.expires) for each in one.messages] == [
                (each.position, each.expires) for each in page.messages
            ]
        return True

    for part in (AHEAD, structs.replace(AHEAD, limit=3), structs.replace(AHEAD, limit=3, descending=True)):
        assert eventually(partial(begun_and_compared, part))
