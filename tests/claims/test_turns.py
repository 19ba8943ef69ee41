"""Tests of the partition with which claims of a queue begin."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from queuey.claims.log.claim_search import (
    AVOIDANCE_SECONDS,
    MAX_ROTATION_SECONDS,
    MAX_TURN_SECONDS,
    MIN_TURN_SECONDS,
    PartitionRotation,
)
from tests.waiting import MovedClock

QUEUE = 7


def never(_number: int) -> float:
    return -1e9


def turns(clock: MovedClock, first: float = 0.0) -> PartitionRotation:
    return PartitionRotation(clock, lambda: first)


def heads(
    known: PartitionRotation, clock: MovedClock, partitions: int, seconds: float, last_conflict: Callable[[int], float]
) -> list[int]:
    """Returns which partition comes first over the time, each once until another takes its place."""
    numbers_seen: list[int] = []
    for _ in range(round(seconds * 1000)):
        clock.now += 0.001
        head = known.order(QUEUE, partitions, last_conflict)[0]
        if not numbers_seen or numbers_seen[-1] != head:
            numbers_seen.append(head)
    return numbers_seen


@given(partitions=st.integers(2, 400), first=st.floats(0, 1, exclude_max=True))
def test_no_partition_starves(partitions: int, first: float) -> None:
    """Every partition comes first within a bounded time, even if all the others always have messages."""
    clock = MovedClock()
    claim_turns = turns(clock, first)
    longest = max(MAX_ROTATION_SECONDS, partitions * MIN_TURN_SECONDS)
    first_partitions = heads(claim_turns, clock, partitions, 1.3 * longest + 2 * MAX_TURN_SECONDS, never)
    assert set(first_partitions) == set(range(1, partitions + 1))


def test_a_partition_with_nothing_to_give_loses_its_turn() -> None:
    """After an empty partition the next claim begins at another one; late news of an earlier partition is ignored."""
    clock = MovedClock()
    claim_turns = turns(clock)
    head, following, *_ = claim_turns.order(QUEUE, 8, never)
    claim_turns.end_turn(QUEUE, head)
    assert claim_turns.order(QUEUE, 8, never)[0] == following
    claim_turns.end_turn(QUEUE, head)
    assert claim_turns.order(QUEUE, 8, never)[0] == following


def test_where_another_process_is_at_work_comes_last_for_a_while() -> None:
    """A partition where another process is at work comes last for a while."""
    clock = MovedClock()
    claim_turns = turns(clock)
    head = claim_turns.order(QUEUE, 8, never)[0]
    clock.now += 0.001
    found_at = clock.now

    def last_conflict(number: int) -> float:
        return found_at if number == head else -1e9

    assert head not in heads(claim_turns, clock, 8, AVOIDANCE_SECONDS - 0.01, last_conflict)
    assert head in heads(claim_turns, clock, 8, MAX_ROTATION_SECONDS + MAX_TURN_SECONDS, last_conflict)
