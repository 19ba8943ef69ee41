"""Tests of the bytes of the native protocol."""

from __future__ import annotations

import io
import struct

import pytest
from cassandra import ConsistencyLevel
from cassandra.protocol import BatchMessage, OverloadedErrorMessage, PreparedQueryNotFound, ReadyMessage
from cassandra.query import BatchStatement, BatchType

from queuey.storage.cassandra.cluster import UNSET, StatementRequest
from queuey.storage.cassandra.protocol import encoding
from queuey.storage.cassandra.protocol.encoding import BrokenFrame, FrameReader, decode_answer
from queuey.storage.cassandra.read.bucket_index import SELECT_FIRST
from tests.sim.cassandra import cql
from tests.sim.cassandra.protocol import frames

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


def test_a_conditional_batch_is_what_the_driver_would_send() -> None:
    """A conditional batch has the driver's bytes: several statements, values of every kind, both consistency levels."""
    request = BatchStatement(batch_type=BatchType.UNLOGGED)
    values = [[b"a", None, UNSET, b""], [b"0123456789"]]
    request._statements_and_parameters = [(True, b"id%d" % n, row) for n, row in enumerate(values)]
    levels = ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_SERIAL
    expected = io.BytesIO()
    BatchMessage(BatchType.UNLOGGED, request._statements_and_parameters, *levels).send_body(expected, 4)
    request.consistency_level, request.serial_consistency_level = levels
    assert encoding.encode_conditional_batch(request) == expected.getvalue()


def test_a_frequent_statement() -> None:
    """A frequent statement has the values that the driver has bound, and its rows are those of the driver."""
    bound = frames.prepared_statement(SELECT_FIRST, "keyspace").bind((7, 1))
    bound.consistency_level = ConsistencyLevel.QUORUM
    sent = encoding.encode_bound(StatementRequest(SELECT_FIRST, (7, 1), timeout=2.0), bound)
    assert encoding.values_of(sent.rows[0]) == [struct.pack(">q", 7), struct.pack(">i", 1)]
    assert (sent.routing_key, sent.timeout) == (bound.routing_key, 2.0)
    rows = [(None, 1, 99, 2), (None, 2, 98, None)]
    assert sent.decode is not None
    assert sent.decode(cql.command(SELECT_FIRST.cql).encode_result(rows)) == rows
