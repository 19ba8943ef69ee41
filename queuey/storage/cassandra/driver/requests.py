"""Statements, and how they become requests of the driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType, BoundStatement, PreparedStatement

from queuey.errors import StoreUnavailable

UNSET = UNSET_VALUE
"""Bound instead of a value, leaves its column alone (None would write a tombstone)."""

Rows = list[Any]
"""Rows of a result: tuples of Python values."""

Call = tuple["Statement", Sequence[Any]]
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
    """

    cql: str
    idempotent: bool = True

    def within(self, keyspace: str) -> str:
        """Returns its text with its table in a keyspace: nodes warn of prepared statements that leave that open."""
        return _TABLE.sub(rf"\1 {keyspace}.\2", self.cql)

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.cql.lstrip()[:6].upper() == "SELECT"


class RowBatch(NamedTuple):
    """Rows of one Cassandra partition that are written by one request.

    Attributes:
        statement: Writes one row.
        rows: Of each its values, serialized.
        values: How many a row has.
        routing_key: The partition's key, as it is hashed.
    """

    statement: Statement
    rows: Sequence[bytes]
    values: int
    routing_key: bytes


def bound(
    prepared: PreparedStatement, values: Sequence[Any], consistency: str, serial: str | None, *, pages: bool
) -> BoundStatement:
    """Returns a request with its values.

    Args:
        prepared: The statement.
        values: Python values in the order of its markers.
        consistency: Of the read, the write or the commit.
        serial: Of the Paxos round of a conditional write.
        pages: The answer may come in several pages.
    """
    request = prepared.bind(values)
    request.consistency_level = LEVELS[consistency]
    if serial is not None:
        request.serial_consistency_level = LEVELS[serial]
    if not pages:
        request.fetch_size = None
    return request


def batch(
    calls: Sequence[tuple[PreparedStatement, Sequence[Any]]], consistency: str, serial: str | None, *, idempotent: bool
) -> BatchStatement:
    """Returns one unlogged batch; all its statements must be of one Cassandra partition."""
    request = BatchStatement(batch_type=_UNLOGGED, consistency_level=LEVELS[consistency])
    if serial is not None:
        request.serial_consistency_level = LEVELS[serial]
    for prepared, values in calls:
        request.add(prepared, values)
    request.is_idempotent = idempotent
    return request


def raw(
    prepared: PreparedStatement, rows: Sequence[Sequence[Any]], routing_key: bytes, consistency: int, keyspace: str
) -> BatchStatement | BoundStatement:
    """Returns an idempotent request of serialized values: a batch, or a single one if there is one row.

    Args:
        prepared: The statement of every row.
        rows: Serialized values of each row.
        routing_key: The partition key all of them share, as the driver composes it.
        consistency: The driver's number.
        keyspace: Of the session.
    """
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
