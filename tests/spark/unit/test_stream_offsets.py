"""Positions of a stream: checkpoints, the tasks of a batch, and the sharing of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import Conflict, GroupNotFound
from queuey.model.ids import FIRST, LOW_MAX, LOW_MIN, TICKS_MAX, Position, following
from queuey.model.messages import Offset, OffsetChange, Queue, QueueSpec
from queuey.spark import open_stores
from queuey.spark.errors import OptionError
from queuey.spark.options import StoreOptions
from queuey.spark.slices import QueuePartition, QueueSlice
from queuey.spark.source.group_offsets import GroupOffsets
from queuey.spark.source.stream_offsets import (
    DEFAULT_TASKS,
    ScannedTo,
    StreamOffset,
    find_occupied,
    parse,
    plan_tasks,
    share_messages,
)
from queuey.storage import OffsetRecords, Store, bridge
from tests.interposed_store import InterposedStore
from tests.replacing import replace

TICKS = st.one_of(st.integers(1, 40), st.integers(0, TICKS_MAX))
POSITIONS = st.one_of(
    st.just(FIRST), st.tuples(TICKS, st.just(LOW_MIN)), st.tuples(TICKS, st.integers(LOW_MIN, LOW_MAX))
)
NAMES = st.sampled_from(["a", "b", "a-1", "ü", "q" * 50])
PLACES = st.tuples(NAMES, st.integers(1, 12))
OFFSETS = st.dictionaries(PLACES, POSITIONS, max_size=20).map(StreamOffset)


def at(tick: int) -> Position:
    return tick, LOW_MIN


@given(OFFSETS)
def test_a_checkpoint_gives_back_what_it_was_given(offset: StreamOffset) -> None:
    """An offset has one text, in whatever order its partitions were added: Spark compares texts. It survives JSON."""
    text = json.dumps(offset.to_json())
    assert parse(json.loads(text)) == offset
    for other in (StreamOffset(dict(reversed(offset.positions.items()))), parse(json.loads(text))):
        assert json.dumps(other.to_json()) == text


def test_partitions_in_a_row_at_one_place_are_written_together() -> None:
    """A checkpoint has ranges of partitions, ids in hex, and the beginning as a word."""
    horizon = at(0x1D2_3456_789A_BCDE)
    queue_partitions: dict[QueuePartition, Position] = {("a", number): horizon for number in (1, 2, 3, 5)}
    offset = StreamOffset({**queue_partitions, ("a", 4): FIRST, ("b", 1): FIRST, ("b", 2): FIRST})
    text = "789abcde345611d28080808080808080"
    assert offset.to_json() == {
        "v": 1,
        "queues": {"a": {"1-3": text, "4": "earliest", "5": text}, "b": {"1-2": "earliest"}},
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"v": 2, "queues": {}}, "newer version"),
        ({"partition-0": 5}, "has no offsets of queues"),
        (None, "has no offsets of queues"),
        ({"v": 1, "queues": []}, "has no offsets of queues"),
        ({"v": 1, "queues": {"a": {"x": "earliest"}}}, "invalid offsets"),
        ({"v": 1, "queues": {"a": {"1": "latest"}}}, "invalid offsets"),
        ({"v": 1, "queues": {"a": {"1": 5}}}, "invalid offsets"),
        ({"v": 1, "queues": {"a": ["1"]}}, "invalid offsets"),
    ],
)
def test_what_is_no_offset_is_refused(value: object, says: str) -> None:
    """A checkpoint of another source, or of a later version, is refused with a message."""
    with pytest.raises(OptionError, match=says):
        parse(value)


@given(OFFSETS, OFFSETS, st.one_of(st.none(), st.integers(1, 300)))
def test_a_plan_covers_exactly_what_lies_between(start: StreamOffset, end: StreamOffset, least: int | None) -> None:
    """Every position from start to end is in exactly one task, in order, and no other position."""
    tasks = plan_tasks(start, end, min_tasks=least)
    pieces = [piece for task in tasks for piece in task]
    assert all(tasks)
    assert all(piece.lower < piece.upper for piece in pieces)
    assert pieces == sorted(pieces, key=lambda piece: (piece.queue_partition, piece.lower))
    joined: dict[QueuePartition, tuple[Position, Position]] = {}
    for piece in pieces:
        lower, upper = joined.get(piece.queue_partition, (piece.lower, piece.lower))
        assert upper == piece.lower
        joined[piece.queue_partition] = lower, piece.upper
    expected = {
        queue_partition: (start.position_of(queue_partition), upper)
        for queue_partition, upper in end.positions.items()
        if start.position_of(queue_partition) < upper
    }
    assert joined == expected


@given(st.integers(1, 900), st.one_of(st.none(), st.integers(1, 500)))
def test_there_are_few_tasks_unless_more_are_asked_for(count: int, least: int | None) -> None:
    """Many partitions share tasks evenly; few are cut into the requested number of pieces."""
    start = StreamOffset({("a", number): at(1000) for number in range(1, count + 1)})
    end = StreamOffset({queue_partition: at(1_001_000) for queue_partition in start.positions})
    tasks = plan_tasks(start, end, min_tasks=least)
    assert len(tasks) <= max(DEFAULT_TASKS, least or 0)
    assert len(tasks) >= min(count, DEFAULT_TASKS)
    assert len(tasks) >= (least or 0)
    assert max(map(len, tasks)) - min(map(len, tasks)) <= 1


def test_a_range_from_the_beginning_is_not_cut() -> None:
    """A range from the beginning is not cut, because nothing says when the partition began."""
    end = StreamOffset({("a", 1): at(1000)})
    assert plan_tasks(StreamOffset(), end, min_tasks=8) == [(QueueSlice("a", 1, FIRST, at(1000)),)]


class HeldMessages:
    """Messages at whole ticks, with a count of reads."""

    def __init__(self, held: Mapping[QueuePartition, set[int]]) -> None:
        self.held = {queue_partition: sorted(ticks) for queue_partition, ticks in held.items()}
        self.looked = 0

    def __call__(self, one: QueueSlice, most: int) -> ScannedTo:
        assert most > 0
        assert one.lower < one.upper
        self.looked += 1
        positions = [at(tick) for tick in self.held[one.queue_partition] if one.lower <= at(tick) < one.upper][:most]
        return ScannedTo(len(positions), following(positions[-1]) if len(positions) == most else one.upper)


BACKLOGS = st.dictionaries(PLACES, st.sets(st.integers(1, 99), max_size=60), min_size=1, max_size=12)


def waiting_for(held: Mapping[QueuePartition, set[int]], lower: Position = FIRST) -> list[QueueSlice]:
    return [QueueSlice(*queue_partition, lower, at(100)) for queue_partition in held]


@given(BACKLOGS, st.integers(1, 200))
def test_shares_use_the_limit_and_are_equal_where_backlogs_allow(
    held: dict[QueuePartition, set[int]], limit: int
) -> None:
    """All messages are given, or exactly the limit; no share is smaller by more than one unless it is a whole backlog.

    Partitions named as empty are empty.
    """
    ends, empty = share_messages(waiting_for(held), limit, HeldMessages(held))
    shares = {place: sum(at(tick) < ends.get(place, FIRST) for tick in ticks) for place, ticks in held.items()}
    assert sum(shares.values()) == min(limit, sum(map(len, held.values())))
    assert all(shares[place] for place in ends)
    assert not any(held[place] for place in empty)
    assert not empty & ends.keys()
    unfinished = [share for place, share in shares.items() if share < len(held[place])]
    assert not unfinished or max(shares.values()) <= min(unfinished) + 1


@given(BACKLOGS, st.integers(1, 40))
def test_backlogs_drain_and_each_has_its_turn(held: dict[QueuePartition, set[int]], limit: int) -> None:
    """Consecutive batches give every message once, and no partition waits while others are served twice."""
    extent = HeldMessages(held)
    offset = StreamOffset()
    total = sum(map(len, held.values()))
    batches = 0
    while ends := share_messages(
        [
            QueueSlice(*queue_partition, offset.position_of(queue_partition), at(100))
            for queue_partition in held
            if offset.position_of(queue_partition) < at(100)
        ],
        limit,
        extent,
    )[0]:
        batches += 1
        assert all(end > offset.position_of(queue_partition) for queue_partition, end in ends.items())
        offset = offset.with_changes(ends)
    assert batches == -(-total // limit)


def test_those_who_wait_for_the_oldest_go_first() -> None:
    """With fewer messages to share than waiting partitions, those furthest behind come first."""
    held: dict[QueuePartition, set[int]] = {("a", number): set(range(1, 90)) for number in range(1, 6)}
    waiting = [QueueSlice("a", number, at(10 - number), at(100)) for number in (3, 1, 5, 2, 4)]
    ends, _ = share_messages(waiting, 2, HeldMessages(held))
    assert ends == {("a", 5): following(at(5)), ("a", 4): following(at(6))}


@given(BACKLOGS)
def test_without_a_limit_all_is_taken_where_there_is_anything(held: dict[QueuePartition, set[int]]) -> None:
    """Ranges with messages end at their upper bound; the others are named as empty."""
    ends, empty = find_occupied(waiting_for(held), HeldMessages(held))
    assert ends == {queue_partition: at(100) for queue_partition, ticks in held.items() if ticks}
    assert empty == {queue_partition for queue_partition, ticks in held.items() if not ticks}


def test_a_store_that_looks_at_a_range_in_steps_is_asked_on() -> None:
    """A scan that ends early without a message is not taken for the end of the range."""

    def by_steps(one: QueueSlice, most: int) -> ScannedTo:
        stop = min(one.upper, at(one.lower[0] + 10))
        return ScannedTo(1, following(at(35))) if one.lower <= at(35) < stop else ScannedTo(0, stop)

    waiting = [QueueSlice("a", 1, at(5), at(100))]
    assert find_occupied(waiting, by_steps) == ({("a", 1): at(100)}, set())
    assert share_messages(waiting, 7, by_steps)[0] == {("a", 1): at(100)}


def test_looking_costs_no_more_than_the_limit_and_the_partitions() -> None:
    """If one of a thousand partitions has messages, few are read twice."""
    held: dict[QueuePartition, set[int]] = {("a", number): set() for number in range(1, 1001)}
    held["a", 500] = set(range(1, 99))
    extent = HeldMessages(held)
    assert share_messages(waiting_for(held), 50, extent)[0].keys() == {("a", 500)}
    assert extent.looked <= 1000 + 10


def test_a_queue_that_has_too_many_groups(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """If the progress of one queue cannot be recorded this is logged, and that of the others is recorded."""
    full, other = (bridge.run(store.catalogue.create_queue("acme", name, QueueSpec()))[0] for name in ("a", "b"))
    passing = InterposedStore(store)

    def refuse(queue: Queue, group: str, changes: Sequence[OffsetChange]) -> list[Offset]:
        if queue.name == "a":
            raise Conflict("Queue 'a' has 1000 consumer groups.")
        return bridge.run(store.offsets.set_offsets(queue, group, changes))

    passing.instead(OffsetRecords.set_offsets, refuse)
    with replace(open_stores.opened, lambda _options: passing.store):
        GroupOffsets(StoreOptions(), "stream").record(StreamOffset({("a", 1): at(9), ("b", 1): at(9)}))
    assert "progress of group stream could not be recorded: Queue 'a' has 1000" in caplog.text
    assert [offset.partition for offset in bridge.run(store.offsets.group_offsets(other, "stream"))] == [1]
    with pytest.raises(GroupNotFound):
        bridge.run(store.offsets.group_offsets(full, "stream"))
