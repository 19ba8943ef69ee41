"""Message rows: their statements, and messages as their columns."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from queuey.ids import Position
from queuey.messages import Message, Meta
from queuey.storage.cassandra.driver import UNSET, Statement
from queuey.storage.cassandra.placement import NAMES

_FLIP = 0x0080808080808080
_MASK = 0xFFFFFFFFFFFFFFFF
_TEXT, _BYTES = b"\0", b"\1"
"""First byte of a ``meta`` column. No column at all: text without metadata."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Meta).decode
_pack_id = struct.Struct(">IHHQ").pack
_unpack_id = struct.Struct(">IHHq").unpack

INSERT = tuple(
    Statement(
        f"INSERT INTO messages_{name} (qid, part, bucket, id, body, expires, meta) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
    )
    for name in NAMES
)
DELETE = tuple(
    Statement(f"DELETE FROM messages_{name} USING TIMESTAMP ? WHERE qid = ? AND part = ? AND bucket = ? AND id = ?")
    for name in NAMES
)
_COLUMNS = "timeuuid_as_blob(id), body, expires, meta"
FETCH = tuple(
    Statement(f"SELECT {_COLUMNS} FROM messages_{name} WHERE qid = ? AND part = ? AND bucket = ? AND id = ?")
    for name in NAMES
)
_RANGE = "WHERE qid = ? AND part = ? AND bucket = ? AND id >= ? AND id <= ?"
UP = tuple(Statement(f"SELECT {_COLUMNS} FROM messages_{name} {_RANGE} LIMIT ?") for name in NAMES)
DOWN = tuple(Statement(f"SELECT {_COLUMNS} FROM messages_{name} {_RANGE} ORDER BY id DESC LIMIT ?") for name in NAMES)
IDS_UP = tuple(
    Statement(f"SELECT timeuuid_as_blob(id), expires FROM messages_{name} {_RANGE} LIMIT ?") for name in NAMES
)
IDS_DOWN = tuple(
    Statement(f"SELECT timeuuid_as_blob(id), expires FROM messages_{name} {_RANGE} ORDER BY id DESC LIMIT ?")
    for name in NAMES
)

COUNT = tuple(Statement(f"SELECT count(id) FROM messages_{name} {_RANGE}") for name in NAMES)


def id_bytes(ticks: int, low: int) -> bytes:
    """Returns an id as Cassandra has it: the 16 bytes of the UUID."""
    return _pack_id(ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, 0x1000 | ticks >> 48, (low & _MASK) ^ _FLIP)


def position_of(data: bytes) -> Position:
    """Returns the position of an id's 16 bytes."""
    first, middle, last, low = _unpack_id(data)
    return (last & 0x0FFF) << 48 | middle << 32 | first, low ^ _FLIP


def uuid_of(position: Position) -> UUID:
    """Returns an id, or a bound between ids, as the driver takes it."""
    return UUID(bytes=id_bytes(*position))


@lru_cache(maxsize=1024)
def _encode_meta(meta: Meta | None, text: bool) -> Any:  # noqa: ANN401, FBT001 - bytes, or the mark for nothing
    if meta is None or meta == Meta():
        return UNSET if text else _BYTES
    return (_TEXT if text else _BYTES) + _encode(meta)


def encode(body: str | bytes, meta: Meta | None) -> tuple[bytes, Any]:
    """Returns the serialized ``body`` and ``meta`` columns."""
    if isinstance(body, str):
        return body.encode(), UNSET if meta is None else _encode_meta(meta, text=True)
    return body, _encode_meta(meta, text=False)


@lru_cache(maxsize=1024)
def _decode_meta(data: bytes) -> tuple[bool, Meta | None]:
    return data[:1] == _TEXT, _decode(data[1:]) if len(data) > 1 else None


def message(row: Any, partition: int) -> Message:  # noqa: ANN401 - a row of the driver
    """Returns the message of a row (id, body, expires, meta)."""
    data, body, expires, meta = row
    first, middle, last, low = _unpack_id(data)
    ticks = (last & 0x0FFF) << 48 | middle << 32 | first
    if meta is None:
        return Message(ticks, low ^ _FLIP, partition, expires, body.decode())
    text, found = _decode_meta(meta)
    return Message(ticks, low ^ _FLIP, partition, expires, body.decode() if text else body, found)
