"""Converts the columns of a store to the columns of a read, with Arrow and NumPy.

No Python object is created for a row. Only the distinct values of the metadata are decoded, which are few.
"""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from queuey.model.ids import EPOCH_TICKS, FLIP, LOW_MIN, Position
from queuey.model.messages import Meta
from queuey.spark.errors import OptionError
from queuey.storage.arrow_format import decode_typed_meta

TICKS_PER_MICROSECOND = 10
HEADERS = "headers"
_BODY_COLUMNS = frozenset({"value", "valueType", "contentType", HEADERS})
"""Columns that need bodies and their metadata."""
_HEADER_TYPE = StructType(
    [StructField("key", StringType(), nullable=False), StructField("value", BinaryType(), nullable=False)]
)
_COLUMN_TYPES: dict[str, DataType] = {
    "value": BinaryType(),
    "queue": StringType(),
    "partition": IntegerType(),
    "id": StringType(),
    "position": StringType(),
    "timestamp": TimestampType(),
    "expires": TimestampType(),
    "valueType": StringType(),
    "contentType": StringType(),
    HEADERS: ArrayType(_HEADER_TYPE, containsNull=False),
}
_NULLABLE_COLUMNS = frozenset({"contentType", HEADERS})
_POSITION = re.compile(r"[0-9a-f]{32}")

_SIGN_BIT = np.uint64(1 << 63)
_BYTES_AS_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
"""The two hex digits of each byte value, as they are in memory."""
_POSITION_DIGITS = 32

Integers = NDArray[np.int64]


def read_schema(*, headers: bool) -> StructType:
    """Returns all columns of a read.

    Args:
        headers: Include the column ``headers``, which is null for messages without headers.
    """
    names = [name for name in _COLUMN_TYPES if headers or name != HEADERS]
    return StructType([StructField(name, _COLUMN_TYPES[name], nullable=name in _NULLABLE_COLUMNS) for name in names])


def check_schema(schema: StructType, *, headers: bool) -> None:
    """Checks that a schema has only columns of a read, in any order.

    Raises:
        OptionError: The schema is empty, or a column is unknown, repeated, or of another type.
    """
    allowed = {field.name: field.dataType for field in read_schema(headers=headers)}
    if not schema.fields:
        raise OptionError(f"The schema of a read has no columns; it can have {', '.join(allowed)}.")
    seen: set[str] = set()
    for field in schema:
        if field.name not in allowed:
            hint = " unless option includeHeaders is true" if field.name == HEADERS else ""
            raise OptionError(f"A read has no column {field.name!r}{hint}: it has {', '.join(allowed)}.")
        requested, kind = field.dataType.simpleString(), allowed[field.name].simpleString()
        if requested != kind:
            raise OptionError(f"Column {field.name!r} of a read is of type {kind}, not {requested}.")
        if field.name in seen:
            raise OptionError(f"The schema of a read has column {field.name!r} twice.")
        seen.add(field.name)


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def needs_bodies(schema: pa.Schema) -> bool:
    return not _BODY_COLUMNS.isdisjoint(schema.names)


def make_rows(batch: pa.RecordBatch, queue: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    """Converts a batch of messages to the columns of a read.

    Args:
        batch: Messages with the columns in :mod:`queuey.storage.arrow_format`; bodies may be missing if no requested
            column needs them.
        queue: The queue of the messages.
        partition: The partition of the messages.
        schema: The requested columns.
    """
    count = batch.num_rows
    result: dict[str, Any] = {}
    ticks, low = _column_integers(batch, "ticks"), _column_integers(batch, "low")
    for field in schema:
        match field.name:
            case "value":
                result[field.name] = batch.column("body")
            case "queue" | "partition":
                value = queue if field.name == "queue" else partition
                result[field.name] = pa.repeat(pa.scalar(value, field.type), count)
            case "id":
                result[field.name] = id_texts(ticks, low)
            case "position":
                result[field.name] = position_texts(ticks, low)
            case "timestamp":
                result[field.name] = _to_timestamps(ticks, field.type)
            case "expires":
                result[field.name] = _to_timestamps(_column_integers(batch, "expires"), field.type)
    rest = [field for field in schema if field.name not in result]
    if rest:
        result |= _metadata_columns(batch.column("meta"), rest)
    return pa.RecordBatch.from_arrays([result[field.name] for field in schema], schema=schema)


def position_texts(ticks: Integers, low: Integers) -> pa.Array:
    """Returns each position as 32 hex digits, which sort as positions do."""
    return _hex_texts(ticks.view(np.uint64), low.view(np.uint64) ^ _SIGN_BIT)


def id_texts(ticks: Integers, low: Integers) -> pa.Array:
    """Returns each message's id as 32 hex digits, which do not sort as positions do."""
    time = ticks.view(np.uint64)
    version = np.uint64(0x1000)
    high = (
        ((time & np.uint64(0xFFFFFFFF)) << np.uint64(32))
        | (((time >> np.uint64(32)) & np.uint64(0xFFFF)) << np.uint64(16))
        | version
        | (time >> np.uint64(48))
    )
    return _hex_texts(high, low.view(np.uint64) ^ np.uint64(FLIP))


def position_text(position: Position) -> str:
    ticks, low = position
    return f"{ticks:016x}{low - LOW_MIN:016x}"


def parse_position(text: str) -> Position:
    """Parses a position.

    Raises:
        ValueError: The text is not a position.
    """
    if _POSITION.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a position: 32 hex digits in lower case")
    return int(text[:16], 16), int(text[16:], 16) + LOW_MIN


def _column_integers(batch: pa.RecordBatch, name: str) -> Integers:
    return cast("Integers", batch.column(name).to_numpy())


def _to_timestamps(ticks: Integers, kind: pa.DataType) -> pa.Array:
    return pa.array((ticks - EPOCH_TICKS) // TICKS_PER_MICROSECOND, pa.int64()).view(kind)


def _hex_texts(high: NDArray[np.uint64], low: NDArray[np.uint64]) -> pa.Array:
    count = len(high)
    halves = np.empty((count, 2), ">u8")
    halves[:, 0], halves[:, 1] = high, low
    digits = _BYTES_AS_HEX[halves.view(np.uint8)]
    offsets = np.arange(0, (count + 1) * _POSITION_DIGITS, _POSITION_DIGITS, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])


def _metadata_columns(meta: pa.Array, fields: list[pa.Field]) -> dict[str, pa.Array]:
    if meta.null_count == len(meta):
        return {
            field.name: pa.repeat(pa.scalar(_meta_value(field.name, text=True, meta=Meta()), field.type), len(meta))
            for field in fields
        }
    encoded = meta.dictionary_encode()
    # The place after the last distinct value is for null, which means a text without metadata.
    decoded = [decode_typed_meta(value) for value in (*encoded.dictionary.to_pylist(), None)]
    places = encoded.indices.fill_null(len(decoded) - 1)
    return {
        field.name: pa.array(
            [_meta_value(field.name, text=text, meta=value) for text, value in decoded], field.type
        ).take(places)
        for field in fields
    }


def _meta_value(name: str, *, text: bool, meta: Meta) -> object:
    if name == "valueType":
        return "json" if meta.json else "text" if text else "bytes"
    if name == "contentType":
        return meta.content_type
    return [{"key": key, "value": value.encode()} for key, value in meta.headers] or None
