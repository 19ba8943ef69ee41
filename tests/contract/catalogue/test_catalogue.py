"""Tests of queues: created, found, updated, purged and deleted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from queuey.model import ids
from queuey.model.errors import (
    ApplicationNotFound,
    InvalidRequest,
    QueueChanged,
    QueueExists,
    QueueNotFound,
    StoreUnavailable,
)
from queuey.model.messages import Backoff, OffsetChange, Principal, Queue, QueueSpec
from queuey.storage import Store, bridge
from tests.backends import APP
from tests.contract.samples import (
    append_bodies,
    bodies,
    bodies_in_partition,
    call_concurrently,
    eventually,
    fill_queue,
    fresh_name,
    make_queue,
    messages_in_partition,
)

FIELDS: dict[str, tuple[Any, Any, Any]] = {
    "partitions": (1, 7, 8),
    "type": ("user", "public", "user"),
    "consistency": ("strong", "weak", "strong"),
    "principals": (
        (),
        (Principal("app:reports", delete=False), Principal("bid:ann@example.org")),
        (Principal("app:reports"),),
    ),
    "ttl": (None, 60, 61),
    "read_delay": (None, 2.5, 2.0),
    "max_deliveries": (0, 5, 6),
    "backoff": (None, Backoff(first=5, most=600), Backoff()),
    "dead_letter": ("", "failed", "broken"),
    "on_ack": ("keep", "delete", "keep"),
    "on_expiry": ("drop", "dead-letter", "drop"),
    "max_claimed": (0, 9, 10),
    "description": ("", "Orders of the web shop", "Bestellungen für alle"),
}
"""By field: the default, and two other values."""
DEFAULTS, FULL, OTHERS = ({name: values[at] for name, values in FIELDS.items()} for at in range(3))


def fields(queue: Queue) -> dict[str, Any]:
    return {name: getattr(queue, name) for name in FULL}


def are_equal_but_for_version(one: Queue, two: Queue) -> bool:
    return structs.replace(one, version=0) == structs.replace(two, version=0)


def test_defaults(store: Store) -> None:
    """A queue created without options has the documented defaults and a creation time."""
    name = fresh_name()
    queue, created = bridge.run(store.catalogue.create_queue(APP, name, QueueSpec()))
    assert created
    assert (queue.application, queue.name) == (APP, name)
    assert fields(queue) == DEFAULTS
    assert abs(queue.created - ids.ticks_to_seconds(ids.now_ticks())) < 60


def test_all_fields(store: Store, other: Store) -> None:
    """Every field given at creation is stored, and read by every process."""
    name = fresh_name()
    queue, created = bridge.run(store.catalogue.create_queue(APP, name, QueueSpec(**FULL)))
    assert created
    assert fields(queue) == FULL
    assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, name)), queue)
    assert are_equal_but_for_version(bridge.run(other.catalogue.queue(APP, name)), queue)
    assert are_equal_but_for_version(bridge.run(other.catalogue.queue(APP, name, fresh=True)), queue)


GIVEN = {"all": set(FULL), "none": set[str](), **{name: {name} for name in FULL}}


def test_creating_again_with_equal_or_absent_fields(store: Store, other: Store) -> None:
    """Creating an existing queue with equal or absent fields returns it unchanged."""
    name = fresh_name()
    queue, _ = bridge.run(store.catalogue.create_queue(APP, name, QueueSpec(**FULL)))
    places = [(1, position) for position in append_bodies(store, queue, "kept")]
    for what, value in GIVEN.items():
        spec = QueueSpec(**{field: FULL[field] for field in value})
        for handle in (store, other):
            again, created = bridge.run(handle.catalogue.create_queue(APP, name, spec))
            assert not created, what
            assert are_equal_but_for_version(again, queue), what
    assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, name, fresh=True)), queue)
    assert bodies(bridge.run(store.messages.fetch(queue, places))) == ["kept"]


def test_creating_again_with_another_field(store: Store, other: Store) -> None:
    """Creating an existing queue with a different field is refused; the error names the field and has the queue."""
    name = fresh_name()
    queue, _ = bridge.run(store.catalogue.create_queue(APP, name, QueueSpec(**FULL)))
    for handle, field in itertools.product((store, other), FULL):
        with pytest.raises(QueueExists) as refused:
            bridge.run(handle.catalogue.create_queue(APP, name, QueueSpec(**(FULL | {field: OTHERS[field]}))))
        assert refused.value.differing == (field,)
        assert are_equal_but_for_version(refused.value.queue, queue)
    assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, name, fresh=True)), queue)


def test_queues_have_different_numbers(store: Store, other: Store) -> None:
    """No two queues share a uid or a qid, and a name that is used again gets new ones."""
    queues = [make_queue(one) for one in (store, other, store)]
    bridge.run(store.catalogue.delete_queue(queues[0]))
    queues.append(make_queue(other, queues[0].name))
    assert len({queue.uid for queue in queues}) == 4
    assert len({queue.qid for queue in queues}) == 4


def test_unknown_application(store: Store) -> None:
    """A queue needs an existing application."""
    with pytest.raises(ApplicationNotFound):
        bridge.run(store.catalogue.create_queue("nobody", "orders", QueueSpec()))
    with pytest.raises(QueueNotFound):
        bridge.run(store.catalogue.queue("nobody", "orders"))
    assert "nobody" not in bridge.run(store.applications.application_names())


def test_queue_is_found_after_it_was_missing(store: Store, other: Store) -> None:
    """A queue that was missing is found once another process has created it."""
    name = fresh_name()
    for handle in (store, other):
        with pytest.raises(QueueNotFound):
            bridge.run(handle.catalogue.queue(APP, name, fresh=True))
    queue = make_queue(store, name)
    assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, name)), queue)
    assert are_equal_but_for_version(bridge.run(other.catalogue.queue(APP, name, fresh=True)), queue)


def test_cached_rows(store: Store, other: Store) -> None:
    """The cache has rows that were just read, but none of missing queues or of queues known to have changed."""
    queue = make_queue(store)
    # The machine may be slower than a tenth of a second, which is how long rows may be used here.
    assert eventually(
        lambda: (
            bridge.run(store.catalogue.queue(APP, queue.name)) == queue == store.catalogue.cached_queue(APP, queue.name)
        )
    )
    assert other.catalogue.cached_queue(APP, queue.name) is None
    assert store.catalogue.cached_queue(APP, "missing") is None
    updated = bridge.run(store.catalogue.update_queue(queue, QueueSpec(ttl=5)))
    assert store.catalogue.cached_queue(APP, queue.name) in (None, updated)
    bridge.run(store.catalogue.delete_queue(updated))
    assert store.catalogue.cached_queue(APP, queue.name) is None


def test_update_changes_what_is_given(store: Store, other: Store) -> None:
    """An update changes the given fields and no others; identity and creation time stay."""
    for field in FULL:
        name = fresh_name()
        queue, _ = bridge.run(store.catalogue.create_queue(APP, name, QueueSpec(**FULL)))
        updated = bridge.run(store.catalogue.update_queue(queue, QueueSpec(**{field: OTHERS[field]})))
        assert fields(updated) == FULL | {field: OTHERS[field]}
        assert (updated.uid, updated.qid, updated.created) == (queue.uid, queue.qid, queue.created)
        assert are_equal_but_for_version(bridge.run(other.catalogue.queue(APP, name, fresh=True)), updated)
        assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, name)), updated)


def test_clearing_a_field(store: Store, other: Store) -> None:
    """A cleared field has its default again; the others stay."""
    for field in sorted(FULL.keys() - {"partitions"}):
        queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(**FULL)))
        updated = bridge.run(store.catalogue.update_queue(queue, QueueSpec(), clear=[field]))
        assert fields(updated) == FULL | {field: DEFAULTS[field]}
        assert are_equal_but_for_version(bridge.run(other.catalogue.queue(APP, queue.name, fresh=True)), updated)


def test_zero_is_a_value(store: Store) -> None:
    """A read delay of zero seconds and an empty list of principals are values, not absent fields."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(**FULL)))
    updated = bridge.run(store.catalogue.update_queue(queue, QueueSpec(read_delay=0.0, principals=())))
    assert (updated.read_delay, updated.principals) == (0.0, ())
    with pytest.raises(QueueExists) as refused:
        bridge.run(store.catalogue.create_queue(APP, queue.name, QueueSpec(read_delay=2.5)))
    assert refused.value.differing == ("read_delay",)


def test_partitions_are_never_lowered(store: Store) -> None:
    """Lowering the number of partitions would hide messages: refused with its own code, and nothing is changed."""
    queue = make_queue(store, partitions=3)
    with pytest.raises(InvalidRequest) as refused:
        bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=2, ttl=77)))
    assert refused.value.code == "InvalidUpdate"
    assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, queue.name, fresh=True)), queue)
    assert bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=3))).partitions == 3


def test_claims_are_divided_among_partitions(store: Store) -> None:
    """Each partition needs a share of ``max_claimed``, so fewer claims or more partitions than that are refused."""
    with pytest.raises(InvalidRequest, match="2 cannot be divided among 3 partitions"):
        bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(partitions=3, max_claimed=2)))
    queue = make_queue(store, read_delay=None, partitions=3, max_claimed=5)
    assert [queue.share_of(number) for number in (1, 2, 3)] == [2, 2, 1]
    for changes in (QueueSpec(max_claimed=2), QueueSpec(partitions=6)):
        with pytest.raises(InvalidRequest, match="cannot be divided among"):
            bridge.run(store.catalogue.update_queue(queue, changes))
    assert are_equal_but_for_version(bridge.run(store.catalogue.queue(APP, queue.name, fresh=True)), queue)
    changed = bridge.run(store.catalogue.update_queue(queue, QueueSpec(partitions=6, max_claimed=6)))
    assert bridge.run(store.catalogue.update_queue(changed, QueueSpec(max_claimed=0))).share_of(1) == 0


def test_a_limit_by_key_is_for_ever(store: Store, other: Store) -> None:
    """Whether a queue limits claims by key is fixed at creation; only the number can change."""
    with pytest.raises(InvalidRequest, match="kind ordered"):
        bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(max_claimed_per_key=2, kind="ordered")))
    queue = make_queue(store, read_delay=None, max_claimed_per_key=2)
    assert bridge.run(other.catalogue.queue(APP, queue.name)).max_claimed_per_key == 2
    with pytest.raises(InvalidRequest) as refused:
        bridge.run(store.catalogue.update_queue(queue, QueueSpec(max_claimed_per_key=0)))
    assert refused.value.code == "InvalidUpdate"
    with pytest.raises(InvalidRequest, match="cannot be set afterwards"):
        bridge.run(store.catalogue.update_queue(make_queue(store), QueueSpec(max_claimed_per_key=1)))
    assert bridge.run(store.catalogue.update_queue(queue, QueueSpec(max_claimed_per_key=3))).max_claimed_per_key == 3


def test_delete_frees_the_name(store: Store, other: Store) -> None:
    """After a delete the queue is gone for every process, and its name creates a new, empty queue with new fields."""
    queue = make_queue(store, partitions=3, ttl=60)
    append_bodies(store, queue, "a", "b", partition=2)
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(1, ids.LAST)]))
    bridge.run(other.catalogue.queue(APP, queue.name))
    bridge.run(store.catalogue.delete_queue(queue))
    for handle in (store, other):
        with pytest.raises(QueueNotFound):
            bridge.run(handle.catalogue.queue(APP, queue.name, fresh=True))
        assert queue.name not in [found.name for found in bridge.run(handle.catalogue.list_queues(APP))]
    again = make_queue(other, queue.name, partitions=2)
    assert (again.partitions, again.ttl) == (2, None)
    for handle in (store, other):
        assert messages_in_partition(handle, again, 2) == []
        assert bridge.run(handle.offsets.groups(again)) == []
        assert bridge.run(handle.messages.inspect(again))[1][1].count == 0


def test_purge_keeps_all_but_the_messages(store: Store, other: Store) -> None:
    """A purge removes messages, also delayed ones; fields, identity, offsets and name stay."""
    queue, _ = bridge.run(store.catalogue.create_queue(APP, fresh_name(), QueueSpec(**(FULL | {"read_delay": 0.0}))))
    places = [(2, x) for x in append_bodies(store, queue, "a", "b", partition=2)]
    bridge.run(store.offsets.set_offsets(queue, "group", [OffsetChange(2, places[0][1])]))
    purged = bridge.run(store.catalogue.purge_queue(queue))
    assert fields(purged) == fields(queue)
    assert (purged.uid, purged.name, purged.created) == (queue.uid, queue.name, queue.created)
    assert purged.qid != queue.qid
    for one in (store, other):
        assert are_equal_but_for_version(bridge.run(one.catalogue.queue(APP, queue.name, fresh=True)), purged)
        assert messages_in_partition(one, purged, 2) == []
        assert bridge.run(one.messages.fetch(purged, places)) == []
        assert bridge.run(one.messages.delete(purged, places)) in (0, len(places))
        assert [offset.position for offset in bridge.run(one.offsets.group_offsets(purged, "group"))] == [places[0][1]]
    append_bodies(other, purged, "c", partition=2)
    assert bodies_in_partition(store, purged, 2) == ["c"]


def test_simultaneous_creation(store: Store, other: Store) -> None:
    """One of the simultaneous callers that create a queue creates it, and all get the same row."""
    name = fresh_name()
    spec = QueueSpec(partitions=2)
    results = call_concurrently(lambda one: bridge.run(one.catalogue.create_queue(APP, name, spec)), [store, other] * 4)
    assert sum(created for _, created in results) == 1
    assert len({(queue.uid, queue.qid) for queue, _ in results}) == 1


def test_simultaneous_updates_are_not_lost(store: Store, other: Store) -> None:
    """Callers that each add a partition, and retry after a conflict, add one partition each.

    A caller whose change is in doubt, as on nodes too busy for so many at once, may have added one.
    """
    queue = make_queue(store)

    def add(one: Store) -> bool:
        while True:
            row = bridge.run(one.catalogue.queue(APP, queue.name, fresh=True))
            try:
                bridge.run(one.catalogue.update_queue(row, QueueSpec(partitions=row.partitions + 1)))
            except QueueChanged:
                continue
            except StoreUnavailable as error:
                if error.outcome != "unknown":
                    raise
                return False
            else:
                return True

    added = sum(call_concurrently(add, [store, other] * 4))
    assert added > 0
    assert 1 + added <= bridge.run(store.catalogue.queue(APP, queue.name, fresh=True)).partitions <= 9


def test_purge_ends_simultaneous_reads(store: Store, other: Store) -> None:
    """After a purge has returned no read shows an earlier message, however many reads and sweeps are running."""
    queue = fill_queue(store, *["x"] * 200)
    gone: list[bool] = []

    def read(one: Store) -> str:
        while True:
            too_late = bool(gone)
            try:
                messages = messages_in_partition(one, queue)
            except QueueChanged:
                return "refused"
            if too_late or len(messages) not in (0, 200):
                return f"saw {len(messages)}"

    def remove() -> str:
        messages_in_partition(store, queue)
        bridge.run(other.catalogue.purge_queue(queue))
        gone.append(True)
        return "refused"

    calls: list[Callable[[], str]] = [partial(read, one) for one in [store, other] * 2]
    assert set(call_concurrently(lambda call: call(), [*calls, remove])) == {"refused"}


def test_delete_ends_simultaneous_writes(store: Store, other: Store) -> None:
    """After a delete has returned no write to the queue succeeds, and its name shows none of its messages."""
    queue = make_queue(store)
    gone: list[bool] = []

    def write(one: Store) -> bool:
        while True:
            too_late = bool(gone)
            try:
                append_bodies(one, queue, "x")
            except QueueChanged:
                return True
            if too_late:
                return False

    def remove() -> bool:
        while len(messages_in_partition(store, queue)) < 20:
            pass
        bridge.run(other.catalogue.delete_queue(queue))
        gone.append(True)
        return True

    calls: list[Callable[[], bool]] = [partial(write, one) for one in [store, other] * 2]
    assert call_concurrently(lambda call: call(), [*calls, remove]) == [True] * 5
    assert messages_in_partition(other, make_queue(store, queue.name)) == []
