"""The next reads, planned by what partitions want, the free room, and the running reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdo.consumer.fetcher import (
    MAX_QUEUES_PER_CALL,
    MAX_READS,
    MIN_READ_MESSAGES,
    BufferSpace,
    InFlightCalls,
    compute_free_space,
    plan_fetches,
)
from qdo.group.offsets import PartitionOwnership
from qdo.group.records import CommittedOffset, SessionOffset
from qdo.partitions import Partition, Queue

NOW = 100.0
PAGE = 1000
WAIT = 20.0
IDLE = InFlightCalls(0, (), 4)


def make_row(number: int, *, held: int = 0, more: bool | None = False, queue: str = "orders") -> PartitionOwnership:
    partition = Partition(Queue("host", "app", queue), number)
    made = PartitionOwnership(partition, SessionOffset(partition, CommittedOffset(), 1))
    made.count, made.more = held, more
    return made


WANTS = st.lists(
    st.builds(
        make_row,
        st.integers(1, 30),
        held=st.sampled_from([0, 0, 1, PAGE - 1, PAGE, 3000]),
        more=st.sampled_from([True, False, None]),
        queue=st.sampled_from([f"q{number}" for number in range(150)]),
    ),
    max_size=300,
    unique_by=lambda one: one.partition,
)
ROOMS = st.builds(
    lambda held, size, partitions: compute_free_space(
        held, size, partitions, prefetch_messages=5000, prefetch_bytes=1000
    ),
    st.integers(0, 6000),
    st.integers(0, 1100),
    st.integers(1, 6000),
)
FLIGHTS = st.builds(
    InFlightCalls,
    st.integers(0, MAX_READS),
    st.lists(st.floats(NOW - 2, NOW + WAIT), max_size=5).map(tuple),
    st.integers(1, 5),
)


@given(WANTS, ROOMS, FLIGHTS)
def test_plans_stay_within_all_bounds(
    wants: list[PartitionOwnership], room: BufferSpace, pending_calls: InFlightCalls
) -> None:
    """No partition is asked twice, no call is too large, and the number of calls and the room have their bounds."""
    asks = plan_fetches(wants, room, pending_calls, NOW, page=PAGE, wait=WAIT).calls
    all_wants = [one for ask in asks for one in ask.partitions]
    assert len(all_wants) == len(set(all_wants))
    assert set(all_wants) <= set(wants)
    reads = [ask for ask in asks if not ask.wait]
    polls = [ask for ask in asks if ask.wait]
    assert len(reads) + pending_calls.reads <= MAX_READS
    assert len(polls) <= max(0, pending_calls.max_polls - len(pending_calls.polls))
    for ask in asks:
        assert len({one.partition.queue for one in ask.partitions}) <= MAX_QUEUES_PER_CALL
        assert 1 <= ask.limit <= PAGE
        assert ask.limit * len(ask.partitions) <= max(room.free + MIN_READ_MESSAGES, len(ask.partitions) * room.reserve)
    assert all(one.more is False for ask in polls for one in ask.partitions)
    if not room.free:
        assert not any(one.count for one in all_wants)


@given(WANTS, ROOMS)
def test_there_is_always_something_to_do(wants: list[PartitionOwnership], room: BufferSpace) -> None:
    """With nothing under way and an empty partition a read is planned, so reading never stops."""
    asks = plan_fetches(wants, room, IDLE, NOW, page=PAGE, wait=WAIT).calls
    if any(not one.count for one in wants):
        assert asks


@given(st.integers(0, 8000), st.integers(1, 2000))
def test_room_ends_where_the_settings_say(held: int, partitions: int) -> None:
    """The shared room and the reserves add up to the setting, or to one message per partition."""
    room = compute_free_space(held, 0, partitions, prefetch_messages=5000, prefetch_bytes=1000)
    assert (
        held + room.free + partitions * room.reserve <= max(5000, held, 3750 + partitions) + partitions * room.reserve
    )
    assert room.free == max(0, 3750 - held)
    assert partitions * room.reserve <= max(1250, partitions)


def test_bytes_end_prefetching_as_messages_do() -> None:
    """At the byte limit only empty partitions are read, one message each."""
    assert compute_free_space(3, 1000, 2, prefetch_messages=5000, prefetch_bytes=1000) == BufferSpace(
        0, low=False, reserve=1
    )
    assert compute_free_space(3, 999, 2, prefetch_messages=5000, prefetch_bytes=1000).free > 0
