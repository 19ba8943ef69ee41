"""Named messages as use cases, by two processes over one store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from queuey.access.queue_access import QueueAccess
from queuey.app.service import Service
from queuey.claims.rules.receipts import ReceiptStatus
from queuey.messages import names as names_module
from queuey.messages.names import TURN_TIMEOUT
from queuey.messages.posts import Draft
from queuey.model.errors import NameChanged, NameTaken, StoreBusy
from queuey.model.ids import Position
from queuey.model.messages import MAX_NAME_LENGTH, Named, Queue, QueueSpec
from queuey.runtime.limits import Limits
from queuey.storage import Names, Store, bridge
from tests.backends import Clock
from tests.blocking import BlockingNames, adopt_own_loop, blocking
from tests.contract.samples import bodies_in_partition, eventually, fill_queue, make_queue, new_message
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in

LONG = 60.0
"""Timeout for events that must happen, in seconds."""


def enter(store: Store, queue: Queue) -> tuple[Service, QueueAccess, BlockingNames]:
    service = Service(store)
    return service, service.queues.access_unchecked(queue), BlockingNames(service)


def body_of(names: BlockingNames, access: QueueAccess, name: str = "n") -> str | bytes | None:
    message = names.fetch(access, name)
    return None if message is None else message.body


def claimed_bodies(service: Service, access: QueueAccess) -> list[str | bytes]:
    return sorted((one.message.body for one in blocking(service.claims).claim(access, limit=9, ttl=60)), key=str)


def test_created_once(store: Store, other: Store) -> None:
    """A message is stored once under a name, by any process; a different one is refused until the first is done."""
    queue = make_queue(store, partitions=4)
    (service, access, names), (_, peer_access, elsewhere) = enter(store, queue), enter(other, queue)
    first = names.create(access, "n", Draft("a"))
    assert first.stored
    again = elsewhere.create(peer_access, "n", Draft("a"))
    assert (again.location, again.stored) == (first.location, False)
    with pytest.raises(NameTaken):
        elsewhere.create(peer_access, "n", Draft("b"))
    assert body_of(elsewhere, peer_access) == "a"
    assert claimed_bodies(service, access) == ["a"]
    assert claimed_bodies(service, access) == []


def test_merged_into_a_job(store: Store, other: Store, clock: Clock) -> None:
    """The answer to an equal message has the status of the job that has the name: whether it will still run."""
    queue = make_queue(store, partitions=2)
    (service, access, names), (_, peer_access, elsewhere) = enter(store, queue), enter(other, queue)
    claims = blocking(service.claims)

    def create() -> str | None:
        """Creates the message in the other process; it is stored if no job is named."""
        made = elsewhere.create(peer_access, "n", Draft("a"))
        assert made.stored == (made.merged is None)
        return made.merged

    assert [create() for _ in range(2)] == [None, "waiting"]
    clock.advance(10)  # The read delay of the other process's message is over.
    [held] = claims.claim(access, limit=9, ttl=60)
    assert create() == "claimed"
    claims.release(access, [held.receipt], 50.0)
    assert create() == "retrying"
    clock.advance(60)
    assert create() == "waiting"
    [held] = claims.claim(access, limit=9, ttl=60)
    clock.advance(120)
    assert create() == "waiting"
    [held] = claims.claim(access, limit=9, ttl=60)
    claims.acknowledge(access, [held.receipt])
    assert [create(), create()] == [None, "waiting"]
    assert names.replace(access, "n", Draft("a")).merged is None


def test_newest_value_wins(store: Store, other: Store) -> None:
    """A newer value replaces the previous one, for readers by name, by time and for claims."""
    queue = fill_queue(store, "unnamed")
    (_, access, names), (peer, peer_access, elsewhere) = enter(store, queue), enter(other, queue)
    for number, (way, those) in enumerate([(access, names), (peer_access, elsewhere), (access, names)]):
        assert those.replace(way, "n", Draft(f"v{number}")).stored
        assert body_of(elsewhere, peer_access) == f"v{number}"
        assert eventually(lambda number=number: bodies_in_partition(store, queue) == ["unnamed", f"v{number}"])  # type: ignore[misc]
    assert claimed_bodies(peer, peer_access) == ["unnamed", "v2"]


@pytest.mark.parametrize("delete", [False, True])
def test_holder_of_the_old_value(store: Store, other: Store, delete: bool) -> None:  # noqa: FBT001 - parametrized
    """A worker whose value was replaced or deleted is told so when it acknowledges, renews or releases it."""
    queue = make_queue(store)
    (own_service, access, names), (peer, peer_access, elsewhere) = enter(store, queue), enter(other, queue)
    names.create(access, "n", Draft("old"))
    [held] = blocking(peer.claims).claim(peer_access, limit=9, ttl=60)
    if delete:
        elsewhere.delete(peer_access, "n")
        assert body_of(names, access) is None
    else:
        names.replace(access, "n", Draft("new"))
    for service, way in ((own_service, access), (peer, peer_access)):
        receipts = [held.receipt]
        settled = blocking(service.claims).acknowledge(way, receipts) + blocking(service.claims).renew(
            way, receipts, 60
        )
        settled += blocking(service.claims).release(way, receipts)
        assert [settlement.status for settlement in settled] == [ReceiptStatus.SUPERSEDED] * 3
    assert claimed_bodies(peer, peer_access) == ([] if delete else ["new"])


def test_acknowledged(store: Store, other: Store) -> None:
    """A name is free once its message was acknowledged; acknowledging again gives the same answer."""
    queue = make_queue(store)
    (one, access, names), (peer, there, elsewhere) = enter(store, queue), enter(other, queue)
    names.create(access, "n", Draft("a"))
    [held] = blocking(one.claims).claim(access, limit=9, ttl=60)
    [settled] = blocking(one.claims).acknowledge(access, [held.receipt])
    assert settled.status is ReceiptStatus.ACCEPTED
    assert body_of(elsewhere, there) is None
    assert elsewhere.create(there, "n", Draft("b")).stored
    assert [each.status for each in blocking(peer.claims).acknowledge(there, [held.receipt])] == [ReceiptStatus.FINAL]
    assert body_of(names, access) == "b"
    assert eventually(lambda: bodies_in_partition(store, queue) == ["b"])


def test_free_in_other_ways(store: Store) -> None:
    """A name is also free once its message was deleted by id or by name, or the queue was purged."""
    queue = make_queue(store)
    service, access, names = enter(store, queue)
    created = names.create(access, "n", Draft("a"))
    assert created.location is not None
    bridge.run(store.messages.delete(queue, [created.location]))
    assert body_of(names, access) is None
    assert names.create(access, "n", Draft("b")).stored
    for _ in range(2):
        names.delete(access, "n")
        assert names.create(access, "n", Draft("b")).stored
    bridge.run(store.catalogue.purge_queue(queue))
    access = service.queues.access_unchecked(
        bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
    )
    assert body_of(names, access) is None
    assert names.create(access, "n", Draft("b")).stored
    names.delete(access, "never used")


@pytest.mark.needs("clock")
def test_free_when_it_has_ended(store: Store, clock: Clock) -> None:
    """A name is free once its message has expired, or has become a dead letter."""
    queue = make_queue(store, max_deliveries=1)
    service, access, names = enter(store, queue)
    names.create(access, "n", Draft("a", ttl=60))
    clock.advance(61)
    assert body_of(names, access) is None
    assert names.create(access, "n", Draft("b")).stored
    assert claimed_bodies(service, access) == ["b"]
    clock.advance(120)
    assert claimed_bodies(service, access) == []
    assert body_of(names, access) is None
    assert names.create(access, "n", Draft("c")).stored


def test_any_name(store: Store) -> None:
    """Names are compared character by character, within one queue."""
    queues = [make_queue(store, partitions=3) for _ in range(2)]
    texts = ["a", "A", "é", "e\u0301", " ", "a b", "100%", "👾" * MAX_NAME_LENGTH, "x" * MAX_NAME_LENGTH, "\x00", "'"]
    for queue in queues:
        _, access, names = enter(store, queue)
        for text in texts:
            assert names.create(access, text, Draft(f"{queue.name} {text!r}")).stored
        for text in texts:
            assert body_of(names, access, text) == f"{queue.name} {text!r}"


def test_broken_off(store: Store, other: Store) -> None:
    """If a process stops after it has written the value, the next access to the name completes the change."""
    queue = make_queue(store)
    (_, access, names), (peer, peer_access, elsewhere) = enter(store, queue), enter(other, queue)
    names.create(access, "n", Draft("old"))
    [held] = blocking(peer.claims).claim(peer_access, limit=9, ttl=60)
    seen = bridge.run(store.names.find_named(queue, "n"))
    assert seen is not None
    now = bridge.run(store.names.write_named(queue, "n", new_message("new"), b"hash", seen))
    assert now.replaced == seen.location
    assert body_of(elsewhere, peer_access) == "new"
    assert [settlement.status for settlement in blocking(peer.claims).acknowledge(peer_access, [held.receipt])] == [
        ReceiptStatus.SUPERSEDED
    ]
    settled = bridge.run(other.names.find_named(queue, "n"))
    assert settled is not None
    assert settled.replaced is None


def test_a_value_that_has_ended_is_replaced(store: Store, other: Store, clock: Clock) -> None:
    """While the row of a kept value is there, a newer value of its name replaces it, so that it is not given up."""
    queue = make_queue(store)
    first = bridge.run(store.names.write_named(queue, "n", new_message("first", ttl=10, kept=True), b"", None))
    assert first.location is not None
    clock.advance(1000)
    assert body_of(*enter(other, queue)[1:][::-1]) is None
    with pytest.raises(NameChanged):
        bridge.run(other.names.write_named(queue, "n", new_message("second"), b"", None))
    bridge.run(other.names.write_named(queue, "n", new_message("second"), b"", first))
    assert bridge.run(store.messages.fetch(queue, [first.location], kept=True)) == []


def test_outdated(store: Store, other: Store) -> None:
    """A value replaces only the version that its writer saw; otherwise nothing is stored."""
    queue = make_queue(store)
    for seen in (None, bridge.run(other.names.write_named(queue, "n", new_message("a"), b"", None))):
        if seen is not None:
            current = bridge.run(store.names.write_named(queue, "n", new_message("b"), b"", seen))
            bridge.run(store.names.settle_named(queue, "n", current))
            bridge.run(store.names.settle_named(queue, "n", seen))
            with pytest.raises(NameChanged):
                bridge.run(other.names.write_named(queue, "n", None, b"", seen))
        else:
            bridge.run(other.names.write_named(queue, "m", new_message("a"), b"", None))
        with pytest.raises(NameChanged):
            bridge.run(store.names.write_named(queue, "n" if seen else "m", new_message("c"), b"", seen))
    assert eventually(lambda: bodies_in_partition(store, queue) == ["a", "b"])


@pytest.mark.parametrize("free_only", [True, False])
@pytest.mark.parametrize("change", ["updated", "purged", "deleted"])
def test_the_queue_changes_meanwhile(store: Store, other: Store, change: str, free_only: bool) -> None:  # noqa: FBT001 - parametrized
    """A change that has stored its value goes on with the queue's new row: the value is stored once, and as told."""
    queue = make_queue(store)
    between = InterposedStore(store)
    service, access, names = enter(between.store, queue)
    adopt_own_loop(service)
    names.replace(access, "n", Draft("old"))
    blocking(service.claims).claim(access, limit=9, ttl=60)  # Its log has the row.
    written: list[Named] = []

    def write(*given: Any) -> Named:  # noqa: ANN401 - of write_named
        written.append(bridge.run(store.names.write_named(*given)))
        present = bridge.run(other.catalogue.queue(queue.application, queue.name, fresh=True))
        if change == "updated":
            bridge.run(other.catalogue.update_queue(present, QueueSpec(ttl=60 + len(written))))
        elif change == "purged":
            bridge.run(other.catalogue.purge_queue(present))
        else:
            bridge.run(other.catalogue.delete_queue(present))
        return written[-1]

    if free_only:  # The old value is done, but its name still has it.
        seen = bridge.run(store.names.find_named(queue, "n"))
        assert seen is not None
        assert seen.location is not None
        bridge.run(store.messages.delete(queue, [seen.location]))
    between.instead(Names.write_named, write)
    changed = (names.create if free_only else names.replace)(access, "n", Draft("new"))
    assert (changed.location, changed.stored, changed.merged) == (written[0].location, True, None)
    assert len(written) == 1
    if change == "updated":
        queue = bridge.run(store.catalogue.queue(queue.application, queue.name, fresh=True))
        assert eventually(lambda: bodies_in_partition(store, queue) == ["new"])
        named = bridge.run(store.names.find_named(queue, "n"))
        assert named is not None
        assert named.replaced is None


def test_all_at_once(store: Store, other: Store) -> None:
    """One of the values written simultaneously in two processes stays, and no other is delivered."""
    queue = make_queue(store)
    ways = [enter(store, queue), enter(other, queue)]

    def write(number: int) -> Position | None:
        _, access, names = ways[number % 2]
        try:
            changed = names.replace(access, "n", Draft(f"v{number}"))
        except StoreBusy:
            return None
        assert changed.location is not None
        return changed.location[1]

    with ThreadPoolExecutor(8) as pool:
        done = [position for position in pool.map(write, range(24)) if position is not None]
    assert done
    service, access, names = ways[0]
    current = names.fetch(access, "n")
    assert current is not None
    assert current.position in done
    assert eventually(lambda: bodies_in_partition(store, queue) == [current.body])
    assert claimed_bodies(service, access) == [current.body]


def test_many_who_wait(store: Store) -> None:
    """Callers that wait for concurrent changes of a name use at most half of the threads; other names need not wait."""
    held, go_on = threading.Event(), threading.Event()
    between = InterposedStore(store)

    def hold(*given: Any, **named: Any) -> Named:  # noqa: ANN401 - of write_named
        if not held.is_set():
            held.set()
            assert go_on.wait(LONG)
        return bridge.run(store.names.write_named(*given, **named))

    between.instead(Names.write_named, hold)
    service = Service(between.store, Limits(threads=5))
    access = service.queues.access_unchecked(make_queue(store))
    names = BlockingNames(service)
    with replace_in(names_module, TURN_TIMEOUT, LONG), ThreadPoolExecutor(3) as pool:
        try:
            changes = [pool.submit(names.replace, access, "n", Draft("v0"))]
            assert held.wait(LONG)
            changes += [pool.submit(names.replace, access, "n", Draft(f"v{number}")) for number in (1, 2)]
            assert eventually(lambda: bridge.run(service.statistics())["names_waiting"] == 2, LONG)
            with pytest.raises(StoreBusy, match="Too many callers") as caught:
                names.replace(access, "n", Draft("v3"))
            assert (caught.value.outcome, caught.value.retry_after) == ("none", 1)
            assert names.replace(access, "other", Draft("v")).stored
        finally:
            go_on.set()
        assert [change.result(LONG).stored for change in changes] == [True] * 3
    assert body_of(names, access) in {"v1", "v2"}
    assert names.replace(access, "n", Draft("v4")).stored
    statistics = bridge.run(service.statistics())
    assert (statistics["names_waiting"], statistics["names_refused_total"]) == (0, 1)
