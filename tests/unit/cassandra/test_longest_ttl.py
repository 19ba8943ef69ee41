"""How far readers must look back for what is being written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from queuey.messages import Queue
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.catalogue.queue_cache import Row, next_longest_ttl
from queuey.storage.cassandra.write.writer import beyond_reach

HOUR, DAY = 3600, 86400


def row_with(longest_ttl: int) -> Row:
    """The row of a queue that was made with such a TTL."""
    queue = Queue(application="acme", name="q", uid=1, qid=2)
    return Row(queue=queue, home_class=bucketing.class_of(longest_ttl), longest_ttl=longest_ttl, read_at=0.0)


def test_ttls_within_reach_need_nothing() -> None:
    """Nothing is to be done for TTLs up to the queue's own, nor for no messages at all."""
    assert beyond_reach(row_with(DAY), {1, HOUR, DAY}) == 0
    assert beyond_reach(row_with(DAY), set()) == 0


def test_a_longer_class_needs_no_reach() -> None:
    """Messages that live longer than the queue's class lie in recorded buckets, which are read in full."""
    assert beyond_reach(row_with(3 * DAY), {388 * DAY}) == 0


def test_a_message_of_a_longer_class_does_not_hide_others() -> None:
    """Of several messages written together, those of the home class are found although another lives longer still."""
    assert beyond_reach(row_with(HOUR), {388 * DAY, 5 * HOUR, 2 * HOUR}) == 5 * HOUR


@given(st.integers(1, 388 * DAY), st.sets(st.integers(1, 388 * DAY), max_size=5))
def test_all_messages_of_the_home_class_are_within_the_raised_reach(ttl: int, ttls: set[int]) -> None:
    """After raising the reach as told, every message is within it or in a longer class."""
    row = row_with(ttl)
    longest = beyond_reach(row, ttls)
    longest_ttl = max(row.longest_ttl, next_longest_ttl(longest, row.home_class) if longest else 0)
    assert all(one <= longest_ttl or bucketing.class_of(one) > row.home_class for one in ttls)
