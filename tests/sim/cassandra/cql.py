"""The part of CQL that the store uses, on tables whose cells have timestamps: what a single replica knows.

Whatever is applied in whatever order, and however often, leads to the same: of two writes of a cell that with the later
timestamp stands, of a write and a delete with equal ones the delete.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from queuey import ids
from queuey.storage.cassandra.driver import UNSET, Encoded, Rows
from tests.sim.cassandra.values import SIZE, compared, decode, encode

SCHEMA = Path(__file__).parents[3] / "cql"
NEVER = -math.inf
ID_AS_BLOB = "timeuuid_as_blob(id)"
Key = tuple[Any, ...]


class Table(NamedTuple):
    """A table: its columns with their types, and which of them make the key.

    Attributes:
        name: Its name.
        types: Of all columns.
        partition, clustering: The columns of the key.
        descending: Those of the clustering columns that are in descending order.
        static: Columns that a partition has once.
        lifetime: Seconds that its cells live if nothing else is said, 0 for ever.
    """

    name: str
    types: Mapping[str, str]
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    descending: frozenset[str]
    static: frozenset[str]
    lifetime: int = 0

    @property
    def all(self) -> list[str]:
        """The columns in the order in which Cassandra gives all of them."""
        keys = [*self.partition, *self.clustering]
        others = sorted(self.types.keys() - {*keys})
        return [*keys, *sorted(others, key=lambda one: one not in self.static)]

    def order(self, key: Key) -> Key:
        """Returns what rows are sorted by."""
        return tuple(map(self.order_of, self.clustering, key))

    def order_of(self, column: str, value: Any) -> Any:  # noqa: ANN401 - of any type
        """Returns what rows are sorted by in one column of their keys."""
        return -value if column in self.descending else _ordered(value)


def _tables() -> dict[str, Table]:
    found: dict[str, Table] = {}
    for path in sorted(SCHEMA.glob("*.cql")):
        text = re.sub(r"--.*", "", path.read_text())
        for name, body in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\)\s*(?:WITH|;)", text, re.DOTALL):
            columns = dict(re.findall(r"^\s*(\w+) ([a-z]+)(?: static)?(?: PRIMARY KEY)?,?\s*$", body, re.MULTILINE))
            static = re.findall(r"^\s*(\w+) [a-z]+ static", body, re.MULTILINE)
            [(partition, clustering)] = re.findall(r"PRIMARY KEY \(\((.*?)\)(.*)\)", body)
            [definition] = re.findall(rf"CREATE TABLE IF NOT EXISTS {name} \(.*?;", text, re.DOTALL)
            descending = {each for order in re.findall(r"ORDER BY \((.*?)\)", definition) for each in _down(order)}
            lifetime = sum(map(int, re.findall(r"default_time_to_live = (\d+)", definition)))
            keys = _names(partition), _names(clustering), frozenset(descending)
            found[name] = Table(name, columns, *keys, frozenset(static), lifetime)
        added = re.findall(r"ALTER TABLE (\w+) ADD IF NOT EXISTS (\w+) (\w+)( static)?", text)
        for name, column, kind, is_static in added:
            types, known = {**found[name].types, column: kind}, found[name].static
            found[name] = found[name]._replace(types=types, static=known | {column} if is_static else known)
    return found


def _down(order: str) -> list[str]:
    return re.findall(r"(\w+) DESC", order)


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text))


SYSTEM = [
    Table(f"system_{name}", dict.fromkeys(columns, "text"), columns[:1], columns[1:keys], frozenset(), frozenset())
    for name, columns, keys in [
        ("schema.keyspaces", ("keyspace_name", "replication"), 1),
        ("schema.tables", ("keyspace_name", "table_name"), 2),
        ("views.settings", ("name", "value"), 1),
    ]
]
"""Tables that Cassandra has of itself, as far as the product asks for them."""
TABLES = _tables() | {table.name: table for table in SYSTEM}


class Cell(NamedTuple):
    """A value, None if it was deleted."""

    stamp: int
    value: Any
    expires: float = math.inf

    def beats(self, other: Cell | None) -> bool:
        """Returns whether this one stands beside another one."""
        if other is None or self.stamp != other.stamp:
            return other is None or self.stamp > other.stamp
        return self._rank() > other._rank()

    def _rank(self) -> tuple[int, float, bytes]:
        """Returns what decides between equal timestamps: a delete stands beside all, what expires beside the rest."""
        if self.value is None:
            return 2, 0.0, b""
        return (0, 0.0, compared(self.value)) if self.expires == math.inf else (1, self.expires, compared(self.value))


@dataclass
class Row:
    """A row; ``marker`` says that it is there without any cell."""

    deleted: float = NEVER
    marker: Cell | None = None
    cells: dict[str, Cell] = field(default_factory=dict)

    def absorb(self, other: Row) -> None:
        """Takes in what another replica knows of it."""
        self.deleted = max(self.deleted, other.deleted)
        if other.marker is not None and other.marker.beats(self.marker):
            self.marker = other.marker
        for name, cell in other.cells.items():
            mine = self.cells.get(name)
            if mine is not cell and cell.beats(mine):
                self.cells[name] = cell

    def alive(self, deleted: float, now: float, *, marked: bool = False) -> dict[str, Any] | None:
        """Returns its values, or None if it is not there (for want of a marker, if it must have one).

        Args:
            deleted: When it was deleted at the latest, by deletes of more than this row.
            now: Seconds.
            marked: It must have a marker.
        """
        deleted = max(deleted, self.deleted)
        values = {
            name: cell.value
            for name, cell in self.cells.items()
            if cell.stamp > deleted and cell.expires > now and cell.value is not None
        }
        marker = self.marker
        there = marker is not None and marker.stamp > deleted and marker.expires > now
        return values if there or (values and not marked) else None

    def told(self, names: Sequence[str], now: float) -> dict[str, Any]:
        """Returns when the cells of these columns were written, and for how many seconds they live on."""
        found: dict[str, Any] = {}
        for name in names:
            if (cell := self.cells.get(name)) is not None:
                found[f"writetime({name})"] = cell.stamp
                found[f"ttl({name})"] = None if cell.expires == math.inf else int(cell.expires - math.floor(now))
        return found


class Span(NamedTuple):
    """A range of rows that was deleted: the condition on their keys."""

    conditions: tuple[tuple[str, str, Any], ...]
    stamp: int


@dataclass
class Partition:
    """What a replica knows of a partition."""

    deleted: float = NEVER
    spans: set[Span] = field(default_factory=set)
    rows: dict[Key, Row] = field(default_factory=dict)
    static: Row = field(default_factory=Row)
    _in_order: list[tuple[Key, Key]] = field(default_factory=list, compare=False)
    """The keys of rows that were there when they were last sorted, each behind what it is sorted by."""

    def absorb(self, other: Partition, wanted: Callable[[Key], bool] | None = None) -> None:
        """Takes in what another replica knows of it, or of some of its rows."""
        self.deleted = max(self.deleted, other.deleted)
        self.spans |= other.spans
        self.static.absorb(other.static)
        for key, row in other.rows.items():
            if wanted is None or wanted(key):
                if (mine := self.rows.get(key)) is None:
                    self.rows[key] = Row(row.deleted, row.marker, dict(row.cells))
                else:
                    mine.absorb(row)

    def alive(
        self,
        table: Table,
        now: float,
        where: Sequence[tuple[Any, str, Any]] = (),
        told: Sequence[str] = (),
        *,
        descending: bool = False,
        marked: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows that are there, in order, with the columns of their keys.

        Args:
            table: Which table this is of.
            now: Seconds, when cells expire.
            where: Conditions; rows whose keys do not meet them may be left out.
            told: Columns of which more is told.
            descending: In reversed order.
            marked: Only those with a marker.
        """
        keys = self._keys(table, where)
        for key in reversed(keys) if descending else keys:
            row, names, deleted = self.rows[key], dict(zip(table.clustering, key, strict=True)), self.deleted
            for span in self.spans:
                if span.stamp > deleted and _holds(span.conditions, names):
                    deleted = span.stamp
            values = row.alive(deleted, now, marked=marked)
            if values is not None:
                found = names | values
                yield found | row.told([name for name in told if name in values], now) if told else found

    def _keys(self, table: Table, where: Sequence[tuple[Any, str, Any]]) -> list[Key]:
        """Returns keys in order: one if it is given, those in the range of the first column, or all."""
        if not table.clustering:
            return list(self.rows)
        equal = {name: value for name, sign, value in where if sign == "="}
        if all(name in equal for name in table.clustering):
            key = tuple(equal[name] for name in table.clustering)
            return [key] if key in self.rows else []
        ordered, first = self._in_order, table.clustering[0]
        if len(ordered) < len(self.rows):  # Rows stay, and come in the order in which they were added.
            ordered += [(table.order(key), key) for key in islice(self.rows, len(ordered), None)]
            ordered.sort()
        low, high = 0, len(ordered)
        for name, sign, value in where:
            if name == first and sign in _ENDS:
                starts, ends = _ENDS[sign] if first not in table.descending else _ENDS[_REVERSED.get(sign, sign)]
                at = table.order_of(first, value)
                if starts is not None:
                    low = max(low, starts(ordered, at, key=_first))
                if ends is not None:
                    high = min(high, ends(ordered, at, key=_first))
        return [key for _, key in ordered[low:high]]

    def statics(self, now: float, told: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the static values."""
        values = self.static.alive(self.deleted, now) or {}
        return values | self.static.told([name for name in told if name in values], now)


def _first(entry: tuple[Key, Key]) -> Any:  # noqa: ANN401 - of any type
    return entry[0][0]


_ENDS: dict[str, tuple[Any, Any]] = {
    "=": (bisect_left, bisect_right),
    ">=": (bisect_left, None),
    ">": (bisect_right, None),
    "<=": (None, bisect_right),
    "<": (None, bisect_left),
}
"""Where the range of rows begins and ends that a condition on their first column selects."""
_REVERSED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

Place = tuple[str, Key]
"""A table and the key of a partition."""
Change = tuple[Place, Partition]
"""What a write adds to a partition."""


def _holds(conditions: Sequence[tuple[str, str, Any]], values: Mapping[str, Any]) -> bool:
    return all(_compare(values.get(name), sign, value) for name, sign, value in conditions)


def _compare(found: Any, sign: str, value: Any) -> bool:  # noqa: ANN401 - of any type
    if sign == "IN":
        return found in value
    if sign == "=" or found is None or value is None:
        return bool(found == value)
    return bool(_SIGNS[sign](_ordered(found), _ordered(value)))


_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _ordered(value: Any) -> Any:  # noqa: ANN401 - of any type
    return _position(value.int) if isinstance(value, UUID) else value


@lru_cache(maxsize=100_000)
def _position(number: int) -> ids.Position:
    return ids.parse_position(f"{number:032x}")


_CONDITION = re.compile(r"(\w+|\([\w, ]+\)) (=|<=|>=|<|>|IN) (\?|-?\w+|'[^']*'|\([^)]*\))")


Value = Callable[[Sequence[Any]], Any]
"""Gives one of the values that a statement is about, given those of its markers."""
Condition = tuple[Any, str, Value]
"""A column, or several; a sign; and what it is compared with."""


def _all(parts: Sequence[Value], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(part(values) for part in parts)


class Command:
    """A statement.

    Args:
        cql: Its text.
    """

    def __init__(self, cql: str) -> None:
        self.text = cql
        self.verb = cql.split(maxsplit=1)[0]
        self.markers: list[tuple[str, str]] = []
        """The names and types of its values, in order."""
        match = re.search(r"(?:FROM|INTO|UPDATE) (\w+(?:\.\w+)?)", cql)
        assert match is not None, cql
        self.table = TABLES.get(match[1]) or Table(match[1], {}, (), (), frozenset(), frozenset())
        self.creates = "IF NOT EXISTS" in cql
        text = cql.replace("IF NOT EXISTS", "")
        getattr(self, f"_read_{self.verb.lower()}")(text)
        self.conditional = self.creates or bool(self.demands)

    # Reading the text: the types of the markers come in their order

    columns: Sequence[str] = ()
    assignments: Sequence[tuple[str, Value]] = ()
    where: Sequence[Condition] = ()
    demands: Sequence[Condition] = ()
    stamp: Value | None = None
    ttl: Value | None = None
    limit: Value | None = None
    descending = False

    def _value(self, text: str, name: str, kind: str) -> Value:
        text = text.strip()
        if text == "?":
            number = len(self.markers)
            self.markers.append((name, kind))
            return lambda values: values[number]
        constant = None if text == "null" else text[1:-1] if text.startswith("'") else int(text)
        return lambda _values: constant

    def _value_of(self, column: str, text: str) -> Value:
        return self._value(text, column, self.table.types[column])

    def _conditions(self, text: str) -> list[Condition]:
        found: list[Condition] = []
        for name, sign, value in _CONDITION.findall(text):
            if value.startswith("("):
                names = _names(name)
                parts = value[1:-1].split(",")
                columns = (names * len(parts))[: len(parts)]
                all_of = partial(_all, [self._value_of(*one) for one in zip(columns, parts, strict=True)])
                found.append((names if name.startswith("(") else name, sign, all_of))
            else:
                kind = self.table.types.get(name, "")
                found.append((name, sign, self._value(value, name, f"list {kind}" if sign == "IN" else kind)))
        return found

    def _using(self, text: str) -> None:
        for name, value in re.findall(r"(TIMESTAMP|TTL) (\?|\d+)", text):
            if name == "TTL":
                self.ttl = self._value(value, name, "int")
            else:
                self.stamp = self._value(value, name, "bigint")

    def _read_select(self, text: str) -> None:
        match = re.fullmatch(r"SELECT (.*?) FROM \S+(?: WHERE (.*?))?(?: ORDER BY (.*?))?(?: LIMIT (\S+))?\s*", text)
        assert match is not None, text
        self.columns = [one.strip() for one in match[1].split(",")]
        self.where = self._conditions(match[2] or "")
        table = self.table
        if match[3]:
            # An order is the table's own, or its reverse.
            first = match[3].split(",")[0].split()
            self.descending = (first[1] == "DESC") != (first[0] in table.descending)
        if match[4]:
            self.limit = self._value(match[4], "LIMIT", "int")

    def _read_insert(self, text: str) -> None:
        match = re.fullmatch(r"INSERT INTO \S+ \((.*?)\)\s+VALUES\s+\((.*?)\)\s*(?:USING (.*))?", text.strip())
        assert match is not None, text
        names, values = _names(match[1]), match[2].split(",")
        self.assignments = [(name, self._value_of(name, value)) for name, value in zip(names, values, strict=True)]
        self._using(match[3] or "")

    def _read_update(self, text: str) -> None:
        match = re.fullmatch(r"UPDATE \w+ (?:USING (.*?) )?SET (.*?) WHERE (.*?)(?: IF (.*))?", text.strip())
        assert match is not None, text
        self._using(match[1] or "")
        pairs = [one.split(" = ") for one in match[2].split(",")]
        self.assignments = [(name.strip(), self._value_of(name.strip(), value)) for name, value in pairs]
        self.where, self.demands = self._conditions(match[3]), self._conditions(match[4] or "")

    def _read_delete(self, text: str) -> None:
        match = re.fullmatch(r"DELETE (.*?)FROM \w+ (?:USING (.*?) )?WHERE (.*?)(?: IF (.*))?", text.strip())
        assert match is not None, text
        self.columns = _names(match[1])
        self._using(match[2] or "")
        self.where, self.demands = self._conditions(match[3]), self._conditions(match[4] or "")

    # What it does

    @property
    def scans(self) -> bool:
        """Whether it is about all partitions of its table."""
        return self.verb == "SELECT" and not self.where

    @property
    def is_of_rows(self) -> bool:
        """Whether it is about rows, not only static columns."""
        clustering = self.table.clustering
        return not clustering or any(name in clustering for name, *_ in [*self.where, *self.assignments])

    def places(self, values: Sequence[Any]) -> list[Place]:
        """Returns the partitions that it is about."""
        keys: list[Key] = [()]
        for value in self._partition_key:
            given = value(values)
            some = sorted(given) if isinstance(given, list | tuple) else [given]
            keys = [(*key, one) for key in keys for one in some]
        return [(self.table.name, key) for key in keys]

    @cached_property
    def _partition_key(self) -> list[Value]:
        given = dict(self.assignments) | {name: value for name, _, value in self.where if isinstance(name, str)}
        return [given[name] for name in self.table.partition]

    def changes(self, values: Sequence[Any], stamp: int, now: float, *, decided: bool = False) -> list[Change]:
        """Returns what it writes.

        Args:
            values: Of its markers.
            stamp: The timestamp, unless it has one of its own.
            now: Seconds, from when lifetimes count.
            decided: It is part of a conditional write, which keeps rows that it writes from its deletes of ranges.
        """
        stamp = self.stamp(values) if self.stamp is not None else stamp
        seconds = self.ttl(values) if self.ttl is not None else self.table.lifetime
        expires = math.floor(now) + seconds if seconds else math.inf
        return [(place, self._partition(values, stamp, stamp - decided, expires)) for place in self.places(values)]

    def _partition(self, values: Sequence[Any], stamp: int, stamp_of_ranges: int, expires: float) -> Partition:
        table, found = self.table, Partition()
        given = {name: value(values) for name, value in self.assignments}
        of_rows = [one for one in self.where if one[0] not in table.partition]
        keys = given | {name: value(values) for name, sign, value in of_rows if sign == "="}
        whole = all(name in keys for name in table.clustering)
        row = found.rows.setdefault(tuple(keys[name] for name in table.clustering), Row()) if whole else Row()
        if self.verb == "DELETE":
            if self.columns:
                for name in self.columns:
                    (found.static if name in table.static else row).cells[name] = Cell(stamp, None)
            elif whole and table.clustering:
                row.deleted = stamp
            elif of_rows:
                conditions = tuple((name, sign, value(values)) for name, sign, value in of_rows)
                found.spans.add(Span(conditions, stamp_of_ranges))
            else:
                found.rows.clear()
                found.deleted = stamp_of_ranges
            return found
        if self.verb == "INSERT":
            row.marker = Cell(stamp, "", expires)
        for name, value in given.items():
            if value is not UNSET and name not in table.partition and name not in table.clustering:
                target = found.static if name in table.static else row
                target.cells[name] = Cell(stamp, value, math.inf if value is None else expires)
        return found

    def refusal(
        self, values: Sequence[Any], there: Partition, now: float, together: Sequence[Command]
    ) -> tuple[Any, ...] | None:
        """Returns what Cassandra answers if a condition does not hold; None: all do. Of several rows it is the first.

        Args:
            values: Of its markers.
            there: The partition.
            now: Seconds.
            together: All of its batch, or itself. Where none is about rows, their columns are not read, and those
                without markers do not count. The answer to a batch has the key as well.
        """
        table = self.table
        keys = {name: value(values) for name, value in self.assignments}
        keys |= {name: value(values) for name, _, value in self.where if isinstance(name, str)}
        where = [(name, "=", keys[name]) for name in table.clustering if name in keys]
        marked = not any(one.is_of_rows for one in together)
        rows = list(there.alive(table, now, where, marked=marked))
        statics = there.statics(now)
        partition = dict(zip(table.partition, self.places(values)[0][1], strict=True))
        found = partition | (rows[0] if rows else {}) | statics if rows or statics else None
        if self.creates:  # It does not read the static columns.
            return (False, *map((partition | rows[0]).get, table.all)) if rows else None
        if _holds([(name, sign, value(values)) for name, sign, value in self.demands], found or {}):
            return None
        names = [*table.partition, *table.clustering] if len(together) > 1 else []
        return (False,) if found is None else (False, *map(found.get, [*names, *(name for name, _, _ in self.demands)]))

    def wanted(self, values: Sequence[Any]) -> Callable[[Key], bool]:
        """Returns what says which rows it may select, by their keys."""
        names = self.table.clustering
        conditions = [(names.index(name), sign, value(values)) for name, sign, value in self.where if name in names]
        return lambda key: all(_compare(key[place], sign, value) for place, sign, value in conditions)

    def rows(self, values: Sequence[Any], there: Mapping[Place, Partition], now: float) -> Rows:
        """Returns the rows that it selects."""
        limit = None if self.limit is None else self.limit(values)
        found = self._selected(values, there, now)
        if self.columns == ["count(id)"]:
            return [(sum(1 for _ in found),)]
        if ID_AS_BLOB not in self.columns:
            return [tuple(map(row.get, self.columns)) for row in islice(found, limit)]
        return [tuple(_column(row, name) for name in self.columns) for row in islice(found, limit)]

    def _selected(
        self, values: Sequence[Any], there: Mapping[Place, Partition], now: float
    ) -> Iterator[Mapping[str, Any]]:
        on_rows = [(name, sign, value(values)) for name, sign, value in self.where if name not in self.table.partition]
        for place, partition in there.items():
            keys = dict(zip(self.table.partition, place[1], strict=True))
            statics = partition.statics(now, self._told)
            if statics and not on_rows:
                rows = iter(list(partition.alive(self.table, now, (), self._told, descending=self.descending)) or [{}])
            else:
                rows = partition.alive(self.table, now, on_rows, self._told, descending=self.descending)
            for row in rows:
                whole = keys | statics | row
                for name, sign, value in on_rows:
                    if not self._selects(whole, name, sign, value):
                        break
                else:
                    yield whole

    @cached_property
    def _told(self) -> list[str]:
        return re.findall(r"(?:writetime|ttl)\((\w+)\)", ", ".join(self.columns))

    def _selects(self, row: Mapping[str, Any], name: Any, sign: str, value: Any) -> bool:  # noqa: ANN401 - of any type
        if isinstance(name, tuple):
            return _compare(tuple(row[each] for each in name), sign, value)
        return _compare(row.get(name), sign, value)

    # As requests carry it

    def decoded(self, row: bytes) -> list[Any]:
        """Returns the values of a serialized row."""
        found, at = [], 0
        for _, kind in self.markers:
            (size,) = SIZE.unpack_from(row, at)
            at += 4
            found.append(UNSET if size == -2 else None if size < 0 else decode(kind, row[at : at + size]))
            at += max(0, size)
        return found

    def body(self, rows: Rows) -> bytes:
        """Returns an answer as it comes over a connection."""
        cells = [
            encode("bigint" if name.startswith("count(") else self.table.types.get(name, "blob"), value)
            for row in rows
            for name, value in zip(self.columns, row, strict=True)
        ]
        packed = [SIZE.pack(-1) if cell is None else SIZE.pack(len(cell)) + cell for cell in cells]
        return struct.pack(">iiii", 2, 4, len(self.columns), len(rows)) + b"".join(packed)


@lru_cache(maxsize=1000)
def command(cql: str) -> Command:
    """Returns a statement by its text."""
    return Command(cql)


def values_of(request: Encoded) -> Iterator[list[Any]]:
    """Gives the values of each row of a request."""
    one = command(request.statement.cql)
    return (one.decoded(row) for row in request.rows)


def _column(row: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - of any type
    if name == ID_AS_BLOB:
        return row["id"].bytes
    return row.get(name)
