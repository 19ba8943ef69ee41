"""What a queue's row must say before messages are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.messages import Meta, Queue
from queuey.storage.cassandra import bucketing, message_codec
from queuey.storage.cassandra.catalogue.queue_cache import SHORTEST, Row, covering

HOUR, DAY = 3600, 86400


def row_with(longest_ttl: int) -> Row:
    """The row of a queue that was made with such a TTL."""
    queue = Queue(application="acme", name="q", uid=1, qid=2)
    return Row(queue=queue, home_class=bucketing.class_of(longest_ttl), longest_ttl=longest_ttl, read_at=0.0)


def test_messages_that_a_row_covers_need_nothing() -> None:
    """Nothing is to be done for TTLs up to the queue's own and short rows, nor for no messages at all."""
    row = row_with(DAY)
    assert covering(row, {1, HOUR, DAY}, SHORTEST) is row
    assert covering(row, set(), 0) is row


def test_a_longer_class_needs_no_reach() -> None:
    """Messages that live longer than the queue's class lie in recorded buckets, which are read in full."""
    row = row_with(3 * DAY)
    assert covering(row, {388 * DAY}, 1) is row


def test_a_message_of_a_longer_class_does_not_hide_others() -> None:
    """Of several messages written together, those of the home class are found although another lives longer still."""
    assert covering(row_with(HOUR), {388 * DAY, 5 * HOUR, 2 * HOUR}, 1).longest_ttl >= 5 * HOUR


@given(st.integers(1, 388 * DAY), st.sets(st.integers(1, 388 * DAY), max_size=5), st.integers(1, 4 << 20))
def test_a_row_covers_what_it_was_raised_for(ttl: int, ttls: set[int], size: int) -> None:
    """Every message is within the reach or in a longer class, and no row is longer than the longest; once is enough."""
    row = covering(row_with(ttl), ttls, size)
    assert all(one <= row.longest_ttl or bucketing.class_of(one) > row.home_class for one in ttls)
    assert size <= row.longest_row < max(SHORTEST + 1, 4 * size)
    assert covering(row, ttls, size) is row


@pytest.mark.parametrize("length", [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18])
def test_a_body_as_long_as_a_power_of_two_fits_with_what_goes_with_it(length: int) -> None:
    """Bodies of the usual limits with a content type are not taken for four times as long."""
    meta = Meta("application/json")
    size = message_codec.size_of(*message_codec.encode("x" * length, meta))
    assert covering(row_with(DAY), (), size).longest_row == length * 17 // 16
