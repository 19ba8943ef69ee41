"""Tests of rows encoded column by column."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.ids import Position
from queuey.model.messages import Message, Meta
from queuey.storage.arrow_format import columns_of
from queuey.storage.cassandra.statements import message_codec
from queuey.storage.cassandra.write.bulk_load import encode_inserts
from tests import strategies
from tests.storage.cassandra.statements.test_message_codec import longs, metas

ROWS = st.lists(
    st.tuples(
        strategies.positions(),
        strategies.bodies(),
        st.none() | metas,
        st.tuples(st.integers(1, 200), longs, longs, longs, st.integers(1, 1 << 30)),
    ),
    max_size=8,
)
Row = tuple[Position, str | bytes, Meta | None, tuple[int, int, int, int, int]]


@given(ROWS, longs)
def test_rows_are_encoded_as_one_by_one(rows: list[Row], qid: int) -> None:
    """Rows encoded by columns have the same bytes as those of the codec of single messages."""
    expected = []
    for position, body, meta, (partition, bucket, expires, stamp, ttl) in rows:
        data, column = message_codec.encode(body, meta)
        kept = column if isinstance(column, bytes) else b"\0"
        key = message_codec.key_of(qid, partition, bucket)
        expected.append(message_codec.encode_insert(key, position, data, expires, kept, stamp, ttl))
    messages = columns_of(
        Message(*position, numbers[0], numbers[2], body, meta) for position, body, meta, numbers in rows
    )
    numbers = np.array([row[3] for row in rows], np.int64).reshape(-1, 5).T
    buckets, stamps, ttls = (np.ascontiguousarray(numbers[place]) for place in (1, 3, 4))
    assert encode_inserts(qid, messages.partitions, buckets, messages.batch, stamps, ttls) == expected
