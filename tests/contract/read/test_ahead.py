"""Reads that do not wait for the read delay."""

from __future__ import annotations

from concurrent.futures import Future

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
