"""Messages as Arrow columns: the shape in which bulk reads leave a store.

===========  ==================  ====================================================================
``ticks``    int64               the id's time (:mod:`queuey.ids`)
``low``      int64               the id's low half, as in positions
``expires``  int64               ticks
``body``     binary              the body's bytes; text as UTF-8
``meta``     binary, nullable    null: text without metadata; else a byte (0: text, 1: bytes) and, if there is
                                 any, the MessagePack of :class:`~queuey.messages.Meta`
===========  ==================  ====================================================================

Rows ascend by ``(ticks, low)``. All are of one partition, which the caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from queuey.messages import Message, Meta

PLACES = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("ticks", "low", "expires")])
"""Without bodies."""
SCHEMA = pa.schema([*PLACES, pa.field("body", pa.binary(), nullable=False), pa.field("meta", pa.binary())])
TEXT, BYTES = b"\0", b"\1"
"""First byte of ``meta``."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Meta).decode


def batch_of(messages: Sequence[Message], *, bodies: bool = True) -> pa.RecordBatch:
    """Returns messages as a record batch."""
    columns: list[Sequence[object]] = [
        [message.ticks for message in messages],
        [message.low for message in messages],
        [message.expires for message in messages],
    ]
    if bodies:
        columns.append([message.body for message in messages])
        columns.append([meta_of(message.meta, text=isinstance(message.body, str)) for message in messages])
    return batch_from(*columns)


def batch_from(*columns: Sequence[object]) -> pa.RecordBatch:
    """Returns a record batch of the values of its columns: all five, or the three without bodies."""
    schema = SCHEMA if len(columns) == len(SCHEMA) else PLACES
    arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=1024)
def marked(text: bool, meta: bytes | None) -> bytes | None:  # noqa: FBT001 - mapped over columns
    """Returns the ``meta`` column of a row that holds metadata without the first byte."""
    if text:
        return None if meta is None else TEXT + meta
    return BYTES if meta is None else BYTES + meta


@lru_cache(maxsize=1024)
def meta_of(meta: Meta | None, *, text: bool) -> bytes | None:
    """Returns the ``meta`` column of a message."""
    if meta is None or meta == Meta():
        return None if text else BYTES
    return (TEXT if text else BYTES) + _encode(meta)


@lru_cache(maxsize=1024)
def meta_from(column: bytes | None) -> tuple[bool, Meta]:
    """Returns whether a body is text, and what travels with it."""
    if column is None:
        return True, Meta()
    return column[:1] == TEXT, _decode(column[1:]) if len(column) > 1 else Meta()
