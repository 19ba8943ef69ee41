"""The native protocol, version 4, as a node speaks it: requests that it reads, and answers that it writes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel, cqltypes, type_codes
from cassandra.protocol import ColumnMetadata
from cassandra.query import BatchStatement, PreparedStatement

from queuey.storage.cassandra.driver import Encoded, Request, Rows, Statement
from queuey.storage.cassandra.driver.cql.protocol import BATCH, EXECUTE, PROTOCOL, _value
from tests.sim.cassandra import cql
from tests.sim.cassandra.values import CQL_TYPES, SIZE, encode

ERROR, STARTUP, READY, AUTHENTICATE, OPTIONS, SUPPORTED, QUERY = 0, 1, 2, 3, 5, 6, 7
PREPARE, AUTH_RESPONSE, AUTH_SUCCESS = 9, 15, 16
OVERLOADED, BOOTSTRAPPING, UNAVAILABLE, UNPREPARED = 0x1001, 0x1002, 0x1000, 0x2500
_CODES = {kind: getattr(type_codes, type_.__name__) for kind, type_ in CQL_TYPES.items()}
_HEADER = struct.Struct(">BBhBi")
_SERIAL = 0x10
_PREPARED_STATEMENT = 1


def text(words: str) -> bytes:
    """A string of the protocol."""
    return short_bytes(words.encode())


def short_bytes(data: bytes) -> bytes:
    """Bytes behind their length in two bytes."""
    return struct.pack(">H", len(data)) + data


def error(code: int, rest: bytes = b"") -> bytes:
    """The body of an error."""
    return struct.pack(">i", code) + text("no") + rest


def frame(stream: int, opcode: int, body: bytes) -> bytes:
    """An answer."""
    return _HEADER.pack(PROTOCOL | 0x80, 0, stream, opcode, len(body)) + body


VERSIONS = b"\0\2" + text("CQL_VERSION") + b"\0\1" + text("3.4.7") + text("COMPRESSION") + b"\0\0"
"""The body of the answer to OPTIONS."""


def prepared(query_id: bytes) -> bytes:
    """A result that says under which id a statement is prepared; without columns."""
    return struct.pack(">i", 4) + short_bytes(query_id) + struct.pack(">iiiii", 4, 0, 0, 4, 0)


def used(keyspace: str) -> bytes:
    """The result of USE."""
    return struct.pack(">i", 3) + text(keyspace)


def requests_in(data: bytearray) -> Iterator[tuple[int, int, bytes]]:
    """Takes whole requests out of what has arrived; yields stream, opcode and body of each."""
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
        rows: The id of each statement, and its values, each behind its length.
        consistency: The level's name.
        serial: Name of the level of the condition, if there is one.
    """

    rows: Sequence[tuple[bytes, bytes]]
    consistency: str
    serial: str | None = None

    def request(self, statements: Mapping[bytes, Statement]) -> Request | Encoded:
        """Returns it as the simulated cluster takes requests; the rows of an answer are its body."""
        found = [(statements[query_id], values) for query_id, values in self.rows]
        first, _ = found[0]
        if self.serial is not None or any(statement is not first for statement, _ in found):
            (_, values), *further = [(one, cql.command(one.cql).decoded(row)) for one, row in found]
            return Request(first, values, self.consistency, self.serial, further=further)
        decode = (lambda body: body) if first.reads else None
        count = len(cql.command(first.cql).markers)
        return Encoded(first, count, [values for _, values in found], b"", self.consistency, decode)


def sent(opcode: int, body: bytes) -> Sent:
    """Reads the body of an EXECUTE or a BATCH."""
    if opcode == EXECUTE:
        query_id, at = _short_bytes_at(body, 0)
        level, flags, _ = struct.unpack_from(">HBH", body, at)
        assert flags == 3, "values, and no description of the columns"
        return Sent([(query_id, body[at + 5 :])], _level(level))
    assert opcode == BATCH
    kind, count = struct.unpack_from(">BH", body)
    assert kind == 1, "unlogged"
    rows, at = [], 3
    for _ in range(count):
        assert body[at] == _PREPARED_STATEMENT
        query_id, at = _short_bytes_at(body, at + 1)
        (values,) = struct.unpack_from(">H", body, at)
        begin = at = at + 2
        for _ in range(values):
            at += 4 + max(0, SIZE.unpack_from(body, at)[0])
        rows.append((query_id, body[begin:at]))
    level, flags = struct.unpack_from(">HB", body, at)
    assert len(body) == at + 3 + 2 * bool(flags & _SERIAL)
    serial = _level(struct.unpack_from(">H", body, at + 3)[0]) if flags & _SERIAL else None
    return Sent(rows, _level(level), serial)


def _short_bytes_at(body: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">H", body, at)
    return body[at + 2 : at + 2 + size], at + 2 + size


def _level(number: int) -> str:
    return str(ConsistencyLevel.value_to_name[number])


def bound_request(statement: Any, statements: Mapping[bytes, Statement]) -> Request | Encoded:  # noqa: ANN401
    """Returns a request of the driver, whose values are serialized, as the simulated cluster takes requests.

    Answers to reads are rows, as the driver decodes them.
    """
    if isinstance(statement, BatchStatement):
        given = [(query_id, values) for _, query_id, values in statement._statements_and_parameters]
    else:
        given = [(statement.prepared_statement.query_id, statement.values)]
    rows = [(query_id, b"".join(map(_value, values))) for query_id, values in given]
    serial = statement.serial_consistency_level
    found = Sent(rows, _level(statement.consistency_level), None if serial is None else _level(serial))
    request = found.request(statements)
    return request._replace(decode=None) if isinstance(request, Encoded) else request


def decision(request: Request, rows: Rows) -> bytes:
    """The result of a conditional batch: whether it was applied, and what was there if not; with its columns."""
    one = next(one for one in _commands(request) if one.conditional)
    names = [*one.table.partition, *one.table.clustering] if request.further else []
    columns = [("[applied]", "boolean")]
    columns += [(name, one.table.types[name]) for name in [*names, *(str(name) for name, *_ in one.demands)]]
    [row] = rows
    described = columns[: len(row)]
    cells = [_cell(kind, value) for (_, kind), value in zip(described, row, strict=True)]
    parts = [text(name) + struct.pack(">H", _CODES[kind]) for name, kind in described]
    return b"".join(
        [struct.pack(">iii", 2, 1, len(described)), text("k"), text(one.table.name), *parts, SIZE.pack(1), *cells]
    )


def _commands(request: Request) -> list[cql.Command]:
    return [cql.command(statement.cql) for statement, _ in [(request.statement, ()), *request.further]]


def _cell(kind: str, value: Any) -> bytes:  # noqa: ANN401 - of any type
    data = encode(kind, value)
    return SIZE.pack(-1) if data is None else SIZE.pack(len(data)) + data


@lru_cache(maxsize=1000)
def prepared_statement(statement: Statement, keyspace: str) -> PreparedStatement:
    """Returns a statement as the driver has it when a node has prepared it."""
    one, words = cql.command(statement.cql), statement.within(keyspace)
    columns = [ColumnMetadata(keyspace, one.table.name, name, _type(kind)) for name, kind in one.markers]
    names = [name for name, _ in one.markers]
    key = [names.index(name) for name in one.table.partition if name in names]
    table, selected = one.table, one.table.all if one.columns == ["*"] else one.columns
    results = [(keyspace, table.name, name, _type(table.types.get(name, ""))) for name in selected]
    found = PreparedStatement(columns, id_of(words), key, words, keyspace, PROTOCOL, results, None)
    found.is_idempotent = statement.idempotent
    return found


def id_of(words: str) -> bytes:
    """Returns the id under which nodes prepare a statement."""
    return hashlib.md5(words.encode(), usedforsecurity=False).digest()


def _type(kind: str) -> Any:  # noqa: ANN401 - the driver's
    if kind.startswith("list "):
        return cqltypes.ListType.apply_parameters([_type(kind.removeprefix("list "))])
    return CQL_TYPES.get(kind, cqltypes.BytesType)
