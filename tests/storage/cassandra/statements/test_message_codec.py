"""Messages as Cassandra's columns, and ids as its bytes."""

from __future__ import annotations

import struct
import uuid
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.ids import Position
from queuey.model.messages import Meta
from queuey.storage.cassandra.cluster import UNSET
from queuey.storage.cassandra.protocol import encoding
from queuey.storage.cassandra.statements import message_codec
from tests import strategies
from tests.sim.cassandra.protocol import frames

metas = st.builds(
    Meta,
    content_type=st.none() | st.text(max_size=20),
    headers=st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3).map(tuple),
    json=st.booleans(),
)


def cassandra_order(data: bytes) -> tuple[int, list[int]]:
    """Returns what TimeUUIDType compares: the time, then the last 8 bytes as signed ones."""
    return UUID(bytes=data).time, [byte - 256 if byte > 127 else byte for byte in data[8:]]


@given(strategies.positions())
def test_ids_read_back(position: Position) -> None:
    """The bytes of an id give its position, also at the edges of every field."""
    data = message_codec.id_bytes(*position)
    assert len(data) == 16
    assert message_codec.position_of(data) == position
    assert data[6] >> 4 == 1, "of version 1, which Cassandra asks of a time UUID"
    assert message_codec.uuid_of(position) == UUID(bytes=data) == UUID(hex=ids.to_hex(position))


@given(strategies.neighbourhoods())
def test_ids_have_cassandras_order(pair: tuple[Position, Position]) -> None:
    """Positions compare as Cassandra compares their ids."""
    left, right = pair
    one, other = message_codec.id_bytes(*left), message_codec.id_bytes(*right)
    assert (left < right) == (cassandra_order(one) < cassandra_order(other))


@given(strategies.time_uuids())
def test_positions_of_time_uuids(value: uuid.UUID) -> None:
    """The bytes of any version 1 UUID are read as the id of its text."""
    assert message_codec.position_of(value.bytes) == ids.parse_id(value.hex)


@pytest.mark.parametrize("meta", [None, Meta()])
def test_plain_text_needs_no_meta_column(meta: Meta | None) -> None:
    """Text without metadata leaves the column empty, so most rows have none."""
    assert message_codec.encode("text", meta) == (b"text", UNSET)


def test_an_empty_mark_reads_as_plain_text() -> None:
    """Loads write a mark for plain text where metadata may have been; it reads as none."""
    decoded = message_codec.decode_message((message_codec.id_bytes(1, 2), b"text", 5, b"\0"), 1)
    assert (decoded.body, decoded.meta) == ("text", None)


# As bytes of the protocol

longs = st.integers(0, (1 << 62) - 1)
keys = st.tuples(longs, st.integers(1, 10_000), longs)


def serialize(*values: int | bytes) -> list[bytes]:
    """Returns values as the driver serializes them: bigints, but for the second, which is an int."""
    return [value if isinstance(value, bytes) else value.to_bytes(8, "big", signed=True) for value in values]


@given(keys)
def test_keys_are_encoded_as_they_are_hashed(key: tuple[int, int, int]) -> None:
    """The encoded key has the same values as the routing key, whose parts end with a zero byte each."""
    qid, part, bucket = (value.to_bytes(size, "big") for value, size in zip(key, (8, 4, 8), strict=True))
    assert frames.values_of(message_codec.key_of(*key)) == [qid, part, bucket]
    parts = [len(value).to_bytes(2, "big") + value + b"\0" for value in (qid, part, bucket)]
    assert message_codec.routing_of(*key) == b"".join(parts)


def answer_of(found: list[tuple[bytes | None, ...]], columns: int = message_codec.COLUMN_COUNT) -> bytes:
    cells = [
        b"\xff\xff\xff\xff" if cell is None else len(cell).to_bytes(4, "big") + cell for row in found for cell in row
    ]
    return encoding.ROWS[0] + columns.to_bytes(4, "big") + len(found).to_bytes(4, "big") + b"".join(cells)


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("followed", [False, True])
def test_half_a_row_is_not_taken_for_a_whole_one(missing: int, *, followed: bool) -> None:
    """A row without a body or an end is rejected wherever it is, so that the driver decodes the answer."""
    whole: list[bytes | None] = [message_codec.id_bytes(1, 2), b"body", *serialize(5), None]
    half = [None if at == missing else cell for at, cell in enumerate(whole)]
    with pytest.raises((ValueError, struct.error)):
        message_codec.decode(answer_of([tuple(half), *([tuple(whole)] * followed)]))


@given(st.lists(st.tuples(strategies.positions(), st.none() | longs), max_size=8))
def test_an_answer_with_ids_only_gives_its_rows(found: list[tuple[Position, int | None]]) -> None:
    """Rows of ids and ends are decoded; a partly overwritten one has no end."""
    rows = [(message_codec.id_bytes(*position), expires) for position, expires in found]
    cells = [(key, *([None] if expires is None else serialize(expires))) for key, expires in rows]
    assert message_codec.decode_ids(answer_of(cells, columns=2)) == rows
    with pytest.raises(ValueError, match="columns"):
        message_codec.decode_ids(answer_of([], columns=4))
