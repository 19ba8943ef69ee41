"""Dead letters in queues that also hold other messages: none overwrites another message, and each is stored once."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import Backlog
from queuey.app.service import Service
from queuey.claims.claims import ClaimUseCases
from queuey.claims.expiry_records import KIND
from queuey.claims.log.follow_ups import OVERDUE_SECONDS
from queuey.model import ids
from queuey.model.deadletters import HEADER_PREFIX
from queuey.model.errors import StoreUnavailable
from queuey.model.messages import NewMessage, PostKey, PostResult, Queue, QueueSpec
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.metrics import Metrics
from queuey.storage import Catalogue, ClaimLogs, KeyedPosts, Messages, Records, Store, bridge
from tests.backends import APP, Clock
from tests.blocking import blocking
from tests.contract.samples import (
    append_bodies,
    count_outbox,
    dead_letters,
    eventually,
    fresh_name,
    idle_service,
    make_queue,
    messages_in_partition,
    new_message,
)
from tests.interposed_store import InterposedStore, Killed
from tests.replacing import replace_in


def test_letters_that_share_a_partition_are_there_once(store: Store, other: Store, clock: Clock) -> None:
    """Two letters of one id stay beside the message that had it; letters whose post got no answer are not repeated."""
    shared = make_queue(store)
    queue = make_queue(store, partitions=2, max_deliveries=1, dead_letter=shared.name)
    [place] = append_bodies(store, shared, "wages")
    bridge.run(store.messages.put(queue, [(1, place)], new_message("one")))
    bridge.run(store.messages.put(queue, [(2, place)], new_message("two")))
    doubted = InterposedStore(store)

    def append_once(target: Queue, items: list[NewMessage], key: PostKey, **named: Any) -> PostResult:  # noqa: ANN401 - as the store's
        bridge.run(store.keyed_posts.append_once(target, items, key, **named))
        raise StoreUnavailable("no answer", outcome="unknown")

    doubted.instead(KeyedPosts.append_once, append_once)
    service = Service(doubted.store)
    access = service.queues.access_unchecked(queue)
    claimed = [
        *blocking(service.claims).claim(access, limit=1, ttl=10),
        *blocking(service.claims).claim(access, limit=1, ttl=10),
    ]
    assert sorted(delivery.message.body for delivery in claimed) == ["one", "two"]
    clock.advance(100)
    assert blocking(service.claims).claim(access, limit=9, ttl=10) == []
    assert eventually(lambda: len(messages_in_partition(store, shared)) == 3)
    core = Core()
    late = ClaimUseCases(other, Limits(), Metrics(), core=core)
    there = QueueAccess(other, queue)
    began = core.boottime()
    with replace_in(Core, Core.boottime, lambda: began):
        assert count_outbox(late, there) == {1: 1, 2: 1}
    with replace_in(Core, Core.boottime, lambda: began + OVERDUE_SECONDS):
        assert blocking(late).claim(there, limit=9, ttl=10) == []
        assert eventually(lambda: not any(count_outbox(late, there).values()))
    assert messages_in_partition(store, shared)[0].body == "wages"
    said = [
        (one.body, dict(one.meta.headers)[f"{HEADER_PREFIX}partition"])
        for one in messages_in_partition(store, shared)[1:]
        if one.meta
    ]
    assert sorted(said) == [("one", "1"), ("two", "2")]
    assert bridge.run(store.catalogue.queue(APP, shared.name, fresh=True)).partitions == 1


class Process:
    """A process of the service; the test takes the steps of its records.

    Attributes:
        calls: Names of the calls of the store that it has made since :meth:`kill_at`.
    """

    def __init__(self, store: Store) -> None:
        self.between = InterposedStore(store)
        self.service = idle_service(self.between.store)
        assert self.service.claims.expiry is not None
        self.records = self.service.claims.expiry
        self.calls: list[str] = []

    def kill_at(self, number: int, *, after: bool) -> None:
        """Stops this process before or after its call of this number; no later call does anything."""
        self.calls = self.between.kill_at(number, KILL_POINTS, after=after)

    def claim(self, queue: Queue) -> list[str | bytes]:
        access = self.service.queues.access_unchecked(queue)
        return [claim.message.body for claim in blocking(self.service.claims).claim(access, limit=9, ttl=10)]

    def backlog(self, queue: Queue) -> Backlog:
        return self.service.core.run(
            self.service.claims.overview.backlog(self.service.queues.access_unchecked(queue), 100)
        )

    def take_steps(self) -> None:
        """Takes the steps of all records. They are due, or would be if clocks could differ less."""
        for due in bridge.run(self.between.store.records.due_records(KIND, ids.TICKS_MAX)):
            record = bridge.run(self.between.store.records.record(KIND, due.application, due.name))
            assert record is not None
            self.service.core.run(self.records.step(record))


OUTBOX_SECONDS = 15
"""Max seconds until a record of dead letters is due."""
KILL_POINTS = (Records.record, Records.set_record, ClaimLogs.append_entry, Messages.put, Catalogue.create_queue)
MAX_CALLS = 9
"""More calls than a claim makes that turns three messages into dead letters."""


def start_with_failed(store: Store, clock: Clock, options: QueueSpec) -> tuple[Process, Queue]:
    """Returns a process, and a queue with three messages whose last delivery has ended."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), options))
    append_bodies(store, queue, "a", "b", "c")
    process = Process(store)
    assert process.claim(queue) == ["a", "b", "c"]
    clock.advance(60)
    return process, queue


@pytest.mark.slow_on("cassandra", "simulated")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, MAX_CALLS + 1))
def test_killed_while_it_makes_letters(store: Store, other: Store, clock: Clock, number: int, *, after: bool) -> None:
    """Wherever a process stops, another one finds its dead letters, without a request, and stores each once.

    Until then they count as dead.
    """
    process, queue = start_with_failed(store, clock, QueueSpec(max_deliveries=1, read_delay=0.0))
    process.kill_at(number, after=after)
    with suppress(Killed, StoreUnavailable):
        process.claim(queue)
    assert eventually(lambda: len(process.calls) >= number or not count_unpublished(other, queue))
    are_made = bool(count_unpublished(other, queue) or letters_of(other, queue))
    backlog = Process(other).backlog(queue)
    assert backlog.dead >= 3 * are_made
    assert backlog.publishing == count_unpublished(other, queue)
    clock.advance(OUTBOX_SECONDS)
    if store.clock_difference < OUTBOX_SECONDS:
        assert bridge.run(store.records.due_records(KIND, clock.ticks)) or not count_unpublished(other, queue)
    survivor = Process(other)
    survivor.take_steps()
    if not are_made:
        assert letters_of(other, queue) == []
        assert survivor.claim(queue) == []
    assert eventually(lambda: not count_unpublished(other, queue))
    assert letters_of(other, queue) == ["a", "b", "c"]
    assert survivor.backlog(queue).publishing == 0
    clock.advance(OUTBOX_SECONDS)
    survivor.take_steps()
    if store.clock_difference < OUTBOX_SECONDS:
        assert bridge.run(store.records.records(KIND, APP)) == []


def test_letters_that_cannot_be_stored_for_a_time(store: Store, clock: Clock) -> None:
    """Dead letters that the store refused are stored by a step, without a request; the record stays until then."""
    process, queue = start_with_failed(store, clock, QueueSpec(max_deliveries=1, read_delay=0.0))
    refused = threading.Event()

    def refuse(*_: object, **__: object) -> object:
        refused.set()
        raise StoreUnavailable("away")

    process.between.instead(Messages.put, refuse)
    assert process.claim(queue) == []
    assert refused.wait(60)
    clock.advance(OUTBOX_SECONDS)
    process.take_steps()
    assert letters_of(store, queue) == []
    process.between.restore(Messages.put)
    Process(store).take_steps()
    assert eventually(lambda: letters_of(store, queue) == ["a", "b", "c"])


def test_all_kill_points_were_tried(store: Store, clock: Clock) -> None:
    """The kills above include the last call that such a claim makes."""
    process, queue = start_with_failed(store, clock, QueueSpec(max_deliveries=1, read_delay=0.0))
    process.kill_at(MAX_CALLS + 1, after=False)
    assert process.claim(queue) == []
    assert eventually(lambda: not count_unpublished(store, queue))
    assert process.calls[:3] == ["record", "set_record", "append_entry"]
    assert len(process.calls) <= MAX_CALLS


def count_unpublished(store: Store, queue: Queue) -> int:
    core = Core()
    claims = ClaimUseCases(store, Limits(), Metrics(), core=core)
    return sum(count_outbox(claims, QueueAccess(store, queue)).values())


def letters_of(store: Store, queue: Queue) -> list[str | bytes]:
    return [message.body for message in dead_letters(store, queue)]
