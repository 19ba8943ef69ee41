"""Messages as Arrow columns: the format of bulk reads and bulk loads.

===========  ==================  ====================================================================
``ticks``    int64               the id's time (:mod:`queuey.model.ids`)
``low``      int64               the id's low half, as in positions
``expires``  int64               ticks
``body``     binary              the body's bytes; text as UTF-8
``meta``     binary, nullable    null: text without metadata; else a byte (0: text, 1: bytes) and, if there is
                                 any, the MessagePack of :class:`~queuey.model.messages.Meta`
===========  ==================  ====================================================================

A batch that is read has one partition, which the caller knows, and ascends by ``(ticks, low)``. Messages to load come
in any order, each with its partition (:class:`MessageColumns`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, cast, overload

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from queuey.model.ids import Position
from queuey.model.messages import Message, Meta, stored_meta
from queuey.storage.new_messages import check_text

SCHEMA_WITHOUT_BODIES = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("ticks", "low", "expires")])
SCHEMA = pa.schema(
    [*SCHEMA_WITHOUT_BODIES, pa.field("body", pa.binary(), nullable=False), pa.field("meta", pa.binary())]
)
TEXT, BYTES = b"\0", b"\1"
"""First byte of ``meta``."""

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Meta).decode


def batch_from_messages(messages: Sequence[Message], *, bodies: bool = True) -> pa.RecordBatch:
    columns: list[Sequence[object]] = [
        [message.ticks for message in messages],
        [message.low for message in messages],
        [message.expires for message in messages],
    ]
    if bodies:
        columns.append([message.body for message in messages])
        columns.append([encode_typed_meta(message.meta, text=isinstance(message.body, str)) for message in messages])
    return batch_from_columns(*columns)


def batch_from_columns(*columns: Sequence[object]) -> pa.RecordBatch:
    schema = SCHEMA if len(columns) == len(SCHEMA) else SCHEMA_WITHOUT_BODIES
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=1024)
def encode_typed_meta(meta: Meta | None, *, text: bool) -> bytes | None:
    if meta is None or meta == Meta():
        return None if text else BYTES
    return (TEXT if text else BYTES) + _encode(stored_meta(meta))


@lru_cache(maxsize=1024)
def decode_typed_meta(column: bytes | None) -> tuple[bool, Meta]:
    """Decodes a value of the column. Returns whether the body is text, and the metadata."""
    if column is None:
        return True, Meta()
    return column[:1] == TEXT, _decode(column[1:]) if len(column) > 1 else Meta()


class MessageColumns(Sequence[Message]):
    """Messages of one queue as columns. As a sequence, it builds each message on access; a slice is again columns."""

    __slots__ = ("batch", "partitions")

    def __init__(self, partitions: Integers, batch: pa.RecordBatch) -> None:
        self.partitions = partitions
        self.batch = batch

    @property
    def ticks(self) -> Integers:
        return cast("Integers", self.batch.column(0).to_numpy())

    @property
    def low(self) -> Integers:
        return cast("Integers", self.batch.column(1).to_numpy())

    @property
    def expires(self) -> Integers:
        return cast("Integers", self.batch.column(2).to_numpy())

    @property
    def places(self) -> list[tuple[int, Position]]:
        positions = zip(self.ticks.tolist(), self.low.tolist(), strict=True)
        return list(zip(self.partitions.tolist(), positions, strict=True))

    def where(self, kept: Mask) -> MessageColumns:
        if kept.all():
            return self
        return MessageColumns(self.partitions[kept], self.batch.filter(pa.array(kept)))

    def take(self, order: Integers) -> MessageColumns:
        return MessageColumns(self.partitions[order], self.batch.take(pa.array(order)))

    def __len__(self) -> int:
        return len(self.partitions)

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> MessageColumns: ...
    def __getitem__(self, place: int | slice) -> Message | MessageColumns:
        numbers = np.arange(len(self))[place]
        if isinstance(place, slice):
            return self.take(numbers)
        return next(iter(self.take(numbers.reshape(1))))

    def __iter__(self) -> Iterator[Message]:
        numbers = (self.partitions, self.ticks, self.low, self.expires)
        texts = map(bytes_values, self.batch.columns[3:])
        for partition, ticks, low, expires, body, column in zip(*(n.tolist() for n in numbers), *texts, strict=True):
            text, decoded = decode_typed_meta(column)
            meta = None if column is None or len(column) == 1 else decoded
            yield Message(ticks, low, partition, expires, body.decode() if text else body, meta)


def columns_of(messages: Iterable[Message]) -> MessageColumns:
    """Converts messages to columns.

    Raises:
        InvalidRequest: A body is not valid Unicode text.
    """
    if isinstance(messages, MessageColumns):
        return messages
    messages = list(messages)
    for message in messages:
        check_text(message.body)
    return MessageColumns(
        np.array([message.partition for message in messages], np.int64), batch_from_messages(messages)
    )


def split_into_chunks(messages: Iterable[Message], max_messages: int) -> Iterator[MessageColumns]:
    """Yields messages as columns, in chunks of at most ``max_messages``.

    Raises:
        InvalidRequest: A body is not valid Unicode text.
    """
    if isinstance(messages, MessageColumns):
        for first in range(0, len(messages), max_messages):
            yield messages[first : first + max_messages]
        return
    remaining = iter(messages)
    while chunk := list(islice(remaining, max_messages)):
        yield columns_of(chunk)


def rows_as_bytes(table: NDArray[Any]) -> pa.Array:
    """Returns each row of a two-dimensional array as one value of a column of bytes. No copy if it is contiguous."""
    offsets = np.arange(len(table) + 1, dtype=np.int32) * np.int32(table.nbytes // max(1, len(table)))
    data = pa.py_buffer(table.reshape(-1).view(np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(table), [None, pa.py_buffer(offsets), data])


def bytes_values(column: pa.Array) -> list[Any]:
    """Returns the values of a column of bytes, three times as fast as Arrow's ``to_pylist``."""
    return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
