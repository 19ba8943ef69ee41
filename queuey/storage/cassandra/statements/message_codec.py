"""Message rows: their statements, and how messages are encoded in their columns."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from queuey.model.ids import FLIP, Position
from queuey.model.messages import Location, Message, Meta, NewMessage, stored_meta
from queuey.storage.cassandra.cluster import UNSET, Rows, Statement
from queuey.storage.cassandra.time.bucketing import NAMES

_MASK = 0xFFFFFFFFFFFFFFFF
_TEXT, _BYTES = b"\0", b"\1"
"""First byte of a ``meta`` column. A text without metadata has no such column."""
_NAMED = 2
"""Number added to the first byte if the message was written as the value of a name. The name follows (see
:func:`mark_named`)."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Meta).decode
_pack_id = struct.Struct(">IHHQ").pack
_unpack_id = struct.Struct(">IHHq").unpack

INSERT = tuple(
    Statement(
        f"INSERT INTO messages_{name} (qid, partition, bucket, id, body, expires, meta) "
        "VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
    )
    for name in NAMES
)
DELETE = tuple(
    Statement(
        f"DELETE FROM messages_{name} USING TIMESTAMP ? WHERE qid = ? AND partition = ? AND bucket = ? AND id = ?"
    )
    for name in NAMES
)
COLUMN_COUNT = 4
ROW_OVERHEAD_BYTES = 40
"""Number of bytes of a row in an answer besides body and metadata: id, end, and a length before each column."""
_COLUMNS = "timeuuid_as_blob(id), body, expires, meta"
FETCH = tuple(
    Statement(f"SELECT {_COLUMNS} FROM messages_{name} WHERE qid = ? AND partition = ? AND bucket = ? AND id = ?")
    for name in NAMES
)
_WHERE_RANGE = "WHERE qid = ? AND partition = ? AND bucket = ? AND id >= ? AND id <= ?"
SELECT_UP = tuple(Statement(f"SELECT {_COLUMNS} FROM messages_{name} {_WHERE_RANGE} LIMIT ?") for name in NAMES)
SELECT_DOWN = tuple(
    Statement(f"SELECT {_COLUMNS} FROM messages_{name} {_WHERE_RANGE} ORDER BY id DESC LIMIT ?") for name in NAMES
)
SELECT_IDS_UP = tuple(
    Statement(f"SELECT timeuuid_as_blob(id), expires FROM messages_{name} {_WHERE_RANGE} LIMIT ?") for name in NAMES
)
SELECT_IDS_DOWN = tuple(
    Statement(f"SELECT timeuuid_as_blob(id), expires FROM messages_{name} {_WHERE_RANGE} ORDER BY id DESC LIMIT ?")
    for name in NAMES
)

SELECT_BULK_UP = tuple(
    Statement(f"SELECT id, body, expires, meta FROM messages_{name} {_WHERE_RANGE} LIMIT ?") for name in NAMES
)
SELECT_BULK_IDS_UP = tuple(
    Statement(f"SELECT id, expires FROM messages_{name} {_WHERE_RANGE} LIMIT ?") for name in NAMES
)
ID_COLUMN_COUNT = 2
COUNT = tuple(Statement(f"SELECT count(id) FROM messages_{name} {_WHERE_RANGE}") for name in NAMES)


def id_bytes(ticks: int, low: int) -> bytes:
    return _pack_id(ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, 0x1000 | ticks >> 48, (low & _MASK) ^ FLIP)


_pack_key = struct.Struct(">iqiiiq").pack
_pack_routing = struct.Struct(">HqBHiBHqB").pack
_pack_id_and_size = struct.Struct(">iIHHQi").pack
_pack_rest = struct.Struct(">iqiiqii").pack
_pack_expires = struct.Struct(">iqi").pack
_pack_stamp_and_ttl = struct.Struct(">iqii").pack
_pack_stamp = struct.Struct(">iq").pack
_pack_range = struct.Struct(">i16si16sii").pack
_pack_only_id = struct.Struct(">iIHHQ").pack
_unpack_row_start = struct.Struct(">i16si").unpack_from
_unpack_row_end = struct.Struct(">iqi").unpack_from
_unpack_ticks = struct.Struct(">q").unpack_from
_unpack_shape = struct.Struct(">ii").unpack_from
_unpack_size = struct.Struct(">i").unpack_from
_unpack_end_sizes = struct.Struct(">i8xi").unpack_from
_NULL_SIZE = struct.pack(">i", -1)

INSERT_VALUE_COUNT, DELETE_VALUE_COUNT, RANGE_VALUE_COUNT = 9, 5, 6
"""Number of values that each kind of statement takes."""


def key_of(qid: int, partition: int, bucket: int) -> bytes:
    return _pack_key(8, qid, 4, partition, 8, bucket)


def routing_of(qid: int, partition: int, bucket: int) -> bytes:
    return _pack_routing(8, qid, 0, 4, partition, 0, 8, bucket, 0)


def encode_insert(
    key: bytes,
    position: Position,
    body: bytes,
    expires: int,
    meta: Any,  # noqa: ANN401 - bytes, or the mark for nothing
    stamp: int,
    ttl: int,
) -> bytes:
    ticks, low = position
    head = _pack_id_and_size(
        16, ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, 0x1000 | ticks >> 48, (low & _MASK) ^ FLIP, len(body)
    )
    if meta is UNSET:
        return b"".join((key, head, body, _pack_rest(8, expires, -2, 8, stamp, 4, ttl)))
    return b"".join(
        (key, head, body, _pack_expires(8, expires, len(meta)), meta, _pack_stamp_and_ttl(8, stamp, 4, ttl))
    )


def encode_delete(key: bytes, position: Position, stamp: int) -> bytes:
    ticks, low = position
    return b"".join(
        (
            _pack_stamp(8, stamp),
            key,
            _pack_only_id(16, ticks & 0xFFFFFFFF, (ticks >> 32) & 0xFFFF, 0x1000 | ticks >> 48, (low & _MASK) ^ FLIP),
        )
    )


def encode_range(key: bytes, lower: Position, upper: Position, limit: int) -> bytes:
    """Returns the encoded values of ``SELECT_UP`` and ``SELECT_DOWN``; both bounds are inclusive."""
    return key + _pack_range(16, id_bytes(*lower), 16, id_bytes(*upper), 4, limit)


def find_starts(body: bytes, columns: int) -> list[int]:
    """Returns the offset of each row in an answer's body.

    ``columns`` other than ``COLUMN_COUNT`` means an answer to ``SELECT_IDS_UP`` or ``SELECT_IDS_DOWN``.
    """
    _, count = _unpack_shape(body, 8)
    offset = 16
    offsets = []
    if columns == COLUMN_COUNT:
        body += bytes(8)  # Allows one read of a row's end, even for a last row without values.
        for _ in range(count):
            offsets.append(offset)
            (size,) = _unpack_size(body, offset + 20)
            offset += 24 + size if size > 0 else 24
            expires_size, size = _unpack_end_sizes(body, offset)
            if expires_size < 0:
                (size,) = _unpack_size(body, offset + 4)
                offset -= 8
            offset += 16 + size if size > 0 else 16
        return offsets
    for _ in range(count):
        offsets.append(offset)
        (expires_size,) = _unpack_size(body, offset + 20)
        offset += 24 + max(0, expires_size)
    return offsets


def pack_rows(rows: Rows, columns: int) -> bytes:
    """Encodes rows that came decoded (ids as UUIDs) as they were received."""
    cells = []
    for row in rows:
        values = (row[0].bytes, *row[1:])
        for value in values:
            data = struct.pack(">q", value) if isinstance(value, int) else value
            cells.append(_NULL_SIZE if data is None else struct.pack(">i", len(data)) + data)
    return struct.pack(">iiii", 2, 4, columns, len(rows)) + b"".join(cells)


def decode(body: bytes) -> Rows:
    """Returns id, body, expires and meta of the rows in an answer to ``SELECT_UP`` or ``SELECT_DOWN``.

    Raises ValueError if a row has no body or no end.
    """
    columns, count = _unpack_shape(body, 8)
    if columns != COLUMN_COUNT:
        raise ValueError(f"the answer has {columns} columns, not {COLUMN_COUNT}")
    offset = 16
    rows: Rows = []
    for _ in range(count):
        _, data, size = _unpack_row_start(body, offset)
        offset += 24
        text = body[offset : offset + size]
        expires_size, expires, meta_size = _unpack_row_end(body, offset + size)
        if size < 0 or expires_size != 8:  # noqa: PLR2004 - a bigint's size
            raise ValueError("a row without a body or an end")
        offset += size + 16
        if meta_size < 0:
            rows.append((data, text, expires, None))
        else:
            rows.append((data, text, expires, body[offset : offset + meta_size]))
            offset += meta_size
    return rows


def decode_ids(body: bytes) -> Rows:
    """Returns id and expires (None if it is gone) of the rows in an answer to ``SELECT_IDS_UP`` or ``SELECT_IDS_DOWN``.

    Raises ValueError for another number of columns.
    """
    columns, _ = _unpack_shape(body, 8)
    if columns != ID_COLUMN_COUNT:
        raise ValueError(f"the answer has {columns} columns, not {ID_COLUMN_COUNT}")
    rows: Rows = []
    for offset in find_starts(body, ID_COLUMN_COUNT):
        _, data, size = _unpack_row_start(body, offset)
        rows.append((data, _unpack_ticks(body, offset + 24)[0] if size > 0 else None))
    return rows


def position_of(data: bytes) -> Position:
    first, middle, last, low = _unpack_id(data)
    return (last & 0x0FFF) << 48 | middle << 32 | first, low ^ FLIP


def uuid_of(position: Position) -> UUID:
    return UUID(bytes=id_bytes(*position))


@lru_cache(maxsize=1024)
def _encode_meta(meta: Meta | None, text: bool) -> Any:  # noqa: ANN401, FBT001 - bytes, or the mark for nothing
    if meta is None or meta == Meta():
        return UNSET if text else _BYTES
    return (_TEXT if text else _BYTES) + _encode(stored_meta(meta))


class NamedMeta(Meta, frozen=True, array_like=True, omit_defaults=True):
    name: str = ""


class NamedMessage(Message, gc=False):
    """A message that was written as the value of a name. Only the name's row says whether it still is."""

    name: str = ""


def mark_named(message: NewMessage, name: str) -> NewMessage:
    meta = message.meta or Meta()
    return msgspec.structs.replace(message, meta=NamedMeta(meta.content_type, meta.headers, meta.json, name=name))


def encode(body: str | bytes, meta: Meta | None) -> tuple[bytes, Any]:
    if isinstance(meta, NamedMeta):
        body, plain = encode(body, Meta(meta.content_type, meta.headers, meta.json))
        name = meta.name.encode()
        plain = _TEXT if plain is UNSET else plain
        return body, bytes((plain[0] + _NAMED,)) + len(name).to_bytes(2) + name + plain[1:]
    if isinstance(body, str):
        return body.encode(), UNSET if meta is None else _encode_meta(meta, text=True)
    return body, _encode_meta(meta, text=False)


@lru_cache(maxsize=1024)
def _decode_meta(data: bytes) -> tuple[bool, Meta | None]:
    return data[:1] == _TEXT, _decode(data[1:]) if len(data) > 1 else None


def row_size(body: bytes, meta: Any) -> int:  # noqa: ANN401 - bytes, or the mark for nothing
    return ROW_OVERHEAD_BYTES + len(body) + (0 if meta is UNSET else len(meta))


def decode_message(row: Any, partition: int) -> Message:  # noqa: ANN401 - a row of the driver
    data, body, expires, meta = row
    first, middle, last, low = _unpack_id(data)
    ticks = (last & 0x0FFF) << 48 | middle << 32 | first
    if meta is None:
        return Message(ticks, low ^ FLIP, partition, expires, body.decode())
    name, meta = split_name(meta)
    text, decoded_meta = _decode_meta(meta)
    if text:
        body = body.decode()
    if name is None:
        return Message(ticks, low ^ FLIP, partition, expires, body, decoded_meta)
    return NamedMessage(ticks, low ^ FLIP, partition, expires, body, decoded_meta, name)


def split_name(meta: bytes) -> tuple[str | None, bytes]:
    """Returns the name in a ``meta`` column (None without a mark), and the column as it is without a name."""
    if meta[:1] <= _BYTES:
        return None, meta
    end = 3 + int.from_bytes(meta[1:3])
    return meta[3:end].decode(), bytes((meta[0] - _NAMED,)) + meta[end:]


def decode_alive(rows: Rows, partition: int, now: int) -> list[Message]:
    """Returns the messages of rows (id, body, expires, meta) that are alive at ``now`` (ticks), in order."""
    return [
        Message((last & 0x0FFF) << 48 | middle << 32 | first, low ^ FLIP, partition, expires, body.decode())
        if meta is None
        else decode_message((data, body, expires, meta), partition)
        for data, body, expires, meta in rows
        if expires is not None and expires > now
        for first, middle, last, low in (_unpack_id(data),)
    ]


Marked = dict[str, set[Location]]
"""By name, the locations of messages that were written as its value."""


def collect_marked(messages: Iterable[Message]) -> Marked:
    marked: Marked = {}
    for message in messages:
        if type(message) is NamedMessage:  # Runs for each message of each page: isinstance costs more.
            marked.setdefault(message.name, set()).add((message.partition, message.position))
    return marked
