"""Tests of messages as columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.errors import InvalidRequest
from queuey.model.ids import Position
from queuey.model.messages import Message, Meta
from queuey.storage.arrow_format import columns_of, split_into_chunks
from tests import strategies
from tests.storage.cassandra.statements.test_message_codec import longs, metas

MESSAGES = st.lists(
    st.tuples(
        strategies.positions(), st.integers(1, 200), longs, strategies.bodies(), st.none() | metas.filter(Meta().__ne__)
    ),
    max_size=12,
)


def made(rows: list[tuple[Position, int, int, str | bytes, Meta | None]]) -> list[Message]:
    return [Message(*position, partition, expires, body, meta) for position, partition, expires, body, meta in rows]


@given(MESSAGES, st.integers(1, 5))
def test_columns_are_a_sequence_of_the_messages(
    rows: list[tuple[Position, int, int, str | bytes, Meta | None]], most: int
) -> None:
    """Columns, whole, in slices, one by one or by a mask, give the same as the messages."""
    messages = made(rows)
    columns = columns_of(messages)
    assert list(columns) == messages
    assert [columns[place] for place in range(len(messages))] == messages
    assert list(columns[1::2]) == messages[1::2]
    assert columns.places == [(message.partition, message.position) for message in messages]
    mask = np.arange(len(messages)) % 3 > 0
    assert list(columns.where(mask)) == [one for place, one in enumerate(messages) if place % 3]
    for sequence in (messages, columns):
        pieces = list(split_into_chunks(sequence, most))
        assert [one for piece in pieces for one in piece] == messages
        assert all(0 < len(piece) <= most for piece in pieces)


def test_text_that_has_no_bytes_is_refused() -> None:
    """A lone surrogate, which JSON can write and UTF-8 cannot, is refused as in loads of other stores."""
    with pytest.raises(InvalidRequest):
        columns_of([Message(0, 0, 1, 1, "\ud800")])
