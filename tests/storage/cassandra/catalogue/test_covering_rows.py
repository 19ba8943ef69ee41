"""The fields that a queue's row must have before messages are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.messages import Meta, Queue
from queuey.storage.cassandra.catalogue.queue_cache import MIN_LONGEST_ROW, CachedQueue, make_covering_row
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.time import bucketing

HOUR, DAY = 3600, 86400


def row_with(longest_ttl: int) -> CachedQueue:
    queue = Queue(application="acme", name="q", uid=1, qid=2)
    return CachedQueue(queue=queue, home_class=bucketing.class_of(longest_ttl), longest_ttl=longest_ttl, read_at=0.0)


@given(st.integers(1, 388 * DAY), st.sets(st.integers(1, 388 * DAY), max_size=5), st.integers(1, 4 << 20))
def test_a_row_covers_what_it_was_raised_for(ttl: int, ttls: set[int], size: int) -> None:
    """A raised row covers every message, by its reach or a longer class, up to the longest; raising once is enough."""
    row = make_covering_row(row_with(ttl), ttls, size)
    assert all(one <= row.longest_ttl or bucketing.class_of(one) > row.home_class for one in ttls)
    assert size <= row.longest_row < max(MIN_LONGEST_ROW + 1, 4 * size)
    assert make_covering_row(row, ttls, size) is row


@pytest.mark.parametrize("length", [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18])
def test_a_body_as_long_as_a_power_of_two_fits_with_what_goes_with_it(length: int) -> None:
    """A body as long as a power of two, with its metadata, does not count as four times as long."""
    meta = Meta("application/json")
    size = message_codec.row_size(*message_codec.encode("x" * length, meta))
    assert make_covering_row(row_with(DAY), (), size).longest_row == length * 17 // 16
