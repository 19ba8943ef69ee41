"""The native protocol, version 4, from a node's side: it parses requests and writes answers."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel, cqltypes, type_codes
from cassandra.protocol import ColumnMetadata
from cassandra.query import PreparedStatement

from queuey.storage.cassandra.cluster import Encoded, Rows, Statement, StatementRequest
from queuey.storage.cassandra.protocol.encoding import BATCH, EXECUTE, PROTOCOL
from tests.sim.cassandra import cql
from tests.sim.cassandra.values import CQL_TYPES, SIZE, encode

ERROR, STARTUP, READY, AUTHENTICATE, OPTIONS, SUPPORTED, QUERY = 0, 1, 2, 3, 5, 6, 7
PREPARE, AUTH_RESPONSE, AUTH_SUCCESS = 9, 15, 16
OVERLOADED, BOOTSTRAPPING, UNAVAILABLE, INVALID, UNPREPARED = 0x1001, 0x1002, 0x1000, 0x2200, 0x2500
_CODES = {kind: getattr(type_codes, type_.__name__) for kind, type_ in CQL_TYPES.items()}
_HEADER = struct.Struct(">BBhBi")
_VALUES, _OPTIONAL, _SERIAL = 1, 2 | 4, 0x10
_PREPARED_STATEMENT = 1


def text(words: str) -> bytes:
    return short_bytes(words.encode())


def short_bytes(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def error(code: int, rest: bytes = b"") -> bytes:
    return struct.pack(">i", code) + text("no") + rest


def frame(stream: int, opcode: int, body: bytes) -> bytes:
    return _HEADER.pack(PROTOCOL | 0x80, 0, stream, opcode, len(body)) + body


VERSIONS = b"\0\2" + text("CQL_VERSION") + b"\0\1" + text("3.4.7") + text("COMPRESSION") + b"\0\0"
"""The body of the answer to OPTIONS."""


def encode_prepared(query_id: bytes, markers: int = 0) -> bytes:
    """Returns the answer to PREPARE. A statement with markers, all blobs, has a partition key and returns a blob."""
    parameters, results = struct.pack(">iii", 4, 0, 0), struct.pack(">ii", 4, 0)
    if markers:
        table, column = text("k") + text("t"), text("a") + struct.pack(">H", type_codes.BytesType)
        parameters = struct.pack(">iiiH", 1, markers, 1, 0) + table + column * markers
        results = struct.pack(">ii", 1, 1) + table + column
    return struct.pack(">i", 4) + short_bytes(query_id) + parameters + results


def encode_used_keyspace(keyspace: str) -> bytes:
    return struct.pack(">i", 3) + text(keyspace)


def requests_in(data: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Removes complete requests from the received bytes. Yields stream, opcode and body of each."""
    while len(data) >= _HEADER.size:
        version, flags, stream, opcode, size = _HEADER.unpack_from(data)
        assert (version, flags) == (PROTOCOL, 0)
        end = _HEADER.size + size
        if len(data) < end:
            return
        body = bytes(data[_HEADER.size : end])
        del data[:end]
        yield stream, opcode, body


class Sent(NamedTuple):
    """An EXECUTE or a BATCH.

    Attributes:
        rows: The id of each statement, and its values, each preceded by its length.
        consistency: Name of the consistency level.
        serial: Name of the serial consistency level of a conditional request, else None.
    """

    rows: Sequence[tuple[bytes, bytes]]
    consistency: str
    serial: str | None = None

    def request(self, statements: Mapping[bytes, Statement]) -> StatementRequest | Encoded:
        """Returns the request for the simulated cluster: Encoded, or a StatementRequest if it is conditional or mixed.

        Rows of an answer are returned as its body.
        """
        calls = [(statements[query_id], values) for query_id, values in self.rows]
        first, _ = calls[0]
        if self.serial is not None or any(statement is not first for statement, _ in calls):
            (_, values), *further = [(one, cql.command(one.cql).decode_row(row)) for one, row in calls]
            return StatementRequest(first, values, self.consistency, self.serial, further=further)
        decode = (lambda body: body) if first.reads else None
        count = len(cql.command(first.cql).markers)
        return Encoded(first, count, [values for _, values in calls], b"", self.consistency, decode)


def parse_sent(opcode: int, body: bytes) -> Sent:
    if opcode == EXECUTE:
        query_id, position = _short_bytes_at(body, 0)
        level, flags, count = struct.unpack_from(">HBH", body, position)
        assert flags & ~_SERIAL & ~_OPTIONAL == _VALUES, "values, and no further page"
        begin = end = position + 5
        for _ in range(count):
            end += 4 + max(0, SIZE.unpack_from(body, end)[0])
        serial = _level(struct.unpack(">H", body[-2:])[0]) if flags & _SERIAL else None
        return Sent([(query_id, body[begin:end])], _level(level), serial)
    assert opcode == BATCH
    kind, count = struct.unpack_from(">BH", body)
    assert kind == 1, "unlogged"
    rows, position = [], 3
    for _ in range(count):
        assert body[position] == _PREPARED_STATEMENT
        query_id, position = _short_bytes_at(body, position + 1)
        (values,) = struct.unpack_from(">H", body, position)
        begin = position = position + 2
        for _ in range(values):
            position += 4 + max(0, SIZE.unpack_from(body, position)[0])
        rows.append((query_id, body[begin:position]))
    level, flags = struct.unpack_from(">HB", body, position)
    assert len(body) == position + 3 + 2 * bool(flags & _SERIAL)
    serial = _level(struct.unpack_from(">H", body, position + 3)[0]) if flags & _SERIAL else None
    return Sent(rows, _level(level), serial)


def _short_bytes_at(body: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">H", body, at)
    return body[at + 2 : at + 2 + size], at + 2 + size


def _level(number: int) -> str:
    return str(ConsistencyLevel.value_to_name[number])


def values_of(encoded: bytes) -> list[Any]:
    """Returns values that each stand behind their length; None for those without one."""
    values: list[Any] = []
    offset = 0
    while offset < len(encoded):
        (size,) = SIZE.unpack_from(encoded, offset)
        offset += 4
        values.append(encoded[offset : offset + size] if size >= 0 else None)
        offset += max(0, size)
    return values


def encode_decision(request: StatementRequest, rows: Rows) -> bytes:
    command = next(command for command in _commands(request) if command.conditional)
    names = [*command.table.partition, *command.table.clustering] if request.further else []
    names = command.table.all if command.creates else [*names, *(str(name) for name, *_ in command.demands)]
    columns = [("[applied]", "boolean"), *((name, command.table.types[name]) for name in names)]
    [row] = rows
    described = columns[: len(row)]
    cells = [_cell(kind, value) for (_, kind), value in zip(described, row, strict=True)]
    parts = [text(name) + struct.pack(">H", _CODES[kind]) for name, kind in described]
    return b"".join(
        [struct.pack(">iii", 2, 1, len(described)), text("k"), text(command.table.name), *parts, SIZE.pack(1), *cells]
    )


def _commands(request: StatementRequest) -> list[cql.Command]:
    return [cql.command(statement.cql) for statement, _ in [(request.statement, ()), *request.further]]


def _cell(kind: str, value: Any) -> bytes:  # noqa: ANN401 - of any type
    data = encode(kind, value)
    return SIZE.pack(-1) if data is None else SIZE.pack(len(data)) + data


@lru_cache(maxsize=1000)
def prepared_statement(statement: Statement, keyspace: str) -> PreparedStatement:
    parsed, words = cql.command(statement.cql), statement.qualify_tables(keyspace)
    columns = [ColumnMetadata(keyspace, parsed.table.name, name, _type(kind)) for name, kind in parsed.markers]
    names = [name for name, _ in parsed.markers]
    key = [names.index(name) for name in parsed.table.partition if name in names]
    table, selected = parsed.table, parsed.table.all if parsed.columns == ["*"] else parsed.columns
    results = [(keyspace, table.name, name, _type(parsed.type_of(name))) for name in selected]
    statement_ = PreparedStatement(columns, id_of(words), key, words, keyspace, PROTOCOL, results, None)
    statement_.is_idempotent = statement.idempotent
    return statement_


def id_of(words: str) -> bytes:
    return hashlib.md5(words.encode(), usedforsecurity=False).digest()


def _type(kind: str) -> Any:  # noqa: ANN401 - the driver's
    if kind.startswith("list "):
        return cqltypes.ListType.apply_parameters([_type(kind.removeprefix("list "))])
    return CQL_TYPES.get(kind, cqltypes.BytesType)
