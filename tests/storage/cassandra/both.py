"""Sends the same requests to a real node and to the simulated cluster, whose answers must be equal."""

from __future__ import annotations

import importlib
import math
import pkgutil
import queue
import random
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from queuey.model import ids
from queuey.model.errors import StoreUnavailable
from queuey.storage import cassandra as store
from queuey.storage.cassandra.cluster import UNSET, Driver, Encoded, Rows, Statement, StatementRequest
from queuey.storage.cassandra.statements.lightweight_transactions import DocumentStatements
from queuey.storage.cassandra.statements.message_codec import uuid_of
from queuey.storage.deadlines import Deadline
from tests.sim.cassandra.cluster import Cluster, Machine, NetworkFaults, SimulatedDriver
from tests.sim.cassandra.cql import Command, command
from tests.sim.cassandra.values import CQL_TYPES
from tests.sim.world import Process, World

TIMEOUT = 60.0
"""Timeout for each of the two to answer, in seconds."""
STEP = 0.001
"""Simulated seconds between two checks for an answer."""
NEWER = 5 * 10**15
"""A timestamp later than that of any write without an explicit one."""
TICKS = 139_000_000_000_000_000
POOLS: dict[str, tuple[Any, ...]] = {
    "bigint": (1, -5, 300),
    "int": (1, 2, -3),
    "tinyint": (0, 1, -1),
    "double": (1.5, -0.5),
    "text": ("a", "é", ""),
    "blob": (b"\1", b"\xff\0", b""),
    "timeuuid": tuple(uuid_of((TICKS + more, low)) for more, low in ((0, 5), (0, ids.LOW_MIN), (0, -1), (1 << 32, 0))),
}
"""Values of each type, few, so that writes collide. The first two can be partition keys."""
NEW_VALUES: dict[str, Any] = {
    "bigint": 7777,
    "int": 7,
    "tinyint": 7,
    "text": "new",
    "blob": b"new",
    "timeuuid": uuid_of((TICKS + 7, 0)),
}
"""Values that are not among those above."""
TIMESTAMPS = (1, 2, NEWER, NEWER + 1)
LIMITS = (1, 2, 100)


class PairedClusters:
    """A real node and the simulated cluster, which receive the same requests.

    Args:
        real: The driver of the real node.
    """

    def __init__(self, real: Driver) -> None:
        self.real = real
        self.world = World(0)
        self.world.now = time.time()
        self.weather = NetworkFaults(slow=1e-5)
        process = Process(self.world, 0.0)
        cluster = Cluster(self.world, self.weather)
        self.simulated = SimulatedDriver(cluster, process, Machine(process), Deadline(math.inf), TIMEOUT)

    def ask(self, request: StatementRequest | Encoded) -> Rows:
        """Sends a request to both, and returns their answer, sorted for a scan; fails if they differ.

        For a plain write it is the real node's time of receipt, and only the number of rows is compared.
        """
        expected, actual = self.ask_real(request), self.ask_simulated(request)
        if not request.statement.reads and (isinstance(request, Encoded) or request.serial is None):
            assert len(expected) == len(actual) == 1
            return expected
        if command(request.statement.cql).scans:  # Cassandra orders partitions by the hashes of their keys.
            expected, actual = sorted(expected), sorted(actual)
        assert actual == expected, f"{actual} is not the answer of Cassandra, {expected}: {request}"
        return expected

    def wait(self, seconds: float) -> None:
        """Lets time pass for both; the simulated time may have been ahead."""
        time.sleep(seconds)
        self.world.run(self.world.now + seconds)

    def ask_roughly(self, request: StatementRequest) -> Rows:
        """Sends a request to both, and returns their answer; fails if they differ. Lifetimes are compared roughly."""
        expected, actual = (
            [_round_integers(row) for row in ask(request)] for ask in (self.ask_real, self.ask_simulated)
        )
        assert actual == expected, f"{actual} is not the answer of Cassandra, {expected}: {request}"
        return expected

    def ask_real(self, request: StatementRequest | Encoded) -> Rows:
        answers: queue.SimpleQueue[tuple[Rows | None, StoreUnavailable | None]] = queue.SimpleQueue()
        self.real.send(request, lambda rows, error: answers.put((rows, error)))
        return _rows(*answers.get(timeout=TIMEOUT))

    def ask_simulated(self, request: StatementRequest | Encoded) -> Rows:
        """Returns the answer of the simulated cluster, or raises the error of its driver.

        Before it asks, the simulated time catches up with the real time.
        """
        world = self.world
        world.run(max(world.now, time.time()))
        answers: list[tuple[Rows | None, StoreUnavailable | None]] = []
        self.simulated.send(request, lambda rows, error: answers.append((rows, error)))
        end = world.now + TIMEOUT
        while not answers and world.now < end:
            world.run(world.now + STEP)
        return _rows(*answers[0])


def _rows(rows: Rows | None, error: StoreUnavailable | None) -> Rows:
    if error is not None:
        raise error
    return [one if isinstance(one, bytes) else tuple(one) for one in rows or []]


def _round_integers(row: Sequence[Any]) -> list[Any]:
    return [-(-value // 100) if isinstance(value, int) else value for value in row]


# Statements


@cache
def product_statements() -> tuple[Statement, ...]:
    """Returns all statements in the product's modules, except those about Cassandra's own tables."""
    statements: dict[str, Statement] = {}
    for module in pkgutil.walk_packages(store.__path__, f"{store.__name__}."):
        held = vars(importlib.import_module(module.name)).values()
        statements |= {one.cql: one for one in _statements(held)}
    return tuple(one for cql, one in sorted(statements.items()) if " FROM system" not in cql)


def _statements(some: Iterable[Any]) -> Iterator[Statement]:
    for value in some:
        if isinstance(value, Statement):
            yield value
        elif isinstance(value, tuple | list):
            yield from _statements(value)
        elif isinstance(value, dict):
            yield from _statements(value.values())
        elif isinstance(value, DocumentStatements):
            yield from (value.find, value.change, value.remove)


class TableStatements:
    """The product's statements about a table.

    Attributes:
        all: All of them.
        reads: Selects.
        conditional: Statements with a condition.
        further: Statements that are only sent in a batch with a conditional one.
        plain: All other writes.
    """

    def __init__(self, table: str) -> None:
        self.all = [statement for statement in product_statements() if command(statement.cql).table.name == table]
        self.reads = [one for one in self.all if one.reads]
        self.conditional = [one for one in self.all if command(one.cql).conditional]
        others = [one for one in self.all if one not in {*self.reads, *self.conditional}]
        self.further = [one for one in others if not one.idempotent]
        self.plain = [one for one in others if one.idempotent]


# Values


class Values:
    """Random values for the markers of statements.

    Args:
        seed: Seed of the random values.
    """

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self._lifetimes = iter(range(1000, 10**7, 100))

    def partition(self, one: Command) -> dict[str, Any]:
        return {name: self.rng.choice(POOLS[one.table.types[name]][:2]) for name in one.table.partition}

    def of(self, one: Command, partition: Mapping[str, Any]) -> list[Any]:
        return [self._value(one, name, kind, partition) for name, kind in one.markers]

    def _value(self, statement: Command, name: str, kind: str, partition: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Returns a value for a marker: the given one for a column of the partition's key, else a random one.

        Only columns that are not part of the key may be None, or in an insert UNSET.
        """
        if name == "TTL":  # All values differ, so the second in which a row was written does not matter.
            return next(self._lifetimes)
        if kind.startswith("list "):
            return self.rng.sample(POOLS[kind.removeprefix("list ")], 2)
        pool = {"TIMESTAMP": TIMESTAMPS, "LIMIT": LIMITS}.get(name) or POOLS[kind]
        if name in statement.table.partition:
            return partition[name] if f"{name} IN" not in statement.text else self.rng.choice(pool[:2])
        if name not in statement.table.types or name in statement.table.clustering:
            return self.rng.choice(pool)
        return self.rng.choice((*pool, None, UNSET) if statement.verb == "INSERT" else (*pool, None))


def encode_request(statement: Statement, rows: Sequence[Sequence[Any]]) -> Encoded:
    """Returns an encoded request. The answer to a read is one item: its bytes after the kind and the flags."""
    kinds = [kind for _, kind in command(statement.cql).markers]
    packed = [b"".join(map(_encode_sized, kinds, row)) for row in rows]
    decode = (lambda body: [body[8:]]) if statement.reads else None
    return Encoded(statement, len(kinds), packed, b"\0", "QUORUM", decode)


def _encode_sized(kind: str, value: Any) -> bytes:  # noqa: ANN401 - of any type
    """Encodes a value with its length before it: -1 for None, -2 for UNSET."""
    if value is None or value is UNSET:
        return struct.pack(">i", -1 if value is None else -2)
    if kind.startswith("list "):
        items = [_encode_sized(kind.removeprefix("list "), one) for one in value]
        data = struct.pack(">i", len(items)) + b"".join(items)
    else:
        data = CQL_TYPES[kind].serialize(value, 4)
    return struct.pack(">i", len(data)) + data
