"""The simulated nodes read what the client writes, and the driver reads their answers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from queuey.messages import LogEntry
from queuey.storage.cassandra.driver import Encoded, Request, Rows, requests
from queuey.storage.cassandra.driver.cql import protocol
from queuey.storage.cassandra.message_codec import RANGE_VALUE_COUNT, SELECT_IDS_UP
from queuey.storage.cassandra.store import claim_logs
from tests.sim.cassandra.protocol import frames

KEYSPACE = "k"
READ = SELECT_IDS_UP[0]
prepare = partial(frames.prepared_statement, keyspace=KEYSPACE)


@pytest.mark.parametrize("snapshot", [None, 3])
def test_an_append_to_a_log(snapshot: int | None) -> None:
    """A conditional batch arrives as it was sent, over the client and through the driver."""
    (statement, values), *further = claim_logs._make_batch((7, 1), LogEntry(4, b"entry"), snapshot, 2)
    request = Request(statement, values, "QUORUM", "SERIAL", further=further)
    batch = requests.bind_request(request, prepare)
    statements = {prepare(one).query_id: one for one, _ in [(statement, values), *further]}
    found = [
        frames.parse_sent(protocol.BATCH, protocol.encode_conditional_batch(batch)).request(statements),
        frames.bound_request(batch, statements),
    ]
    assert [_comparable(one) for one in found] == [_comparable(request)] * 2


def _comparable(request: Request | Encoded) -> tuple[Any, ...]:
    assert isinstance(request, Request)
    calls = [(one, tuple(values)) for one, values in [(request.statement, request.values), *request.further]]
    return calls, request.consistency, request.serial


@pytest.mark.parametrize("rows", [[(True,)], [(False,)], [(False, 7, 1, None, 3)]])
def test_a_decision(rows: Rows) -> None:
    """The driver decodes the answer to such a batch, applied or not."""
    (statement, values), *further = claim_logs._make_batch((7, 1), LogEntry(4, b"entry"), None, None)
    request = Request(statement, values, "QUORUM", "SERIAL", further=further)
    answer = protocol.decode_answer(0, protocol.RESULT, frames.encode_decision(request, rows))
    assert answer.parsed_rows == rows


def test_a_read() -> None:
    """The values of a read arrive as the caller has encoded them."""
    values = b"".join(protocol._encode_value(part) for part in (b"\0" * 8, None, b"text"))
    prepared = prepare(READ)
    body = protocol.encode_execute(prepared.query_id, RANGE_VALUE_COUNT, values, 4)
    request = frames.parse_sent(protocol.EXECUTE, body).request({prepared.query_id: READ})
    assert isinstance(request, Encoded)
    assert (request.statement, request.rows, request.consistency) == (READ, [values], "QUORUM")


def test_whole_requests() -> None:
    """Requests are read when all their bytes have arrived."""
    data = protocol.encode_header(protocol.EXECUTE, b"body", 5) + b"body"
    arrived = bytearray()
    requests = []
    for start in range(len(data)):
        arrived += data[start : start + 1]
        requests += [(start, *request) for request in frames.requests_in(arrived)]
    assert requests == [(len(data) - 1, 5, protocol.EXECUTE, b"body")]
