"""The fetched messages, their weight, and the order in which they are handed out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qdo.consumer.buffer import FetchBuffer, divide_equally, estimate_bytes
from qdo.group.offsets import PartitionOwnership
from qdo.group.records import CommittedOffset, SessionOffset
from qdo.partitions import Partition
from tests.qdo.unit.samples import ONE, message, messages


def make_opened_row(partition: Partition) -> PartitionOwnership:
    """Returns a partition that may be handed out."""
    row = PartitionOwnership(partition, SessionOffset(partition, CommittedOffset(), 1))
    row.set_position(None)
    row.opened = True
    return row


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.integers(0, 300))
def test_shares_are_fair_and_leave_nothing(counts: list[int], more: int) -> None:
    """Shares add up to the limit, none exceeds its backlog, and a smaller share than another's is a whole backlog."""
    most = len(counts) + more
    shares = divide_equally(counts, most)
    assert sum(shares) == min(most, sum(counts))
    assert all(0 < got <= count for got, count in zip(shares, counts, strict=True))
    equal = most // len(counts)
    assert all(got == count for got, count in zip(shares, counts, strict=True) if got < equal)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30),
)
def test_what_is_given_is_what_was_taken_in_order(chunks: list[int], steps: list[tuple[int, bool]]) -> None:
    """Messages handed out in portions of any size, and put back at any point, are not lost, doubled or reordered."""
    buffer, row = FetchBuffer(), make_opened_row(ONE)
    total = sum(chunks)
    end = 0
    for size in chunks:
        buffer.put(row, messages(end + 1, end + size))
        end += size
    given_out = []
    for most, back in steps:
        if not buffer.count:
            break
        before = row.count
        (taken,) = buffer.take(most)
        assert 1 <= len(taken.messages) <= most
        assert row.count == buffer.count == before - len(taken.messages)
        if back:
            assert buffer.hand_out([taken], stopped=True) == []
            assert row.count == buffer.count == before
        else:
            given_out += taken.messages
    rest = buffer.take(total)[0].messages if buffer.count else []
    assert given_out + rest == messages(1, total)
    assert (row.count, row.size, buffer.size) == (0, 0, 0)


def test_bodies_of_all_kinds_are_weighed() -> None:
    """Text, bytes and JSON count by their length; a number too large for packing is not an error."""
    light = estimate_bytes([message(1, body="x" * 10)])
    assert estimate_bytes([message(1, body="x" * 1010)]) - light in range(1000, 1010)
    assert estimate_bytes([message(1, body=b"x" * 100_000)]) >= 100_000
    assert estimate_bytes([message(1, body={"list": ["x" * 100] * 10})]) >= 1000
    assert estimate_bytes([message(1, body=10**500)]) >= 500
