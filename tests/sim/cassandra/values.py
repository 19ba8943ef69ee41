"""Values as bytes: in requests and answers, and as Cassandra compares them."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from cassandra import cqltypes

SIZE = struct.Struct(">i")
_FORMATS = {
    kind: struct.Struct(text) for kind, text in {"bigint": ">q", "int": ">i", "tinyint": ">b", "double": ">d"}.items()
}

CQL_TYPES = {
    "bigint": cqltypes.LongType,
    "blob": cqltypes.BytesType,
    "boolean": cqltypes.BooleanType,
    "double": cqltypes.DoubleType,
    "int": cqltypes.Int32Type,
    "text": cqltypes.UTF8Type,
    "timeuuid": cqltypes.TimeUUIDType,
    "tinyint": cqltypes.ByteType,
}
"""The driver's types by their CQL names."""


def decode(kind: str, data: bytes) -> Any:  # noqa: ANN401 - of any type
    """Decodes a value of a CQL type, or ``list`` and a type; of an unknown type it is the bytes."""
    if kind.startswith("list "):
        (count,), position, values = SIZE.unpack_from(data), 4, []
        for _ in range(count):
            (size,) = SIZE.unpack_from(data, position)
            values.append(decode(kind.removeprefix("list "), data[position + 4 : position + 4 + size]))
            position += 4 + size
        return values
    if kind in _FORMATS:
        return _FORMATS[kind].unpack(data)[0]
    if kind == "timeuuid":
        return UUID(bytes=data)
    return data.decode() if kind == "text" else data


def encode(kind: str, value: Any) -> bytes | None:  # noqa: ANN401 - of any type
    """Encodes a value of a CQL type, without lists. None and bytes are returned unchanged."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"\1" if value else b"\0"
    if kind in _FORMATS:
        return _FORMATS[kind].pack(value)
    return value.bytes if isinstance(value, UUID) else str(value).encode()


def encode_to_compare(value: Any) -> bytes:  # noqa: ANN401 - of any type
    """Returns the bytes by which Cassandra compares values with equal timestamps. They are compared as unsigned."""
    if isinstance(value, float):
        return struct.pack(">d", value)
    return struct.pack(">q", value) if isinstance(value, int) else encode("", value) or b""
