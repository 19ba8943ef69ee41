"""Tests of opening and closing a store, and of what a store reports about itself."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable
from typing import get_type_hints

import pytest

from queuey.model import ids
from queuey.model.errors import StoreClosed, StoreUnavailable
from queuey.model.groups import GroupChange, GroupHead, OwnedOffset
from queuey.model.ids import Position
from queuey.model.messages import LogEntry, Message, Named, OffsetChange, PostKey, Queue, QueueSpec, Record
from queuey.storage import Store, bridge
from tests.backends import APP, BACKENDS
from tests.contract.samples import (
    append_bodies,
    begin_entry,
    begin_post,
    bodies_in_partition,
    fill_queue,
    make_queue,
    messages_in_partition,
    new_message,
    positions,
    start_append,
    whole_partition,
)
from tests.waiting import PATIENCE_SECONDS, join

DIGEST = hashlib.sha256(b"key").digest()
PLACE = (1, (77, 0))
KEY = PostKey("key", b"content", 60)
RECORD = Record("kind", APP, "name", b"value", 7)
NAMED = Named(None, b"content", None, 0.0, 1)
CALLS: dict[str, Callable[[Store, Queue], object]] = {
    "create_queue": lambda store, queue: bridge.run(store.catalogue.create_queue(APP, "another", QueueSpec())),
    "queue": lambda store, queue: bridge.run(store.catalogue.queue(APP, queue.name)),
    "queue fresh": lambda store, queue: bridge.run(store.catalogue.queue(APP, queue.name, fresh=True)),
    "update_queue": lambda store, queue: bridge.run(store.catalogue.update_queue(queue, QueueSpec(ttl=99))),
    "purge_queue": lambda store, queue: bridge.run(store.catalogue.purge_queue(queue)),
    "list_queues": lambda store, queue: bridge.run(store.catalogue.list_queues(APP)),
    "append": lambda store, queue: bridge.run(store.messages.append(queue, [new_message()])),
    "append on a loop": lambda store, queue: start_append(store, queue, [new_message()]).result(60),
    "append_once": lambda store, queue: bridge.run(store.keyed_posts.append_once(queue, [new_message()], KEY)),
    "append_once on a loop": lambda store, queue: begin_post(store, queue, [new_message()], KEY).result(60),
    "put": lambda store, queue: bridge.run(store.messages.put(queue, [PLACE], new_message())),
    "fetch": lambda store, queue: bridge.run(store.messages.fetch(queue, [PLACE])),
    "delete": lambda store, queue: bridge.run(store.messages.delete(queue, [PLACE])),
    "read": lambda store, queue: bridge.run(store.messages.read(queue, [whole_partition()])),
    "inspect": lambda store, queue: bridge.run(store.messages.inspect(queue)),
    "lag": lambda store, queue: bridge.run(store.messages.lag(queue, [(1, None)])),
    "create_application": lambda store, queue: bridge.run(store.applications.create_application("globex")),
    "application_names": lambda store, queue: bridge.run(store.applications.application_names()),
    "has_application": lambda store, queue: bridge.run(store.applications.has_application(APP)),
    "add_key": lambda store, queue: bridge.run(store.applications.add_key(APP, DIGEST)),
    "keys": lambda store, queue: bridge.run(store.applications.keys(APP)),
    "revoke_key": lambda store, queue: bridge.run(store.applications.revoke_key(APP, DIGEST.hex()[:8])),
    "expire_key": lambda store, queue: bridge.run(store.applications.expire_key(APP, DIGEST.hex()[:8], 1.0)),
    "find_key": lambda store, queue: bridge.run(store.applications.find_key(DIGEST)),
    "set_offsets": lambda store, queue: bridge.run(
        store.offsets.set_offsets(queue, "group", [OffsetChange(1, ids.LAST)])
    ),
    "group_offsets": lambda store, queue: bridge.run(store.offsets.group_offsets(queue, "group")),
    "offsets_of_queues": lambda store, queue: bridge.run(store.offsets.offsets_of_queues([queue], "group")),
    "groups": lambda store, queue: bridge.run(store.offsets.groups(queue)),
    "group_head": lambda store, queue: bridge.run(store.groups.group_head(APP, "group")),
    "group_state": lambda store, queue: bridge.run(store.groups.group_state(APP, "group")),
    "change_group": lambda store, queue: bridge.run(
        store.groups.change_group(APP, "group", 0, GroupChange(GroupHead(epoch=1), ()))
    ),
    "remove_group": lambda store, queue: bridge.run(store.groups.remove_group(APP, "group", 1)),
    "group_names": lambda store, queue: bridge.run(store.groups.group_names(APP)),
    "renew_session": lambda store, queue: bridge.run(store.groups.renew_session(APP, "group", 1, 3000)),
    "group_sessions": lambda store, queue: bridge.run(store.groups.group_sessions(APP, "group")),
    "ask_member": lambda store, queue: bridge.run(store.groups.ask_member(APP, "group", 1, queue.uid, 3000)),
    "record_search": lambda store, queue: bridge.run(store.groups.record_search(APP, "group", 1)),
    "owned_offsets": lambda store, queue: bridge.run(store.offsets.owned_offsets(queue, "group")),
    "hand_over": lambda store, queue: bridge.run(
        store.offsets.hand_over(queue, "group", None, [OwnedOffset(1, owner=1, epoch=1)])
    ),
    "scan": lambda store, queue: list(bridge.iterate(store.bulk.scan(queue, whole_partition()))),
    "load": lambda store, queue: bridge.run(
        store.bulk.load(queue, [Message(ids.EPOCH_TICKS, 0, 1, ids.TICKS_MAX, "late")])
    ),
    "horizon": lambda store, queue: bridge.run(store.bulk.horizon(queue)),
    "scan_arrow": lambda store, queue: list(bridge.iterate(store.bulk.scan_arrow(queue, whole_partition()))),
    "extent": lambda store, queue: bridge.run(store.bulk.extent(queue, whole_partition())),
    "measure": lambda store, queue: list(bridge.iterate(store.bulk.measure([queue]))),
    "load_unread": lambda store, queue: bridge.run(
        store.bulk.load_unread(queue, [Message(ids.TICKS_MAX, 0, 1, ids.TICKS_MAX, "late")])
    ),
    "now": lambda store, queue: bridge.run(store.ledger.now()),
    "entry": lambda store, queue: bridge.run(store.ledger.entry("work", 0)),
    "enter": lambda store, queue: bridge.run(store.ledger.enter("work", 0, b"entry", expected=None)),
    "identity": lambda store, queue: bridge.run(store.identity()),
    "record": lambda store, queue: bridge.run(store.records.record("kind", APP, "name")),
    "records": lambda store, queue: bridge.run(store.records.records("kind", APP)),
    "set_record": lambda store, queue: bridge.run(store.records.set_record(RECORD)),
    "remove_record": lambda store, queue: bridge.run(store.records.remove_record(RECORD)),
    "due_records": lambda store, queue: bridge.run(store.records.due_records("kind", 8)),
    "append_entry on a loop": lambda store, queue: begin_entry(store, queue, LogEntry(1, b"entry")).result(60),
    "read_log": lambda store, queue: bridge.run(store.claim_logs.read_log(queue, 1, 1)),
    "read_log newest": lambda store, queue: bridge.run(store.claim_logs.read_log(queue, 1, 1, newest=True)),
    "find_named": lambda store, queue: bridge.run(store.names.find_named(queue, "name")),
    "write_named": lambda store, queue: bridge.run(
        store.names.write_named(queue, "name", new_message(), b"content", None)
    ),
    "settle_named": lambda store, queue: bridge.run(store.names.settle_named(queue, "name", NAMED)),
    "write_covers": lambda store, queue: bridge.run(store.covers.write_covers(queue, 1, [(b"d" * 16, 1 << 59)])),
    "read_covers": lambda store, queue: bridge.run(store.covers.read_covers(queue, 1, [b"d" * 16])),
    "forget_covers": lambda store, queue: bridge.run(store.covers.forget_covers(queue, 1, 1 << 59)),
    "write_snapshot": lambda store, queue: bridge.run(store.claim_logs.write_snapshot(queue, 1, 1, b"snapshot")),
    "delete_group": lambda store, queue: bridge.run(store.offsets.delete_group(queue, "group")),
    "delete_queue": lambda store, queue: bridge.run(store.catalogue.delete_queue(queue)),
    "ping": lambda store, queue: bridge.run(store.ping()),
}


def test_every_call_of_the_contract_is_tried() -> None:
    """The calls tried against closed and broken stores include every method that asks the backend."""
    tried = {name.split()[0] for name in CALLS}
    about_itself = {
        *("adopt", "close", "cached_queue", "acknowledgement", "claims_refusal", "confirm_clock"),
        *("groups_refusal", "guarantee", "hear_news", "ids_ahead", "read_delay", "sample_clock", "share_news"),
        *("statistics", "watch"),
    }
    contracts = [get_type_hints(Store)[field.name] for field in dataclasses.fields(Store) if field.name != "clock"]
    of_records = {"identity", "entry", "enter"}
    assert tried | about_itself == of_records.union(*(one.__abstractmethods__ for one in (Store, *contracts)))


def test_closed(store: Store) -> None:
    """Every call to a closed store raises StoreClosed, even if the answer was in memory before."""
    queue = make_queue(store)
    bridge.run(store.applications.has_application(APP))
    store.close()
    for name, call in CALLS.items():
        for _ in range(2):
            try:
                call(store, queue)
            except StoreClosed:
                continue
            pytest.fail(f"{name} does not say that the store is closed")


def test_closing_again(store: Store) -> None:
    """A store may be closed any number of times, by several threads."""
    append_bodies(store, make_queue(store), "a")
    threads = [threading.Thread(target=store.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    store.close()
    store.close(timeout=0.0)
    with pytest.raises(StoreClosed):
        bridge.run(store.ping())


def test_everything_is_there_after_opening_again(store: Store, open_store: Callable[[], Store]) -> None:
    """Queues, messages, offsets, applications and keys are there after the store is opened again."""
    queue = make_queue(store, partitions=2, ttl=60)
    positions = append_bodies(store, queue, "a", b"\xff")
    bridge.run(store.messages.append(queue, [new_message("late", delay=3600.0)]))
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, positions[0])]))
    key = bridge.run(store.applications.add_key(APP, DIGEST))
    purged = fill_queue(store, "gone")
    purged = bridge.run(store.catalogue.purge_queue(purged))
    store.close()
    again = open_store()
    assert bridge.run(again.catalogue.queue(APP, queue.name)).uid == queue.uid
    assert bodies_in_partition(again, queue) == ["a", b"\xff"]
    assert bridge.run(again.messages.inspect(queue))[1][0].count == 3
    assert messages_in_partition(again, bridge.run(again.catalogue.queue(APP, purged.name))) == []
    assert [offset.position for offset in bridge.run(again.offsets.group_offsets(queue, "group"))] == [positions[0]]
    assert bridge.run(again.applications.find_key(DIGEST)) == key
    assert min(append_bodies(again, queue, "b")) > max(positions)


def test_closing_finishes_what_was_accepted(store: Store, open_store: Callable[[], Store]) -> None:
    """Every write that meets the closing is stored and acknowledged, or refused and not stored."""
    queue = make_queue(store)
    kept: list[Position] = []
    refused: list[BaseException] = []
    started = threading.Barrier(9)

    def write(n: int) -> None:
        started.wait(PATIENCE_SECONDS)
        for _ in range(10_000_000):
            try:
                kept.extend(append_bodies(store, queue, *[str(n)] * (n + 1)))
            except StoreUnavailable as error:
                refused.append(error)
                return

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE_SECONDS)
    while len(kept) < 50:
        pass
    store.close()
    for thread in threads:
        join(thread)
    assert [type(error) for error in refused] == [StoreClosed] * 8
    assert {getattr(error, "outcome", None) for error in refused} == {"none"}
    assert sorted(positions(messages_in_partition(open_store(), queue))) == sorted(kept)


def test_ping(store: Store) -> None:
    """A ping of a store that works raises nothing, and leaves nothing behind."""
    queue = make_queue(store)
    bridge.run(store.ping())
    assert bridge.run(store.catalogue.list_queues(APP)) == [bridge.run(store.catalogue.queue(APP, queue.name))]
    assert messages_in_partition(store, queue) == []


def test_what_it_says_of_itself(store: Store) -> None:
    """A store reports its name, a word and a sentence for its acknowledgements, and a guarantee per level."""
    assert store.name in BACKENDS
    acknowledgement = bridge.run(store.acknowledgement())
    assert acknowledgement.level.isidentifier()
    assert len(acknowledgement.text.split()) > 3
    for level in ("weak", "strong", "very_strong"):
        queue, _ = bridge.run(store.catalogue.create_queue(APP, level, QueueSpec(consistency=level)))
        assert len(store.guarantee(queue).split()) > 3
        assert store.read_delay(queue) >= 0.0


def test_statistics_grow(store: Store) -> None:
    """Statistics are numbers whose names fit Prometheus, and counters count."""
    queue = make_queue(store)
    before = bridge.run(store.statistics())
    append_bodies(store, queue, "a", "b")
    messages_in_partition(store, queue)
    after = bridge.run(store.statistics())
    assert before.keys() == after.keys()
    for name, value in after.items():
        assert name.replace("_", "a").isalnum()
        assert name == name.lower()
        assert isinstance(value, int | float)
    counters = [name for name in after if name.endswith("_total")]
    assert [name for name in counters if after[name] < before[name]] == []
    assert [name for name in counters if after[name] > before[name]] != []
