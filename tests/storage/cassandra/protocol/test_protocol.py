"""Tests of the bytes of the native protocol."""

from __future__ import annotations

import io
import struct

import pytest
from cassandra import ConsistencyLevel
from cassandra.cqltypes import BytesType
from cassandra.protocol import (
    BatchMessage,
    ColumnMetadata,
    ExecuteMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ReadyMessage,
)
from cassandra.query import BatchType, BoundStatement, PreparedStatement

from queuey.storage.cassandra.cluster import UNSET
from queuey.storage.cassandra.protocol import encoding
from queuey.storage.cassandra.protocol.encoding import BrokenFrame, FrameReader, decode_answer

READY = 2
ERROR = 0


def answer(stream: int, body: bytes, opcode: int = encoding.RESULT, version: int = 0x84, flags: int = 0) -> bytes:
    return struct.pack(">BBhBi", version, flags, stream, opcode, len(body)) + body


FRAMES = [(0, 0, READY, b""), (32767, 0, encoding.RESULT, encoding.VOID), (-1, 8, 12, b"x" * 70), (5, 0, ERROR, b"yz")]
BYTES = b"".join(answer(stream, body, opcode, flags=flags) for stream, flags, opcode, body in FRAMES)


def test_frames_cut_at_any_two_places() -> None:
    """Wherever the network cuts the bytes, the frames are the same, each as soon as it is complete."""
    ends = [sum(9 + len(frame[3]) for frame in FRAMES[: count + 1]) for count in range(len(FRAMES))]
    for first in range(len(BYTES) + 1):
        for second in range(first, len(BYTES) + 1):
            reader = FrameReader()
            complete = list(reader.feed(BYTES[:first]))
            assert len(complete) == sum(end <= first for end in ends)
            complete += reader.feed(BYTES[first:second])
            assert len(complete) == sum(end <= second for end in ends)
            assert [*complete, *reader.feed(BYTES[second:])] == FRAMES


@pytest.mark.parametrize(
    "header",
    [
        struct.pack(">BBhBi", 0x04, 0, 1, encoding.RESULT, 4),  # A request.
        struct.pack(">BBhBi", 0x85, 0, 1, encoding.RESULT, 4),
        struct.pack(">BBhBi", 0x84, 0, 1, encoding.RESULT, -1),
        struct.pack(">BBhBi", 0x84, 0, 1, encoding.RESULT, encoding.MAX_ANSWER_BYTES + 1),
        b"HTTP/1.1 400 Bad Request",
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 8])
def test_a_spoiled_header_is_refused(header: bytes, cut: int) -> None:
    """A frame of another version, or of an impossible size, ends the reading; earlier answers count."""
    reader = FrameReader()
    frames = reader.feed(answer(1, b"good") + header[:cut])
    assert next(frames) == (1, 0, encoding.RESULT, b"good")
    assert not list(frames)
    with pytest.raises(BrokenFrame):
        list(reader.feed(header[cut:]))


def test_a_long_answer_is_put_together_once() -> None:
    """Ten thousand pieces of one answer are joined once, followed by the next answer."""
    body = bytes(range(250)) * 400
    data = answer(1, body) + answer(2, b"")
    reader = FrameReader()
    complete = [frame for at in range(0, len(data), 10) for frame in reader.feed(data[at : at + 10])]
    assert complete == [(1, 0, encoding.RESULT, body), (2, 0, encoding.RESULT, b"")]


def test_usual_results_stay_bytes_and_the_rest_is_the_drivers() -> None:
    """Rows without column descriptions and void results stay bytes for the caller; errors become the driver's."""
    rows = encoding.ROWS[0] + struct.pack(">ii", 1, 0)
    assert decode_answer(0, encoding.RESULT, rows) is rows
    assert decode_answer(0, encoding.RESULT, encoding.VOID) == encoding.VOID
    assert isinstance(decode_answer(0, READY, b""), ReadyMessage)
    busy = decode_answer(0, ERROR, struct.pack(">iH", 0x1001, 4) + b"busy")
    assert isinstance(busy, OverloadedErrorMessage)
    assert busy.message == "busy"
    forgotten = decode_answer(0, ERROR, struct.pack(">iHH", 0x2500, 0, 2) + b"id")
    assert isinstance(forgotten, PreparedQueryNotFound)
    assert forgotten.info == b"id"


def bind(cql: str, *values: object) -> BoundStatement:
    columns = [ColumnMetadata("k", "t", "a", BytesType)] * len(values)
    prepared = PreparedStatement(columns, cql.encode(), None, cql, "k", 4, [], None)
    return BoundStatement(prepared).bind(values)


@pytest.mark.parametrize("serial", [None, ConsistencyLevel.LOCAL_SERIAL])
def test_a_batch_is_what_the_driver_would_send(serial: int | None) -> None:
    """A batch has the driver's bytes: several statements, values of every kind, both consistency levels."""
    statements = [bind("one", b"a", None, UNSET, b""), bind("two", b"0123456789")]
    rows = [(True, bound.prepared_statement.query_id, bound.values) for bound in statements]
    expected = io.BytesIO()
    BatchMessage(BatchType.UNLOGGED, rows, ConsistencyLevel.QUORUM, serial).send_body(expected, 4)
    assert encoding.encode_mixed_batch(statements, ConsistencyLevel.QUORUM, serial) == expected.getvalue()


@pytest.mark.parametrize("page", [None, b"state"])
@pytest.mark.parametrize("serial", [None, ConsistencyLevel.SERIAL])
def test_a_statement_is_what_the_driver_would_send(serial: int | None, page: bytes | None) -> None:
    """A statement has the driver's bytes, also for a condition and for a further page."""
    bound, level, expected = bind("one", b"a", None, UNSET), ConsistencyLevel.ONE, io.BytesIO()
    query_id = bound.prepared_statement.query_id
    message = ExecuteMessage(query_id, bound.values, level, serial, encoding.PAGE_ROWS, page, skip_meta=False)
    message.send_body(expected, 4)
    assert encoding.encode_bound(bound, level, serial, page) == expected.getvalue()
