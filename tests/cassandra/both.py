"""The same requests to a real node and to the simulated cluster, whose answers must be equal."""

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

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.storage import cassandra as store
from queuey.storage.calls import Deadline
from queuey.storage.cassandra.driver import UNSET, Driver, Encoded, Request, Rows, Statement
from queuey.storage.cassandra.message_codec import uuid_of
from queuey.storage.cassandra.write.row_changes import RowStatements
from tests.sim.cassandra.cluster import Cluster, Machine, SimulatedDriver, Weather
from tests.sim.cassandra.cql import Command, command
from tests.sim.cassandra.values import CQL_TYPES
from tests.sim.world import Process, World

TIMEOUT = 60.0
"""Seconds in which each of the two must answer."""
STEP = 0.001
"""Seconds of simulated time between two looks for an answer."""
NEWER = 5 * 10**15
"""A timestamp that is later than that of any write without one."""
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
"""Values of each type, few, so that writes meet; the first two can be the key of a partition."""
NEW_VALUES: dict[str, Any] = {
    "bigint": 7777,
    "int": 7,
    "tinyint": 7,
    "text": "new",
    "blob": b"new",
    "timeuuid": uuid_of((TICKS + 7, 0)),
}
"""Values that are not among these."""
TIMESTAMPS = (1, 2, NEWER, NEWER + 1)
LIMITS = (1, 2, 100)


class Both:
    """A real node and the simulated cluster, which have been sent the same requests.

    Args:
        real: The driver of the real node.
    """

    def __init__(self, real: Driver) -> None:
        self.real = real
        self.world = World(0)
        self.world.now = time.time()
        self.weather = Weather(slow=1e-5)
        process = Process(self.world, 0.0)
        cluster = Cluster(self.world, self.weather)
        self.simulated = SimulatedDriver(cluster, process, Machine(process), Deadline(math.inf), TIMEOUT)
        # Before its client is connected, the driver would be asked in its place, which gives other rows.
        self.simulated.loop.call(lambda: None)
        while self.simulated._client is None or not self.simulated._client.is_usable:
            self.world.run(self.world.now + STEP)

    def ask(self, request: Request | Encoded) -> Rows:
        """Sends a request to both, and returns their answer. That of a frequent write is when it came."""
        expected, found = self.of_real(request), self.of_simulated(request)
        if not request.statement.reads and (isinstance(request, Encoded) or request.statement.frequent):
            assert len(expected) == len(found) == 1
            return expected
        if command(request.statement.cql).scans:  # Cassandra orders partitions by the hashes of their keys.
            expected, found = sorted(expected), sorted(found)
        assert found == expected, f"{found} is not the answer of Cassandra, {expected}: {request}"
        return expected

    def wait(self, seconds: float) -> None:
        """Lets time pass for both; the simulated time may have been ahead."""
        time.sleep(seconds)
        self.world.run(self.world.now + seconds)

    def ask_roughly(self, request: Request) -> Rows:
        """Sends a request to both, whose answers have lifetimes among their numbers: these are not compared exactly."""
        expected, found = ([_rough(row) for row in ask(request)] for ask in (self.of_real, self.of_simulated))
        assert found == expected, f"{found} is not the answer of Cassandra, {expected}: {request}"
        return expected

    def of_real(self, request: Request | Encoded) -> Rows:
        """Returns the answer of the real node; raises the error of its driver."""
        answers: queue.SimpleQueue[tuple[Rows | None, StoreUnavailable | None]] = queue.SimpleQueue()
        self.real.send(request, lambda rows, error: answers.put((rows, error)))
        return _rows(*answers.get(timeout=TIMEOUT))

    def of_simulated(self, request: Request | Encoded) -> Rows:
        """Returns the answer of the simulated cluster; raises the error of its driver."""
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


def _rough(row: Sequence[Any]) -> list[Any]:
    return [-(-value // 100) if isinstance(value, int) else value for value in row]


# Statements


@cache
def product_statements() -> tuple[Statement, ...]:
    """Returns the statements that the modules of the product hold, but for those about Cassandra's own tables."""
    found: dict[str, Statement] = {}
    for module in pkgutil.walk_packages(store.__path__, f"{store.__name__}."):
        held = vars(importlib.import_module(module.name)).values()
        found |= {one.cql: one for one in _statements(held)}
    return tuple(one for cql, one in sorted(found.items()) if " FROM system" not in cql)


def _statements(some: Iterable[Any]) -> Iterator[Statement]:
    for one in some:
        if isinstance(one, Statement):
            yield one
        elif isinstance(one, tuple | list):
            yield from _statements(one)
        elif isinstance(one, dict):
            yield from _statements(one.values())
        elif isinstance(one, RowStatements):
            yield from (one.find, one.change)


class TableStatements:
    """The product's statements about a table.

    Attributes:
        all: All of them.
        reads: Those that select.
        conditional: Those with a condition.
        further: Those that are sent in one batch with one of them, and only so.
        plain: Other writes.
    """

    def __init__(self, table: str) -> None:
        self.all = [one for one in product_statements() if command(one.cql).table.name == table]
        self.reads = [one for one in self.all if one.reads]
        self.conditional = [one for one in self.all if command(one.cql).conditional]
        others = [one for one in self.all if one not in {*self.reads, *self.conditional}]
        self.further = [one for one in others if not one.idempotent]
        self.plain = [one for one in others if one.idempotent]


# Values


class Values:
    """Random values for the markers of statements.

    Args:
        seed: Of all chance.
    """

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self._lifetimes = iter(range(1000, 10**7, 100))

    def partition(self, one: Command) -> dict[str, Any]:
        """Returns values for the key of a partition."""
        return {name: self.rng.choice(POOLS[one.table.types[name]][:2]) for name in one.table.partition}

    def of(self, one: Command, partition: Mapping[str, Any]) -> list[Any]:
        """Returns values for all markers."""
        return [self._value(one, name, kind, partition) for name, kind in one.markers]

    def _value(self, one: Command, name: str, kind: str, partition: Mapping[str, Any]) -> Any:  # noqa: ANN401
        if name == "TTL":  # No two are equal, so that it does not matter in which second a row was written.
            return next(self._lifetimes)
        if kind.startswith("list "):
            return self.rng.sample(POOLS[kind.removeprefix("list ")], 2)
        pool = {"TIMESTAMP": TIMESTAMPS, "LIMIT": LIMITS}.get(name) or POOLS[kind]
        if name in one.table.partition:
            return partition[name] if f"{name} IN" not in one.text else self.rng.choice(pool[:2])
        if name not in one.table.types or name in one.table.clustering:
            return self.rng.choice(pool)
        return self.rng.choice((*pool, None, UNSET) if one.verb == "INSERT" else (*pool, None))


def encoded(statement: Statement, rows: Sequence[Sequence[Any]]) -> Encoded:
    """Returns a request as bytes, whose answer is given as bytes, too: all behind its flags."""
    kinds = [kind for _, kind in command(statement.cql).markers]
    packed = [b"".join(map(_sized, kinds, row)) for row in rows]
    decode = (lambda body: [body[8:]]) if statement.reads else None
    return Encoded(statement, len(kinds), packed, b"\0", "QUORUM", decode)


def _sized(kind: str, value: Any) -> bytes:  # noqa: ANN401 - of any type
    if value is None or value is UNSET:
        return struct.pack(">i", -1 if value is None else -2)
    if kind.startswith("list "):
        items = [_sized(kind.removeprefix("list "), one) for one in value]
        data = struct.pack(">i", len(items)) + b"".join(items)
    else:
        data = CQL_TYPES[kind].serialize(value, 4)
    return struct.pack(">i", len(data)) + data
