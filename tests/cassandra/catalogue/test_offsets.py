"""Offsets of one call, decided together and set together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.ids import Position
from queuey.messages import Offset, OffsetChange, QueueSpec
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.catalogue.offsets import decide

PLACES = st.sampled_from([(ids.EPOCH_TICKS + n, 0) for n in range(3)])
CHANGES = st.lists(st.builds(OffsetChange, st.integers(1, 3), PLACES, st.none() | PLACES, st.booleans()), max_size=6)


@given(st.dictionaries(st.integers(1, 3), PLACES), CHANGES)
def test_decided_one_after_another(recorded: dict[int, Position], changes: list[OffsetChange]) -> None:
    """A call decides as if each of its changes were a call of its own; what is not changed stays, with its age."""
    present = {number: Offset(number, position, 1.0) for number, position in recorded.items()}
    together = decide(present, changes, 2.0)
    offsets, applied = present, []
    for change in changes:
        decision = decide(offsets, [change], 2.0)
        offsets = decision.offsets
        applied += decision.applied
    assert together == (offsets, applied)
    assert {number: offset.updated for number, offset in offsets.items()} == {
        number: 2.0 if number in applied else 1.0 for number in offsets
    }


def test_one_partition_twice_in_a_call(store: CassandraStore, application: str) -> None:
    """The second change of a partition finds what the first one set, and is what is recorded."""
    first, second = (ids.EPOCH_TICKS + 5, 0), (ids.EPOCH_TICKS, 0)
    queue, _ = store.create_queue(application, "queue", QueueSpec())
    changes = [OffsetChange(1, first), OffsetChange(1, second, first, compare=True)]
    (answer,) = store.set_offsets(queue, "group", changes)
    assert answer.position == second
    assert store.offsets(queue, "group") == [answer]


def test_very_many_in_a_call(store: CassandraStore, application: str) -> None:
    """A call may set the offsets of thousands of partitions; Cassandra's limit of a batch's size is none for these."""
    queue, _ = store.create_queue(application, "queue", QueueSpec(partitions=3000))
    changes = [OffsetChange(number, (ids.EPOCH_TICKS, number)) for number in range(1, 3001)]
    answer = store.set_offsets(queue, "group" * 50, changes)
    assert [offset.position[1] for offset in answer] == list(range(1, 3001))
    assert store.offsets(queue, "group" * 50) == answer
    store.delete_group(queue, "group" * 50)
    assert store.groups(queue) == []
