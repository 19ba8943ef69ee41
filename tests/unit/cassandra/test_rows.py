"""Messages as Cassandra's columns, and ids as its bytes."""

from __future__ import annotations

import uuid
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.ids import Position
from queuey.messages import Message, Meta
from queuey.storage.cassandra import rows
from queuey.storage.cassandra.driver import UNSET
from tests import strategies

metas = st.builds(
    Meta,
    content_type=st.none() | st.text(max_size=20),
    headers=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3).map(tuple),
    json=st.booleans(),
)


def cassandra_order(data: bytes) -> tuple[int, list[int]]:
    """What TimeUUIDType compares: the time, then the last 8 bytes as signed ones."""
    return UUID(bytes=data).time, [byte - 256 if byte > 127 else byte for byte in data[8:]]


@given(strategies.positions())
def test_ids_read_back(position: Position) -> None:
    """The bytes of an id give its position again, also at the edges of every field."""
    data = rows.id_bytes(*position)
    assert len(data) == 16
    assert rows.position_of(data) == position
    assert rows.uuid_of(position) == UUID(bytes=data) == UUID(hex=ids.to_hex(position))


@given(strategies.positions())
def test_every_bound_is_a_time_uuid(position: Position) -> None:
    """Also positions that are no message's id are of version 1, which is all that Cassandra asks of a time UUID."""
    assert rows.id_bytes(*position)[6] >> 4 == 1


@given(strategies.neighbourhoods())
def test_ids_have_cassandras_order(pair: tuple[Position, Position]) -> None:
    """Positions compare as Cassandra compares their ids."""
    left, right = pair
    one, other = rows.id_bytes(*left), rows.id_bytes(*right)
    assert (left < right) == (cassandra_order(one) < cassandra_order(other))


@given(strategies.time_uuids())
def test_positions_of_time_uuids(value: uuid.UUID) -> None:
    """The bytes of any version 1 UUID are read as the id that its text is."""
    assert rows.position_of(value.bytes) == ids.parse_id(value.hex)


@given(strategies.positions(), strategies.bodies(), st.none() | metas, st.integers(1, 100), st.integers(0, 1 << 60))
def test_messages_read_back(
    position: Position, body: str | bytes, meta: Meta | None, partition: int, expires: int
) -> None:
    """A message's columns give it again; no metadata at all is the same as empty ones."""
    data, column = rows.encode(body, meta)
    row = rows.id_bytes(*position), data, expires, None if column is UNSET else column
    found = rows.message(row, partition)
    expected = None if meta == Meta() else meta
    assert found == Message(*position, partition, expires, body, expected)
    assert type(found.body) is type(body)


@pytest.mark.parametrize("meta", [None, Meta()])
def test_plain_text_needs_no_meta_column(meta: Meta | None) -> None:
    """Text without metadata leaves the column alone, so most rows have none."""
    assert rows.encode("text", meta) == (b"text", UNSET)


def test_bytes_that_look_like_text_stay_bytes() -> None:
    """What was posted as bytes comes back as bytes though it could be read as text."""
    data, column = rows.encode(b"text", None)
    assert rows.message((rows.id_bytes(1, 2), data, 5, column), 1).body == b"text"


def test_an_empty_mark_reads_as_plain_text() -> None:
    """Loads write a mark for plain text where metadata may have been; it reads as none."""
    found = rows.message((rows.id_bytes(1, 2), b"text", 5, b"\0"), 1)
    assert (found.body, found.meta) == ("text", None)
