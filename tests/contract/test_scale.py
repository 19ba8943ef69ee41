"""Large numbers of queues and messages work like small ones. Benchmarks measure their cost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import QueueSpec, Slice
from queuey.storage import Store, bridge
from tests.backends import APP, Clock
from tests.contract.samples import append_bodies, bodies, call_concurrently, new_message, positions, read_one, run_call

pytestmark = pytest.mark.slow

T = TypeVar("T")


def retry(call: Callable[[], T], *, again: bool = False) -> T:
    """Retries a call that the store had no time for, as callers do: the machine may be busy.

    Args:
        call: The call to try.
        again: Whether it may also be retried when it may have been done.
    """
    while True:
        try:
            return call()
        except StoreUnavailable as error:
            if error.outcome != "none" and not again:
                raise


def make_many(store: Store, numbers: range) -> None:
    def create(first: int) -> None:
        for number in numbers[first::32]:
            name = f"queue {number:07d}"
            retry(partial(run_call, store.catalogue.create_queue, APP, name, QueueSpec(read_delay=0.0)), again=True)

    call_concurrently(create, range(32))


@pytest.mark.parametrize(
    "count", [1_000, 20_000, pytest.param(1_000_000, marks=pytest.mark.needs("creates_by_thousands"))]
)
def test_many_queues(store: Store, other: Store, count: int) -> None:
    """Any page of a long list is right, idle queues are empty, and one in use does not show in the others."""
    make_many(store, range(count))
    for start in (0, count // 2, count - 10):
        page = retry(partial(run_call, other.catalogue.list_queues, APP, start=f"queue {start:07d}", limit=10))
        assert [queue.name for queue in page] == [f"queue {start + n:07d}" for n in range(10)]
    used = bridge.run(store.catalogue.queue(APP, f"queue {count // 2:07d}"))
    append_bodies(store, used, "a", "b")
    for number in range(0, count, count // 100):
        queue = retry(partial(run_call, other.catalogue.queue, APP, f"queue {number:07d}"))
        shown = retry(partial(read_one, other, queue, Slice(partition=1))).messages
        assert bodies(shown) == (["a", "b"] if queue.uid == used.uid else [])
    name, seen = "", 0
    while True:
        page = retry(partial(run_call, store.catalogue.list_queues, APP, start=name, limit=1001))
        seen += len(page[:1000])
        if len(page) <= 1000:
            break
        name = page[1000].name
    assert seen == count


def test_many_messages(store: Store) -> None:
    """The first, middle and last messages of a partition with half a million messages are in order."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "large", QueueSpec(read_delay=0.0)))
    positions = []
    for n in range(500):
        positions += retry(partial(append_bodies, store, queue, *[str(n * 1000 + m) for m in range(1000)]))
    for start in (0, 250_000, 499_900):
        page = retry(partial(read_one, store, queue, Slice(partition=1, lower=positions[start], limit=100)))
        assert bodies(page.messages) == [str(start + n) for n in range(100)]
        before = Slice(partition=1, upper=positions[start], limit=100, descending=True)
        down = retry(partial(read_one, store, queue, before))
        assert bodies(down.messages) == [str(start - 1 - n) for n in range(min(start, 100))]
    _, (info,) = retry(partial(run_call, store.messages.inspect, queue))
    assert (info.oldest, info.newest) == (positions[0], positions[-1])
    assert 450_000 <= info.count <= 550_000


@pytest.mark.needs("clock")
def test_expiry_of_many(store: Store, clock: Clock) -> None:
    """When a quarter of a million messages have expired, the few live ones are found at once."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, "large", QueueSpec(read_delay=0.0)))
    for _ in range(250):
        retry(partial(append_bodies, store, queue, *["short"] * 1000, ttl=60), again=True)
        clock.advance(0.2)
    bridge.run(store.messages.put(queue, [(1, (ids.EPOCH_TICKS, 0))], new_message("old id", ttl=1000)))
    clock.advance(100)
    (last,) = append_bodies(store, queue, "long", ttl=1000)
    page = retry(partial(read_one, store, queue, Slice(partition=1, limit=10)))
    assert bodies(page.messages) == ["old id", "long"]
    assert positions(page.messages)[1] == last
    assert bridge.run(store.messages.inspect(queue))[1][0].count == 2
