"""Statements, and requests made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.query import UNSET_VALUE

from queuey.model.errors import StoreUnavailable

# A value to bind that leaves its column unchanged (None would write a tombstone).
UNSET = UNSET_VALUE

Rows = list[Any]
"""Rows of a result: tuples of Python values."""

Call = tuple["Statement", Sequence[Any]]
Decode = Callable[[bytes], Rows]
Done = Callable[[Rows | None, StoreUnavailable | None], None]
"""Called once, in any thread, with the rows (None for a plain write) or the error."""

LEVELS: dict[str, int] = ConsistencyLevel.name_to_value
"""The driver's numbers of consistency levels."""
_TABLE = re.compile(r"\b(FROM|INTO|UPDATE) ([a-z][a-z0-9_]*)(?![.\w])")


class Statement(NamedTuple):
    """A statement that is prepared when it is first used.

    Attributes:
        cql: Text, with tables that name no keyspace.
        idempotent: The statement may be sent twice. False for every statement with a condition.
        prepared: False for schema changes, which cannot be prepared. They go through the driver.
    """

    cql: str
    idempotent: bool = True
    prepared: bool = True

    @classmethod
    def make_unprepared(cls, cql: str) -> Statement:
        return cls(cql, idempotent=False, prepared=False)

    def qualify_tables(self, keyspace: str) -> str:
        return _TABLE.sub(rf'\1 "{keyspace}".\2', self.cql)

    @property
    def reads(self) -> bool:
        return self.cql.lstrip()[:6].upper() == "SELECT"


class StatementRequest(NamedTuple):
    """A statement with Python values, or an unlogged batch of statements for one Cassandra partition.

    Attributes:
        statement: The statement, or the first one of a batch.
        values: Values in the order of the statement's markers.
        consistency: Consistency level of the read, the write or the commit of a conditional write.
        serial: ``SERIAL`` or ``LOCAL_SERIAL`` if there is a condition.
        timeout: Seconds for each page of the answer; the options' timeout if None. The call's deadline counts as well.
        host: Address of the only node to ask.
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
    """A request with values serialized by the caller: a read of one page, or a write of rows.

    Attributes:
        statement: Reads, or writes one row. It is idempotent.
        markers: Number of values that the statement takes.
        rows: The values of each row; a read has one. Before each value stands its length in four bytes: -1 means null,
            -2 means unset. All rows belong to one Cassandra partition.
        routing_key: The partition's key, as it is hashed.
        consistency: Consistency level of the read or the write.
        decode: Decodes the rows of the answer's body; None for a write.
        timeout: Seconds, whatever time is left to the call that sends it; the remaining time of that call if None.
        host: Address of the only node to ask. ``routing_key`` is then ignored.
    """

    statement: Statement
    markers: int
    rows: Sequence[bytes]
    routing_key: bytes
    consistency: str
    decode: Decode | None = None
    timeout: float | None = None
    host: str | None = None
