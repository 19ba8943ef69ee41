"""With which partition claims of a queue begin."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from queuey.service.claims.claiming import AVOIDED, MAX_QUEUES, MAX_ROUND, MAX_TURN, MIN_TURN, PartitionRotation

QUEUE = 7


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


def never(_number: int) -> float:
    """Says that no other process is at work anywhere."""
    return -1e9


def turns(clock: Clock, first: float = 0.0) -> PartitionRotation:
    """Returns turns of a process that begins where ``first`` says."""
    return PartitionRotation(clock, lambda: first)


def heads(
    known: PartitionRotation, clock: Clock, partitions: int, seconds: float, refused: Callable[[int], float]
) -> list[int]:
    """Returns the partitions that come first while a claim begins every millisecond."""
    found: list[int] = []
    for _ in range(round(seconds * 1000)):
        clock.now += 0.001
        head = known.order(QUEUE, partitions, refused)[0]
        if not found or found[-1] != head:
            found.append(head)
    return found


def test_claims_of_a_moment_begin_at_one_partition() -> None:
    """Claims that come within a turn share a partition, and all partitions are asked in the end."""
    clock = Clock()
    known = turns(clock)
    order = known.order(QUEUE, 8, never)
    clock.now += MAX_TURN / 2
    assert known.order(QUEUE, 8, never) == order
    assert sorted(order) == list(range(1, 9))


@given(partitions=st.integers(2, 400), first=st.floats(0, 1, exclude_max=True))
def test_no_partition_starves(partitions: int, first: float) -> None:
    """Every partition comes first within a bounded time, also if all the others always have something to give."""
    clock = Clock()
    known = turns(clock, first)
    longest = max(MAX_ROUND, partitions * MIN_TURN)
    found = heads(known, clock, partitions, 1.3 * longest + 2 * MAX_TURN, never)
    assert set(found) == set(range(1, partitions + 1))


def test_a_partition_with_nothing_to_give_loses_its_turn() -> None:
    """The next claim begins at another one; what is told late of a partition before it changes nothing."""
    clock = Clock()
    known = turns(clock)
    head, following, *_ = known.order(QUEUE, 8, never)
    known.passed(QUEUE, head)
    assert known.order(QUEUE, 8, never)[0] == following
    known.passed(QUEUE, head)
    assert known.order(QUEUE, 8, never)[0] == following


def test_where_another_process_is_at_work_comes_last_for_a_while() -> None:
    """A partition that another process is found at loses its turn, and has one again later."""
    clock = Clock()
    known = turns(clock)
    head = known.order(QUEUE, 8, never)[0]
    clock.now += 0.001
    found_at = clock.now

    def refused(number: int) -> float:
        return found_at if number == head else -1e9

    assert head not in heads(known, clock, 8, AVOIDED - 0.01, refused)
    assert head in heads(known, clock, 8, MAX_ROUND + MAX_TURN, refused)


def test_what_is_used_is_remembered() -> None:
    """Of very many queues those are forgotten that were not claimed from for longest."""
    clock = Clock()
    known = turns(clock, first=0.5)
    clock.now += MAX_ROUND
    first = known.order(QUEUE, 4, never)
    for qid in range(MAX_QUEUES):
        known.order(1000 + qid, 4, never)
        assert known.order(QUEUE, 4, never) is first
