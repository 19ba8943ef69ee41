"""The conversion of the stores' columns to the users' columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from queuey.model.ids import EPOCH_TICKS, LOW_MAX, LOW_MIN, TICKS_MAX
from queuey.model.messages import Message, Meta
from queuey.spark.errors import OptionError
from queuey.spark.source import columns
from queuey.storage.arrow_format import SCHEMA, SCHEMA_WITHOUT_BODIES, batch_from_messages

positions = st.tuples(st.integers(0, TICKS_MAX), st.integers(LOW_MIN, LOW_MAX))
metas = st.one_of(
    st.none(),
    st.builds(
        Meta,
        content_type=st.one_of(st.none(), st.text(max_size=5)),
        headers=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2).map(tuple),
        json=st.booleans(),
    ),
)
messages = st.builds(
    lambda position, expires, body, meta: Message(position[0], position[1], 7, expires, body, meta),
    positions,
    st.integers(0, TICKS_MAX),
    st.one_of(st.text(min_size=1, max_size=5), st.binary(min_size=1, max_size=5)),
    metas,
)
WHOLE = columns.arrow_schema(columns.read_schema(headers=True))


def row(message: Message) -> dict[str, object]:
    meta, text = message.meta or Meta(), isinstance(message.body, str)
    return {
        "value": message.body.encode() if isinstance(message.body, str) else message.body,
        "queue": "q",
        "partition": 7,
        "id": message.id,
        "position": columns.position_text(message.position),
        "timestamp": (message.ticks - EPOCH_TICKS) // 10,
        "expires": (message.expires - EPOCH_TICKS) // 10,
        "valueType": "json" if meta.json else "text" if text else "bytes",
        "contentType": meta.content_type,
        "headers": [{"key": key, "value": value.encode()} for key, value in meta.headers] or None,
    }


def seen(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Returns the rows of a batch, with instants as microseconds, because Python's own end too early."""
    batch.validate(full=True)
    instants = {field.name for field in batch.schema if pa.types.is_timestamp(field.type)}
    lists = {
        name: (batch.column(name).view(pa.int64()) if name in instants else batch.column(name)).to_pylist()
        for name in batch.schema.names
    }
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


@given(st.lists(messages, max_size=20))
def test_rows_are_the_messages(stored: list[Message]) -> None:
    """Each row equals the one computed for its message alone."""
    rows = columns.make_rows(batch_from_messages(stored), "q", 7, WHOLE)
    assert rows.schema == WHOLE
    assert seen(rows) == [row(message) for message in stored]


@given(st.lists(messages, min_size=1, max_size=5), st.permutations(WHOLE.names), st.integers(1, len(WHOLE.names)))
def test_some_columns_in_any_order(stored: list[Message], names: list[str], count: int) -> None:
    """A user gets the requested columns in the requested order, whether or not nulls are declared."""
    fields = {field.name: field for field in columns.read_schema(headers=True)}
    chosen = StructType([StructField(name, fields[name].dataType) for name in names[:count]])
    columns.check_schema(chosen, headers=True)
    schema = columns.arrow_schema(chosen)
    rows = columns.make_rows(batch_from_messages(stored, bodies=columns.needs_bodies(schema)), "q", 7, schema)
    assert rows.schema == schema
    assert seen(rows) == [{name: row(message)[name] for name in names[:count]} for message in stored]


@given(st.lists(positions, max_size=20))
def test_order_of_position_texts(places: list[tuple[int, int]]) -> None:
    """Texts of positions sort as the positions do, and convert back to them."""
    texts = [columns.position_text(place) for place in places]
    assert sorted(texts) == [columns.position_text(place) for place in sorted(places)]
    assert [columns.parse_position(text) for text in texts] == places


@pytest.mark.parametrize("text", ["", "0" * 33, "A" * 32, "0" * 31 + "\n"])
def test_no_positions(text: str) -> None:
    """A text that is not a position is refused."""
    with pytest.raises(ValueError, match="is not a position"):
        columns.parse_position(text)


def test_which_columns_need_bodies() -> None:
    """Only columns made from bodies, or stored with them, need bodies to be read."""
    without = {"queue", "partition", "id", "position", "timestamp", "expires"}
    needing = {field.name for field in WHOLE if columns.needs_bodies(pa.schema([field]))}
    assert needing == set(WHOLE.names) - without
    assert columns.read_schema(headers=False).names == WHOLE.names[:-1]
    assert SCHEMA_WITHOUT_BODIES.names == SCHEMA.names[: len(SCHEMA_WITHOUT_BODIES.names)]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "has no columns"),
        ([("headers", StringType())], "no column 'headers' unless option includeHeaders is true"),
        ([("body", StringType())], "no column 'body': it has value, queue,"),
        ([("ID", StringType())], "no column 'ID'"),
        ([("partition", LongType())], "Column 'partition' of a read is of type int, not bigint"),
        ([("id", StringType()), ("id", StringType())], "column 'id' twice"),
    ],
)
def test_wrong_schemas(fields: list[tuple[str, StringType]], says: str) -> None:
    """A schema with an unknown column is refused, by the column's name."""
    with pytest.raises(OptionError, match=says):
        columns.check_schema(StructType([StructField(name, kind) for name, kind in fields]), headers=False)
