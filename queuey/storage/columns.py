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
    columns = [
        pa.array([message.ticks for message in messages], pa.int64()),
        pa.array([message.low for message in messages], pa.int64()),
        pa.array([message.expires for message in messages], pa.int64()),
    ]
    if not bodies:
        return pa.RecordBatch.from_arrays(columns, schema=PLACES)
    texts = [message.body.encode() if isinstance(message.body, str) else message.body for message in messages]
    metas = [meta_of(message.meta, text=isinstance(message.body, str)) for message in messages]
    columns += [pa.array(texts, pa.binary()), pa.array(metas, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


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
