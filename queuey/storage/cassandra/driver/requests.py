"""Statements, and how they become requests of the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.query import (
    UNSET_VALUE,
    BatchStatement,
    BatchType,
    BoundStatement,
    PreparedStatement,
    SimpleStatement,
)
from cassandra.query import Statement as DriverStatement

from queuey.errors import StoreUnavailable

# Bound in place of a value, leaves its column alone (None would write a tombstone).
UNSET = UNSET_VALUE

Rows = list[Any]
"""Rows of a result: tuples of Python values."""

Call = tuple["Statement", Sequence[Any]]
Decode = Callable[[bytes], Rows]
"""Makes rows of a result's body."""
Done = Callable[[Rows | None, StoreUnavailable | None], None]
"""Called once, in any thread, with the rows (None of a plain write) or the error."""

LEVELS: dict[str, int] = ConsistencyLevel.name_to_value
"""The driver's numbers of consistency levels."""
_UNLOGGED = BatchType.UNLOGGED
_TABLE = re.compile(r"\b(FROM|INTO|UPDATE) ([a-z][a-z0-9_]*)(?![.\w])")


class Statement(NamedTuple):
    """A statement to be prepared when it is first used.

    Attributes:
        cql: Its text, tables without a keyspace.
        idempotent: It may be sent twice. False for everything with a condition.
        prepared: False for what cannot be prepared (changes of the schema), or whose table may not be there.
        frequent: It is sent over the loop's connections, and its answer is one short page.
    """

    cql: str
    idempotent: bool = True
    prepared: bool = True
    frequent: bool = False

    @classmethod
    def unprepared(cls, cql: str) -> Statement:
        return cls(cql, idempotent=False, prepared=False)

    def within(self, keyspace: str) -> str:
        """Returns its text with its table in a keyspace: nodes warn of prepared statements that leave that open."""
        return _TABLE.sub(rf'\1 "{keyspace}".\2', self.cql)

    @property
    def reads(self) -> bool:
        return self.cql.lstrip()[:6].upper() == "SELECT"


class Request(NamedTuple):
    """A statement with Python values, or an unlogged batch of several that are all of one Cassandra partition.

    Attributes:
        statement: What to run; of a batch, the first.
        values: In the order of its markers.
        consistency: Of the read, the write or the commit of a conditional write.
        serial: ``SERIAL`` or ``LOCAL_SERIAL`` if there is a condition.
        timeout: Seconds for each page of the answer; the options' if None. The call's deadline counts as well, but for
            frequent statements with a timeout of their own.
        host: Address of the node to ask, and no other.
        further: The other statements of a batch.
    """

    statement: Statement
    values: Sequence[Any] = ()
    consistency: str = "QUORUM"
    serial: str | None = None
    timeout: float | None = None
    host: str | None = None
    further: Sequence[Call] = ()

    @property
    def idempotent(self) -> bool:
        return self.statement.idempotent and all(statement.idempotent for statement, _ in self.further)


class Encoded(NamedTuple):
    """A frequent request, its values serialized by the caller: a read of one page, or a write of rows.

    Attributes:
        statement: Reads, or writes one row; idempotent.
        markers: How many values it takes.
        rows: The values of each row, one if it reads: each value behind its length, or -1 for null, -2 for nothing, in
            four bytes. All are of one Cassandra partition.
        routing_key: The partition's key, as it is hashed.
        consistency: Of the read or the write.
        decode: Makes rows of the answer's body; None if it writes.
        timeout: Seconds, whatever time the call has in whose thread it is sent; as long as the call may wait if None.
        host: Address of the only node to ask, once, not through the driver; ``routing_key`` means nothing then.
    """

    statement: Statement
    markers: int
    rows: Sequence[bytes]
    routing_key: bytes
    consistency: str
    decode: Decode | None = None
    timeout: float | None = None
    host: str | None = None


def bound(request: Request, prepare: Callable[[Statement], PreparedStatement]) -> DriverStatement:
    """Returns a request as the driver sends it."""
    level = LEVELS[request.consistency]
    if request.further:
        found = BatchStatement(batch_type=_UNLOGGED, consistency_level=level)
        for statement, values in [(request.statement, request.values), *request.further]:
            found.add(prepare(statement), values)
        found.is_idempotent = request.idempotent
    elif request.statement.prepared:
        found = prepare(request.statement).bind(request.values)
        found.consistency_level = level
    else:
        found = SimpleStatement(request.statement.cql, consistency_level=level)
    if request.serial is not None:
        found.serial_consistency_level = LEVELS[request.serial]
    return found


def raw(
    prepared: PreparedStatement, rows: Sequence[Sequence[Any]], routing_key: bytes, consistency: int, keyspace: str
) -> BatchStatement | BoundStatement:
    """Returns an idempotent request of serialized values: a batch, or a single one if there is one row."""
    if len(rows) == 1:
        request = BoundStatement(prepared, consistency_level=consistency, routing_key=routing_key)
        request.values = list(rows[0])
        request.fetch_size = None
    else:
        request = BatchStatement(batch_type=_UNLOGGED, consistency_level=consistency)
        query_id = prepared.query_id
        request._statements_and_parameters = [(True, query_id, values) for values in rows]  # noqa: SLF001 - a third of the cost
        request.routing_key = routing_key
        request.keyspace = keyspace
    request.is_idempotent = True
    return request
