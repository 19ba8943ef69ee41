"""The counts of a backlog, which a page adds up, are of one moment, although they take several reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from queuey.service import Service
from queuey.storage import Messages, Store, bridge
from tests.backends import Clock
from tests.contract.samples import append_bodies, make_queue, new_message
from tests.interposed_store import InterposedStore


def call_at(turn: int, call: Callable[[], object]) -> Callable[[], None]:
    """Returns a function that makes a call the ``turn``-th time that it is called."""
    numbers = count(1)

    def act() -> None:
        if next(numbers) == turn:
            call()

    return act


@pytest.mark.parametrize("event", ["the delay ends", "a post", "a delayed post", "a delete"])
def test_a_message_is_waiting_or_delayed(store: Store, clock: Clock, event: str) -> None:
    """Whatever happens between the reads of a backlog, each message counts as waiting or as delayed, once."""
    queue = make_queue(store, partitions=2)
    between = InterposedStore(store)
    service = Service(between.store)
    access = service.enter(queue, lambda _: None)
    old, _ = append_bodies(store, queue, "waits", "waits", partition=2)
    events: dict[str, Callable[[], object]] = {
        "the delay ends": lambda: clock.advance(60),
        "a post": lambda: append_bodies(store, queue, "new"),
        "a delayed post": lambda: bridge.run(store.messages.append(queue, [new_message("new", delay=90)])),
        "a delete": lambda: bridge.run(store.messages.delete(queue, [(2, old)])),
    }
    for turn in range(1, 9):
        append_bodies(store, queue, "waits")
        [delayed] = bridge.run(store.messages.append(queue, [new_message("later", delay=50)]))
        before = service.claims.backlog(access, 100)
        between.before(Messages.read, call_at(turn, events[event]))
        counted = service.claims.backlog(access, 100)
        between.restore(Messages.read)
        after = service.claims.backlog(access, 100)
        for low, value, high in (
            [each.waiting + each.delayed for each in (before, counted, after)],
            [each.delayed for each in (before, counted, after)],
        ):
            assert min(low, high) <= value <= max(low, high)
        bridge.run(store.messages.delete(queue, [(1, delayed)]))
        clock.advance(200)
