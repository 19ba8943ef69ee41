"""Requests and answers as bytes of the native protocol, version 4, for the few that are made all the time.

Values come serialized, each behind its length, as their caller packs them; see the protocol's specification, sections
4.1.6 (EXECUTE), 4.1.7 (BATCH) and 4.2.5 (RESULT).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from queuey.storage.cassandra.driver.requests import UNSET, Statement

PROTOCOL = 4
EXECUTE, BATCH, RESULT = 0x0A, 0x0D, 0x08
VOID = struct.pack(">i", 1)
"""A result without rows."""
ROWS = struct.pack(">ii", 2, 4), struct.pack(">ii", 2, 5)
"""How a result begins that has rows, no further page and no description of its columns (of one table or not)."""

_HEADER = struct.Struct(">BBhBi")
_short = struct.Struct(">H").pack
_size_at = struct.Struct(">i").unpack_from
_values_and_no_description = b"\x03"
_no_flags = b"\0"
_unlogged = b"\x01"
_prepared = b"\x01"


class Encoded(NamedTuple):
    """A prepared statement with its values.

    Attributes:
        statement: Idempotent.
        markers: How many values it takes.
        values: Each value behind its length, or -1 for null, -2 for nothing, in four bytes.
        routing_key: The partition key, as it is hashed.
    """

    statement: Statement
    markers: int
    values: bytes
    routing_key: bytes


def frame(opcode: int, body: bytes, stream: int) -> bytes:
    """Returns a whole request."""
    return _HEADER.pack(PROTOCOL, 0, stream, opcode, len(body)) + body


def execute(query_id: bytes, count: int, values: bytes, consistency: int) -> bytes:
    """Returns the body of an EXECUTE whose answer is one page without a description of its columns."""
    return b"".join(
        (
            _short(len(query_id)),
            query_id,
            _short(consistency),
            _values_and_no_description,
            _short(count),
            values,
        )
    )


def batch(query_id: bytes, count: int, rows: Sequence[bytes], consistency: int) -> bytes:
    """Returns the body of an unlogged BATCH of one statement with the values of several rows."""
    each = _prepared + _short(len(query_id)) + query_id + _short(count)
    return b"".join((_unlogged, _short(len(rows)), each, each.join(rows), _short(consistency), _no_flags))


def values_of(encoded: bytes) -> list[Any]:
    """Returns serialized values without their lengths, as the driver's own requests take them."""
    found: list[Any] = []
    at = 0
    while at < len(encoded):
        (size,) = _size_at(encoded, at)
        at += 4
        found.append(encoded[at : at + size] if size >= 0 else (None if size == -1 else UNSET))
        at += max(0, size)
    return found
