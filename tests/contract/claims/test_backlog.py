"""The counts of a backlog, which a page adds up, are of one moment, although they take several reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from queuey.app.service import Service
from queuey.storage import Ledger, Messages, Store, bridge
from tests.backends import Clock
from tests.contract.samples import append_bodies, make_queue, new_message
from tests.interposed_store import InterposedStore

READS: tuple[Callable[..., Any], ...] = (Messages.read, Messages.lag, Ledger.ids_ahead)
"""What a backlog reads, one after the other."""


def call_at(turn: int, call: Callable[[], object]) -> Callable[[], None]:
    """Returns a function that makes a call the ``turn``-th time that it is called."""
    numbers = count(1)

    def act() -> None:
        if next(numbers) == turn:
            call()

    return act


@pytest.mark.parametrize("limit", [2, 100])
@pytest.mark.parametrize("event", ["the delay ends", "a post", "a delayed post", "a delete"])
def test_a_message_is_waiting_or_delayed(store: Store, clock: Clock, event: str, limit: int) -> None:
    """Whatever happens between the reads of a backlog, each message counts as waiting or as delayed, once."""
    queue = make_queue(store, partitions=2)
    between = InterposedStore(store)
    service = Service(between.store)
    access = service.queues.access_unchecked(queue)
    old, _ = append_bodies(store, queue, "waits", "waits", partition=2)
    events: dict[str, Callable[[], object]] = {
        "the delay ends": lambda: clock.advance(60),
        "a post": lambda: append_bodies(store, queue, "new"),
        "a delayed post": lambda: bridge.run(store.messages.append(queue, [new_message("new", delay=90)])),
        "a delete": lambda: bridge.run(store.messages.delete(queue, [(2, old)])),
    }
    for turn in range(1, 11):
        append_bodies(store, queue, "waits")
        [delayed] = bridge.run(store.messages.append(queue, [new_message("later", delay=50)]))
        before = service.core.run(service.claims.overview.backlog(access, limit))
        act = call_at(turn, events[event])
        for method in READS:
            between.before(method, act)
        counted = service.core.run(service.claims.overview.backlog(access, limit))
        for method in READS:
            between.restore(method)
        after = service.core.run(service.claims.overview.backlog(access, limit))
        for low, value, high in (
            [each.waiting + each.delayed for each in (before, counted, after)],
            [each.delayed for each in (before, counted, after)],
        ):
            assert min(low, high) <= value <= max(low, high)
        bridge.run(store.messages.delete(queue, [(1, delayed)]))
        clock.advance(200)


def test_ids_ahead_of_the_time(store: Store, clock: Clock) -> None:
    """A message counts once although its id is ahead of a clock that stands still, or was set back."""
    queue = make_queue(store)
    service = Service(store)
    access = service.queues.access_unchecked(queue)
    for posted, seconds in enumerate((0, 0, -30), 1):
        clock.advance(seconds)
        append_bodies(store, queue, "now")
        bridge.run(store.messages.append(queue, [new_message("later", delay=90)]))
        counted = service.core.run(service.claims.overview.backlog(access, 100))
        assert (counted.waiting, counted.delayed) == (posted, posted)
        assert service.core.run(service.claims.overview.size(access, 100)).size == posted
