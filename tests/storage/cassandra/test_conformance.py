"""The simulated cluster, on which histories are played, answers each request as a real node does."""

from __future__ import annotations

import ast
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuey.model.ids import EPOCH_TICKS
from queuey.storage import cassandra as store
from queuey.storage.cassandra.cluster import UNSET, Driver, Encoded, InDoubt, Rows, Statement, StatementRequest
from queuey.storage.cassandra.cluster.options import parse_url
from queuey.storage.cassandra.tables import records
from queuey.storage.cassandra.time import clock_watch
from tests.replacing import with_fields
from tests.servers import keyspaces
from tests.sim.cassandra.cql import command
from tests.storage.cassandra.both import (
    NEW_VALUES,
    PairedClusters,
    TableStatements,
    Values,
    encode_request,
    product_statements,
)

if TYPE_CHECKING:
    from tests.servers.plugin import Cassandra

WRITES_PER_TABLE = 25
EXAMPLES = 40
SHORT = 1
"""A TTL that ends within the test, in seconds."""
LONGER = 3.5
"""Seconds after which that TTL has ended, by either clock."""


@pytest.fixture(scope="module")
def both(cassandra: Cassandra) -> Iterator[PairedClusters]:
    """A node and the simulated cluster, both empty at first."""
    real = Driver(parse_url(keyspaces.make(cassandra)), keyspaces.OPTIONS)
    try:
        assert real.ready(60), real.problem()
        real.run(Statement("DELETE FROM migrations WHERE singleton = 0"))
        yield PairedClusters(real)
    finally:
        real.close()


# Every statement


class Play:
    """Random requests about one table, made of the product's statements.

    Args:
        both: Where requests are sent.
        table: The name of the table.

    Attributes:
        answers: Per statement, whether it returned rows or its write was applied.
    """

    def __init__(self, both: PairedClusters, table: str) -> None:
        self._both = both
        self.statements = TableStatements(table)
        self._values = Values(table)
        self._rng = self._values.rng
        self.answers: defaultdict[Statement, set[bool]] = defaultdict(set)

    def not_met(self) -> list[str]:
        never = [one for one in self.statements.all if True not in self.answers[one]]
        return [
            one.cql for one in never + [one for one in self.statements.conditional if False not in self.answers[one]]
        ]

    def write(self) -> None:
        """Sends a write. A refused conditional write is sometimes sent again, with the values of the refusal."""
        statement = self._rng.choice([*self.statements.conditional, *self.statements.plain])
        parsed = command(statement.cql)
        partition = self._values.partition(parsed)
        if not parsed.conditional:
            rows = [self._values.of(parsed, partition) for _ in range(self._rng.choice((1, 1, 3)))]
            as_bytes = self._rng.random() < 0.5 and " IN (" not in statement.cql
            self._both.ask(encode_request(statement, rows) if as_bytes else StatementRequest(statement, rows[0]))
            self.answers[statement] |= {True}
            return
        further = self._rng.sample(self.statements.further, self._rng.randrange(len(self.statements.further) + 1))
        calls = [(each, self._values.of(command(each.cql), partition)) for each in further]
        values, demands = self._values.of(parsed, partition), len(parsed.demands)
        for _ in range(2):
            [(applied, *seen)] = self._both.ask(StatementRequest(statement, values, serial="SERIAL", further=calls))
            for part_statement in (statement, *further):
                self.answers[part_statement].add(applied)
            if applied or not demands or self._rng.random() < 0.5:
                return
            values = values[:-demands] + (seen[-demands:] or [None] * demands)

    def read(self, statement: Statement) -> None:
        parsed = command(statement.cql)
        values = self._values.of(parsed, self._values.partition(parsed))
        level = "SERIAL" if self.statements.conditional and " IN (" not in statement.cql else "QUORUM"
        rows = self._both.ask(StatementRequest(statement, values, level))
        self.answers[statement].add(any(value is not None and value != 0 for row in rows for value in row))
        if not parsed.scans:
            self._both.ask(encode_request(statement, [values]))


@pytest.mark.parametrize("table", sorted({command(one.cql).table.name for one in product_statements()}))
def test_statements(both: PairedClusters, table: str) -> None:
    """Each statement about a table returns, writes and refuses the same as on a real node, and each case occurs."""
    play = Play(both, table)
    for number in range(10 * WRITES_PER_TABLE):
        if number >= WRITES_PER_TABLE and not play.not_met():
            return
        play.write()
        for statement in play.statements.reads:
            play.read(statement)
    assert play.not_met() == []


def test_all_statements_are_found() -> None:
    """Every statement of the product is module-level, so this suite sees it; none is made in a function."""
    sources = {path.name: path.read_text() for path in Path(store.__file__).parent.rglob("*.py")}
    functions = set()
    for name, source in sources.items():
        outers = ast.walk(ast.parse(source)) if "Statement(" in source else ()
        for outer in outers:
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
                called = [one.func for one in ast.walk(outer) if isinstance(one, ast.Call)]
                functions |= {name for one in called if isinstance(one, ast.Name) and one.id == "Statement"}
    assert functions == {"lightweight_transactions.py"}  # Statements of DocumentStatements, whose objects are asked.
    assert {*store.STATEMENTS_TO_PREPARE} - {*product_statements()} == {clock_watch.SELECT_NOW}


# Lifetimes


def test_lifetimes(both: PairedClusters) -> None:
    """What was written for a second is gone after it, for reads and for comparisons."""
    statements = [one for one in product_statements() if "TTL ?" in one.cql]

    def send(statement: Statement, expected: object) -> Rows:
        parsed = command(statement.cql)
        values = [{"TTL": SHORT, "TIMESTAMP": 1}.get(name, NEW_VALUES.get(kind)) for name, kind in parsed.markers]
        if not parsed.conditional:
            return both.ask(StatementRequest(statement, values))
        return both.ask(StatementRequest(statement, [*values[:-1], expected], serial="SERIAL"))

    for statement in statements:
        rows = send(statement, None)
        if rows and not rows[0][0]:  # It was written before, as the migration lock is.
            assert send(statement, rows[0][-1]) == [(True,)]
    both.wait(LONGER)
    for table in sorted({command(one.cql).table.name for one in statements}):
        for read in TableStatements(table).reads:
            values = [NEW_VALUES[kind] for _, kind in command(read.cql).markers]
            if "singleton" not in read.cql and "count(" not in read.cql:
                assert both.ask(StatementRequest(read, values)) == []
    for statement in statements:
        assert send(statement, None) == [(True,)] or not command(statement.cql).conditional
    assert len(statements) >= 8


def test_lifetime_of_a_table(both: PairedClusters) -> None:
    """A write without a TTL has its table's default, but not a write that is to stay for ever."""
    read = Statement("SELECT process, ttl(tails) FROM heartbeats WHERE process = ?")
    for process, using in (("ends", ""), ("stays", " USING TTL 0"), ("ends later", " USING TTL 9000")):
        both.ask(
            StatementRequest(Statement(f"INSERT INTO heartbeats (process, tails) VALUES (?, ?){using}"), (process, "x"))
        )
        assert both.ask_roughly(StatementRequest(read, (process,)))


# Writes in any order of their timestamps

_KEY = "qid = 7777 AND partition = ?"
WRITES = [
    Statement(cql)
    for cql in (
        "INSERT INTO claims (qid, partition, number, body) VALUES (7777, ?, ?, ?) USING TIMESTAMP ? AND TTL ?",
        f"UPDATE claims USING TIMESTAMP ? AND TTL ? SET body = ? WHERE {_KEY} AND number = ?",
        f"UPDATE claims USING TIMESTAMP ? AND TTL ? SET last_number = ? WHERE {_KEY}",
        f"DELETE body FROM claims USING TIMESTAMP ? WHERE {_KEY} AND number = ?",
        f"DELETE last_number FROM claims USING TIMESTAMP ? WHERE {_KEY}",
        f"DELETE FROM claims USING TIMESTAMP ? WHERE {_KEY} AND number = ?",
        f"DELETE FROM claims USING TIMESTAMP ? WHERE {_KEY} AND number >= ? AND number < ?",
        f"DELETE FROM claims USING TIMESTAMP ? WHERE {_KEY} AND number > ? AND number <= ?",
        f"DELETE FROM claims USING TIMESTAMP ? WHERE {_KEY} AND number >= ?",
        f"DELETE FROM claims USING TIMESTAMP ? WHERE {_KEY}",
    )
]
READS = [
    (f"SELECT number, body, last_number FROM claims WHERE {_KEY}", ()),
    (f"SELECT number, body, last_number FROM claims WHERE {_KEY} AND number > ? AND number <= ?", (0, 2)),
    (f"SELECT number, last_number FROM claims WHERE {_KEY} AND number >= ? LIMIT ?", (1, 1)),
    (f"SELECT number, body FROM claims WHERE {_KEY} ORDER BY number DESC LIMIT ?", (2,)),
    (f"SELECT number FROM claims WHERE {_KEY} AND number IN ?", ([3, 0],)),
]
TIMES = (
    "SELECT number, body, writetime(body), ttl(body), last_number, writetime(last_number), ttl(last_number) "
    f"FROM claims WHERE {_KEY}"
)
CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "number": st.integers(0, 2),
    "body": st.sampled_from((b"", b"\0", b"a", b"\xff", None, UNSET)),
    "last_number": st.sampled_from((-1, 0, 1, 256, None)),
    "TIMESTAMP": st.integers(1, 3),
    # Timestamps of one sequence differ; otherwise the second of the node's clock would matter.
    "TTL": st.sampled_from((0, SHORT, 1000, 90_000)),
}


_INSERT, _SET, _SET_STATIC, _UNSET, _UNSET_STATIC, _REMOVE, _REMOVE_UP, _REMOVE_DOWN, _REMOVE_FROM, _REMOVE_ALL = WRITES
TIES: list[tuple[Statement, list[Any]]] = [
    *((_INSERT, [None, 1, body, 1, ttl]) for body in (b"a", b"\xff", UNSET) for ttl in (0, 1000)),
    *((_SET, [1, ttl, body, None, 1]) for body in (b"b", b"") for ttl in (0, 2000)),
    *((_SET_STATIC, [1, ttl, number, None]) for number in (-1, 1, 256) for ttl in (0, 3000)),
    *((_SET, [1, 0, None, None, 1]), (_UNSET, [1, None, 1]), (_REMOVE, [1, None, 1])),
    *((_SET_STATIC, [1, 0, None, None]), (_UNSET_STATIC, [1, None]), (_REMOVE_ALL, [1, None])),
    *((_REMOVE_UP, [1, None, first, first + 1]) for first in (0, 1)),
    *((_REMOVE_DOWN, [1, None, first, first + 1]) for first in (0, 1)),
    (_REMOVE_FROM, [1, None, 1]),
]
"""Writes with one timestamp."""


@st.composite
def writes(draw: st.DrawFn) -> tuple[Statement, list[Any]]:
    """Returns a write, with None in place of the partition's number."""
    statement = draw(st.sampled_from(WRITES))
    names = [name for name, _ in command(statement.cql).markers]
    return statement, [draw(CHOICES[name]) if name in CHOICES else None for name in names]


def _send(both: PairedClusters, partition: int, number: int, statement: Statement, values: Sequence[Any]) -> bool:
    """Sends a write; returns whether it expires within the test. ``number`` makes longer lifetimes differ."""
    names = [name for name, _ in command(statement.cql).markers]
    values_by_name = dict(zip(names, values, strict=True))
    ttl: int = values_by_name.get("TTL", 0)
    others = {"partition": partition, "TTL": ttl + 100 * number if ttl > SHORT else ttl}
    both.ask(StatementRequest(statement, [others.get(name, value) for name, value in zip(names, values, strict=True)]))
    return ttl == SHORT


def _read(both: PairedClusters, partition: int) -> None:
    for cql, values in READS:
        both.ask(StatementRequest(Statement(cql), (partition, *values)))


def test_ties(both: PairedClusters) -> None:
    """Both systems keep the same one of any two writes and deletes with equal timestamps, with its TTL."""
    for partition, pair in enumerate(itertools.combinations(TIES, 2), 10_000):
        for number, write in enumerate(pair):
            _send(both, partition, number, *write)
        both.ask_roughly(StatementRequest(Statement(TIMES), (partition,)))


def test_timestamps(both: PairedClusters) -> None:
    """After writes and deletes in any timestamp order both systems keep the same one, which ends with its TTL."""
    partitions, ending = itertools.count(1), []

    @settings(max_examples=EXAMPLES)
    @given(st.lists(writes(), min_size=2, max_size=8))
    def equal(some: list[tuple[Statement, list[Any]]]) -> None:
        partition = next(partitions)
        ends = [_send(both, partition, number, *one) for number, one in enumerate(some)]
        if any(ends):  # Earlier reads depend on the second.
            ending.append(partition)
            return
        _read(both, partition)
        both.ask_roughly(StatementRequest(Statement(TIMES), (partition,)))

    equal()
    assert 0 < len(ending) < EXAMPLES
    both.wait(LONGER)
    for partition in ending:
        _read(both, partition)


# Transactions in doubt, and clocks


def test_doubt(both: PairedClusters) -> None:
    """A conditional write in doubt was applied or not; sending it again decides, with the same result either way."""
    change, find = records._RECORDS.change, records._RECORDS.find
    doubts = 0
    for piece in range(8):
        where = ("in doubt", piece, "a", "name")
        before = (9000, b"before", 1, 1, *where, None)
        assert both.ask(StatementRequest(change, before, serial="SERIAL")) == [(True,)]
        request = StatementRequest(change, (9000, b"after", 1, 2, *where, 1), serial="SERIAL")
        both.weather.stuck = 1.0
        for ask in (both.ask_real, both.ask_simulated):
            try:
                assert ask(with_fields(request, timeout=1e-4)) == [(True,)]
            except InDoubt:
                doubts += 1
        both.weather.stuck = 0.0
        for ask in (both.ask_real, both.ask_simulated):
            assert ask(StatementRequest(find, where, "SERIAL")) in ([(b"before", 1, 1)], [(b"after", 1, 2)])
            assert ask(request) in ([(True,)], [(False, 2)])
        assert both.ask(StatementRequest(find, where, "SERIAL")) == [(b"after", 1, 2)]
        assert both.ask(request) == [(False, 2)]
    assert doubts >= 8  # All of the simulated cluster; the node mostly answers before the client checks the timeout.


def test_clocks(both: PairedClusters) -> None:
    """A node that is asked by name returns its time, as a value and as bytes."""
    for driver, ask in ((both.real, both.ask_real), (both.simulated, both.ask_simulated)):
        [first, *_] = driver.hosts()
        as_bytes = Encoded(clock_watch.SELECT_NOW, 0, (b"",), b"", "ONE", clock_watch.decode_time, host=first.address)
        earliest = time.time()
        [(ticks,)] = ask(as_bytes)
        [(value,)] = ask(StatementRequest(clock_watch.SELECT_NOW, (), "ONE", host=first.address))
        latest = max(time.time(), both.world.now)  # The simulated time may be ahead.
        assert earliest - 1 < (ticks - EPOCH_TICKS) / 1e7 <= (value.time - EPOCH_TICKS) / 1e7 + 0.1 < latest + 1
