"""Encodes requests and decodes answers of the native protocol, version 4.

See sections 4.1.6 (EXECUTE), 4.1.7 (BATCH) and 4.2.5 (RESULT) of the protocol's specification. The driver serializes
values, unless the caller has done so, and encodes and decodes rare messages.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from cassandra.connection import ConnectionException
from cassandra.protocol import ProtocolHandler
from cassandra.query import BoundStatement

from queuey.storage.cassandra.protocol.requests import UNSET, Rows

PROTOCOL = 4
RESULT, PREPARE, EXECUTE, BATCH = 0x08, 0x09, 0x0A, 0x0D
VOID = struct.pack(">i", 1)
ROWS = struct.pack(">ii", 2, 4), struct.pack(">ii", 2, 5)
"""Beginnings of a result with rows, without a further page or a description of its columns (of one table or not)."""
PAGE_ROWS = 5000
MAX_ANSWER_BYTES = 256 << 20
"""Max bytes of an answer. Cassandra itself sends less."""

Frame = tuple[int, int, int, bytes]
"""An answer: stream, flags, opcode and body."""

_HEADER = struct.Struct(">BBhBi")
_HEADER_SIZE = 9
_ANSWER = PROTOCOL | 0x80
_unpack_header = _HEADER.unpack_from
_pack_short = struct.Struct(">H").pack
_pack_size = struct.Struct(">i").pack
_unpack_size = struct.Struct(">i").unpack_from
_VALUES_FLAG, _WITHOUT_DESCRIPTION_FLAG, _PAGE_SIZE_FLAG, _PAGE_FLAG, _SERIAL_FLAG = 1, 2, 4, 8, 0x10
_VALUES_WITHOUT_DESCRIPTION_FLAGS = b"\x03"
_NO_FLAGS = b"\0"
_UNLOGGED_BATCH = b"\x01"
_PREPARED_KIND = b"\x01"


class BrokenFrame(ConnectionException):  # type: ignore[misc] # the driver ships no types
    """A node sent bytes that are not an answer; the connection cannot be used any further."""


def encode_header(opcode: int, body: bytes, stream: int) -> bytes:
    return _HEADER.pack(PROTOCOL, 0, stream, opcode, len(body))


def encode_execute(query_id: bytes, count: int, values: bytes, consistency: int) -> bytes:
    """Returns the body of an EXECUTE. Its answer is one page without a description of its columns."""
    return b"".join(
        (
            _pack_short(len(query_id)),
            query_id,
            _pack_short(consistency),
            _VALUES_WITHOUT_DESCRIPTION_FLAGS,
            _pack_short(count),
            values,
        )
    )


def encode_batch(query_id: bytes, count: int, rows: Sequence[bytes], consistency: int) -> bytes:
    prefix = _PREPARED_KIND + _pack_short(len(query_id)) + query_id + _pack_short(count)
    return b"".join(
        (_UNLOGGED_BATCH, _pack_short(len(rows)), prefix, prefix.join(rows), _pack_short(consistency), _NO_FLAGS)
    )


def encode_bound(bound: BoundStatement, consistency: int, serial: int | None, page: bytes | None) -> bytes:
    """Returns the body of an EXECUTE for one page of an answer; ``page`` is the state that the former page ended with.

    Only rows whose columns were described when the statement was prepared come without a description.
    """
    query_id, is_described = bound.prepared_statement.query_id, bool(bound.prepared_statement.result_metadata)
    flags = _VALUES_FLAG | _PAGE_SIZE_FLAG | (_WITHOUT_DESCRIPTION_FLAG if is_described else 0)
    options = _pack_size(PAGE_ROWS)
    if page is not None:
        flags |= _PAGE_FLAG
        options += _encode_value(page)
    if serial is not None:
        flags |= _SERIAL_FLAG
        options += _pack_short(serial)
    return b"".join(
        (
            _pack_short(len(query_id)),
            query_id,
            _pack_short(consistency),
            bytes((flags,)),
            _pack_short(len(bound.values)),
            *map(_encode_value, bound.values),
            options,
        )
    )


def encode_mixed_batch(statements: Sequence[BoundStatement], consistency: int, serial: int | None) -> bytes:
    parts = [_UNLOGGED_BATCH, _pack_short(len(statements))]
    for bound in statements:
        query_id = bound.prepared_statement.query_id
        parts += [_PREPARED_KIND, _pack_short(len(query_id)), query_id, _pack_short(len(bound.values))]
        parts += map(_encode_value, bound.values)
    parts += [_pack_short(consistency), bytes((0 if serial is None else _SERIAL_FLAG,))]
    return b"".join(parts if serial is None else [*parts, _pack_short(serial)])


def decode_rows(metadata: Any, body: bytes) -> Rows:  # noqa: ANN401 - the driver's
    rows: Rows = ProtocolHandler.decode_message(PROTOCOL, {}, 0, 0, RESULT, body, None, metadata).parsed_rows
    return rows


def _encode_value(data: Any) -> bytes:  # noqa: ANN401 - bytes, None or the mark for nothing
    if data is None or data is UNSET:
        return _pack_size(-1 if data is None else -2)
    return _pack_size(len(data)) + bytes(data)


def encode_body(message: Any) -> bytes:  # noqa: ANN401 - of the driver
    body = io.BytesIO()
    message.send_body(body, PROTOCOL)
    return body.getvalue()


def decode_answer(flags: int, opcode: int, body: bytes, metadata: Any = None) -> Any:  # noqa: ANN401 - the driver's
    """Returns a usual result as it is, for the caller to decode, and any other answer as the driver's message.

    Args:
        metadata: The result's columns, for an answer that does not describe them.
    """
    if opcode == RESULT and not flags and (body.startswith(ROWS) or body == VOID):
        return body
    return ProtocolHandler.decode_message(PROTOCOL, {}, 0, flags, opcode, body, None, metadata)


class FrameReader:
    """Splits the bytes of a connection into frames, however the network has cut them."""

    __slots__ = ("_chunks", "_missing")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        """The beginning of an incomplete frame."""
        self._missing = 0
        """Bytes missing until the end of the frame, or of its header."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that these bytes complete. The caller must consume all of them before it feeds more.

        Raises:
            BrokenFrame: A header does not belong to an answer.
        """
        if self._chunks:
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        start, end = 0, len(data)
        while end - start >= _HEADER_SIZE:
            version, flags, stream, opcode, size = _unpack_header(data, start)
            body = start + _HEADER_SIZE
            if version != _ANSWER or not 0 <= size <= MAX_ANSWER_BYTES:
                raise BrokenFrame(f"an answer begins with {data[start:body].hex()}")
            if body + size > end:
                self._missing = body + size - end
                break
            start = body + size
            yield stream, flags, opcode, data[body:start]
        else:
            self._missing = _HEADER_SIZE - (end - start)
        if start < end:
            self._chunks.append(data[start:])
