"""Arrow rows of a write: checks the columns of a frame, and divides the rows of a task into chunks.

Chunks do not depend on how Spark divides rows into Arrow batches: a chunk ends after a number of rows or bytes, so
another attempt of the task has the same chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queuey.spark.errors import OptionError
from queuey.storage.arrow_format import Integers, rows_as_bytes

MAX_CHUNK_ROWS = 10_000
MAX_CHUNK_BYTES = 16 << 20

_INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
_HEADER_TYPES = tuple(f"array<struct<key:string,value:{kind}>>" for kind in ("binary", "string"))
ALLOWED_TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("binary", "string"),
    "queue": ("string",),
    "partition": _INTEGER_TYPES,
    "key": ("string", "binary"),
    "ttl": _INTEGER_TYPES,
    "expires": ("timestamp",),
    "valueType": ("string",),
    "contentType": ("string",),
    "headers": _HEADER_TYPES,
    "id": ("string",),
    "sequence": _INTEGER_TYPES,
    "position": ("string",),
    "timestamp": ("timestamp",),
}
"""Column of a write -> allowed types."""
_ALIASES = {"body": "value", "topic": "queue"}
_NAMES = {name.lower(): name for name in ALLOWED_TYPES} | _ALIASES
_COLUMNS_IMPLIED_BY_ID = ("position", "timestamp")
"""Columns of a read that follow from the id; they are ignored, but need the column ``id``."""
_EXCLUSIVE_COLUMNS = (("id", "sequence"), ("ttl", "expires"))
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class _Schema(Protocol):
    """The required part of Spark's ``StructType``."""

    @property
    def fields(self) -> Sequence[Any]:
        pass


class ColumnLayout(msgspec.Struct, frozen=True):
    """The columns of a write, in the order of the frame. Picklable.

    Attributes:
        columns: Canonical names; empty for columns to ignore.
        text: True if values are text unless their row has another ``valueType``.
    """

    columns: tuple[str, ...]
    text: bool

    def __contains__(self, name: str) -> bool:
        return name in self.columns


def read_layout(schema: _Schema, *, queue: str | None) -> ColumnLayout:
    """Checks the schema of a frame that is to be written. Case does not matter in names, and aliases are resolved.

    Args:
        schema: Spark's ``StructType``.
        queue: The option ``queue``; if given, a column ``queue`` is ignored.

    Raises:
        OptionError: A column is missing, unknown, repeated or of a wrong type, or excludes another one.
    """
    types: dict[str, str] = {}
    for field in schema.fields:
        name = _NAMES.get(field.name.lower())
        if name is None:
            raise OptionError(f"A write has no column {field.name!r}; it can have {', '.join(ALLOWED_TYPES)}.")
        if name in types:
            raise OptionError(f"The frame has the column {name} twice, by name or by its alias.")
        types[name] = kind = re.sub(r"^(var)?char\(\d+\)$", "string", field.dataType.simpleString())
        if kind not in ALLOWED_TYPES[name]:
            raise OptionError(
                f"The column {field.name} is of type {kind}; it can be {' or '.join(ALLOWED_TYPES[name])}."
            )
    _require_valid_combination(types, queue)
    # As with Kafka, the option overrides the column: it names the target when rows of another queue are copied.
    unused = _COLUMNS_IMPLIED_BY_ID if queue is None else (*_COLUMNS_IMPLIED_BY_ID, "queue")
    return ColumnLayout(tuple("" if name in unused else name for name in types), types["value"] == "string")


def _require_valid_combination(types: Mapping[str, str], queue: str | None) -> None:
    if "value" not in types:
        raise OptionError("A write needs a column value, with the bodies of messages.")
    if "queue" not in types and queue is None:
        raise OptionError("A write needs the option queue or a column queue, as the target of rows.")
    for first, second in _EXCLUSIVE_COLUMNS:
        if first in types and second in types:
            raise OptionError(f"The columns {first} and {second} exclude each other: leave one of them out.")
    for name in _COLUMNS_IMPLIED_BY_ID:
        if name in types and "id" not in types:
            raise OptionError(f"The column {name} needs a column id: without it, the write makes new ids.")


class RowChunk(msgspec.Struct, gc=False):
    """A chunk of a task's rows.

    Attributes:
        number: Number of the chunk in the task, from 0.
        first: Number of its first row in the task, from 0, for error messages.
        count: Number of rows.
        columns: Columns by canonical name. Integers have 64 bits, times are microseconds since 1970, and ``value`` is
            binary.
    """

    number: int
    first: int
    count: int
    columns: dict[str, pa.Array]

    def read_values(self, name: str, which: Integers) -> pa.Array:
        """Returns the values of a column in some rows.

        Args:
            name: Name of the column.
            which: Numbers of the rows in the chunk, ascending.
        """
        values = self.columns[name]
        return values if len(which) == self.count else values.take(pa.array(which))

    def encode_rows(self, which: Integers) -> pa.Array:
        """Encodes each row as bytes, which are equal only for equal rows.

        Args:
            which: Numbers of the rows in the chunk, ascending.
        """
        numbers, texts = [], []
        for name in sorted(self.columns):
            column = self.read_values(name, which)
            if pa.types.is_list(column.type):
                column = pa.array(map(_encode, column.to_pylist()), pa.binary())
            if pa.types.is_integer(column.type):
                numbers += [column.fill_null(0), column.is_valid()]
            else:
                numbers.append(pc.fill_null(pc.binary_length(column), -1))
                texts.append(column.cast(pa.binary()).fill_null(b""))
        table = np.empty((len(which), len(numbers)), "<i8")
        for place, column in enumerate(numbers):
            table[:, place] = column.to_numpy(zero_copy_only=False)
        return pc.binary_join_element_wise(rows_as_bytes(table), *texts, pa.scalar(b"", pa.binary()))


def divide_into_chunks(
    batches: Iterable[pa.RecordBatch], layout: ColumnLayout, *, rows: int = MAX_CHUNK_ROWS, size: int = MAX_CHUNK_BYTES
) -> Iterator[RowChunk]:
    """Divides the rows of a task into chunks.

    Args:
        batches: Arrow batches from Spark.
        layout: The columns of the batches.
        rows: Max rows in a chunk.
        size: A chunk ends with the row whose value brings the sum of bytes to this number or above.

    Raises:
        OptionError: A text column is not valid UTF-8.
    """
    held: list[pa.RecordBatch] = []
    number = first = count = used = 0
    where = layout.columns.index("value")
    for whole in batches:
        batch = whole
        while batch.num_rows:
            ends = np.cumsum(_lengths(batch.column(where))) + used
            taken = min(rows - count, int(np.searchsorted(ends, size)) + 1, batch.num_rows)
            held.append(batch.slice(0, taken))
            count, used = count + taken, int(ends[taken - 1])
            batch = batch.slice(taken)
            if count == rows or used >= size:
                yield _make_chunk(held, layout, number, first)
                held, number, first, count, used = [], number + 1, first + count, 0, 0
    if held:
        yield _make_chunk(held, layout, number, first)


def _lengths(column: pa.Array) -> Integers:
    lengths: Integers = pc.binary_length(column).cast(pa.int64()).fill_null(0).to_numpy()
    return lengths


def _make_chunk(batches: list[pa.RecordBatch], layout: ColumnLayout, number: int, first: int) -> RowChunk:
    table = pa.Table.from_batches(batches)
    columns = {name: _normalize_column(table.column(place), name) for place, name in enumerate(layout.columns) if name}
    return RowChunk(number, first, table.num_rows, columns)


def _normalize_column(chunked: pa.ChunkedArray, name: str) -> pa.Array:
    kind = chunked.type
    if pa.types.is_timestamp(kind):
        chunked = chunked.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_integer(kind):
        chunked = chunked.cast(pa.int64())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            chunked.validate(full=True)
        except pa.ArrowInvalid as error:
            raise OptionError(f"The column {name} has text that is not valid UTF-8.") from error
        chunked = chunked.cast(pa.binary() if name == "value" else pa.string())
    elif pa.types.is_large_binary(kind):
        chunked = chunked.cast(pa.binary())
    return chunked.combine_chunks()


def make_row_error(chunk: RowChunk, index: int, column: str, text: str) -> OptionError:
    return OptionError(
        f"Row {chunk.first + index + 1} of this task, column {column}: {text}. Its chunk is not written."
    )
