"""The part of CQL that the store uses, on tables whose cells have timestamps: the data of a single replica.

Changes may be applied in any order and repeatedly, with the same result. Of two writes of a cell the later timestamp
wins. With equal timestamps a delete wins over a write.
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

from queuey.model import ids
from queuey.storage.cassandra.cluster import UNSET, Encoded, Rows
from tests.sim.cassandra.values import SIZE, decode, encode, encode_to_compare

SCHEMA = Path(__file__).parents[3] / "cql"
NEVER = -math.inf
ID_AS_BLOB = "timeuuid_as_blob(id)"
Key = tuple[Any, ...]


class Table(NamedTuple):
    """A table: its columns with their types, and the columns of its key.

    Attributes:
        name: Its name.
        types: The types of all columns.
        partition, clustering: The columns of the key.
        descending: The clustering columns in descending order.
        static: Columns with one value a partition.
        lifetime: Default lifetime of its cells in seconds; 0: unlimited.
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
        """All columns, in the order in which Cassandra returns them."""
        keys = [*self.partition, *self.clustering]
        others = sorted(self.types.keys() - {*keys})
        return [*keys, *sorted(others, key=lambda name: name not in self.static)]

    def order(self, key: Key) -> Key:
        return tuple(map(self.order_of, self.clustering, key))

    def order_of(self, column: str, value: Any) -> Any:  # noqa: ANN401 - of any type
        return -value if column in self.descending else _make_sortable(value)


def _tables() -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for path in sorted(SCHEMA.glob("*.cql")):
        text = re.sub(r"--.*", "", path.read_text())
        for name, body in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\)\s*(?:WITH|;)", text, re.DOTALL):
            columns = dict(re.findall(r"^\s*(\w+) ([a-z]+)(?: static)?(?: PRIMARY KEY)?,?\s*$", body, re.MULTILINE))
            static = re.findall(r"^\s*(\w+) [a-z]+ static", body, re.MULTILINE)
            [(partition, clustering)] = re.findall(r"PRIMARY KEY \(\((.*?)\)(.*)\)", body)
            [definition] = re.findall(rf"CREATE TABLE IF NOT EXISTS {name} \(.*?;", text, re.DOTALL)
            descending = {
                each for order in re.findall(r"ORDER BY \((.*?)\)", definition) for each in _descending_columns(order)
            }
            lifetime = sum(map(int, re.findall(r"default_time_to_live = (\d+)", definition)))
            keys = _names(partition), _names(clustering), frozenset(descending)
            tables[name] = Table(name, columns, *keys, frozenset(static), lifetime)
        added = re.findall(r"ALTER TABLE (\w+) ADD IF NOT EXISTS (\w+) (\w+)( static)?", text)
        for name, column, kind, is_static in added:
            types, statics = {**tables[name].types, column: kind}, tables[name].static
            tables[name] = tables[name]._replace(types=types, static=statics | {column} if is_static else statics)
    return tables


def _descending_columns(order: str) -> list[str]:
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
"""Cassandra's own tables, as far as the product reads them."""
TABLES = _tables() | {table.name: table for table in SYSTEM}


class Cell(NamedTuple):
    """A value. It is None if the cell was deleted."""

    stamp: int
    value: Any
    expires: float = math.inf

    def beats(self, other: Cell | None) -> bool:
        """Returns whether this cell wins; an equal one does not."""
        if other is None or self.stamp != other.stamp:
            return other is None or self.stamp > other.stamp
        return self._rank() > other._rank()

    def _rank(self) -> tuple[int, float, bytes]:
        """Returns the rank among equal timestamps: deletes first, then expiring cells, then the rest."""
        if self.value is None:
            return 2, 0.0, b""
        return (
            (0, 0.0, encode_to_compare(self.value))
            if self.expires == math.inf
            else (1, self.expires, encode_to_compare(self.value))
        )


@dataclass
class Row:
    """A row. With a ``marker`` it exists even without cells."""

    deleted: float = NEVER
    marker: Cell | None = None
    cells: dict[str, Cell] = field(default_factory=dict)

    def absorb(self, other: Row) -> None:
        self.deleted = max(self.deleted, other.deleted)
        if other.marker is not None and other.marker.beats(self.marker):
            self.marker = other.marker
        for name, cell in other.cells.items():
            own = self.cells.get(name)
            if own is not cell and cell.beats(own):
                self.cells[name] = cell

    def read_values(self, deleted: float, now: float, *, marked: bool = False) -> dict[str, Any] | None:
        """Returns the values of the row, or None if it does not exist.

        Args:
            deleted: The latest timestamp of deletes that cover more than this row.
            now: Seconds.
            marked: Without a marker the row does not exist.
        """
        deleted = max(deleted, self.deleted)
        values = {
            name: cell.value
            for name, cell in self.cells.items()
            if cell.stamp > deleted and cell.expires > now and cell.value is not None
        }
        marker = self.marker
        exists = marker is not None and marker.stamp > deleted and marker.expires > now
        return values if exists or (values and not marked) else None

    def read_cell_facts(self, names: Sequence[str], now: float) -> dict[str, Any]:
        """Returns the write times and remaining seconds of these columns, without those that have no cell."""
        facts: dict[str, Any] = {}
        for name in names:
            if (cell := self.cells.get(name)) is not None:
                facts[f"writetime({name})"] = cell.stamp
                facts[f"ttl({name})"] = None if cell.expires == math.inf else int(cell.expires - math.floor(now))
        return facts


class Span(NamedTuple):
    """A deleted range of rows: the conditions on their keys."""

    conditions: tuple[tuple[str, str, Any], ...]
    stamp: int


@dataclass
class Partition:
    """A replica's data of a partition."""

    deleted: float = NEVER
    spans: set[Span] = field(default_factory=set)
    rows: dict[Key, Row] = field(default_factory=dict)
    static: Row = field(default_factory=Row)
    _in_order: list[tuple[Key, Key]] = field(default_factory=list, compare=False)
    """The rows at the time of the last sort, each as its sort key and its key."""

    def absorb(self, other: Partition, selects: Callable[[Key], bool] | None = None) -> None:
        """Merges another replica's deletes and static columns, and its rows, or only those that ``selects`` selects."""
        self.deleted = max(self.deleted, other.deleted)
        self.spans |= other.spans
        self.static.absorb(other.static)
        for key, row in other.rows.items():
            if selects is None or selects(key):
                if (own := self.rows.get(key)) is None:
                    self.rows[key] = Row(row.deleted, row.marker, dict(row.cells))
                else:
                    own.absorb(row)

    def iter_rows(
        self,
        table: Table,
        now: float,
        where: Sequence[tuple[Any, str, Any]] = (),
        fact_columns: Sequence[str] = (),
        *,
        descending: bool = False,
        marked: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Yields the existing rows in order, with the columns of their keys.

        Args:
            table: The table of the partition.
            now: Seconds. Cells expire by it.
            where: Conditions. Rows whose keys do not meet them may be left out.
            fact_columns: Columns whose write time and lifetime are added.
            descending: Reverses the order.
            marked: Yields only rows with a marker.
        """
        keys = self._keys(table, where)
        for key in reversed(keys) if descending else keys:
            row, names, deleted = self.rows[key], dict(zip(table.clustering, key, strict=True)), self.deleted
            for span in self.spans:
                if span.stamp > deleted and _holds(span.conditions, names):
                    deleted = span.stamp
            values = row.read_values(deleted, now, marked=marked)
            if values is not None:
                names |= values
                yield names | row.read_cell_facts([column for column in fact_columns if column in values], now)

    def _keys(self, table: Table, where: Sequence[tuple[Any, str, Any]]) -> list[Key]:
        """Returns the keys of rows that may meet the conditions, in order; not all conditions are applied."""
        if not table.clustering:
            return list(self.rows)
        equal = {name: value for name, sign, value in where if sign == "="}
        if all(name in equal for name in table.clustering):
            key = tuple(equal[name] for name in table.clustering)
            return [key] if key in self.rows else []
        ordered, first = self._in_order, table.clustering[0]
        if len(ordered) < len(self.rows):  # rows are never removed, and the dict keeps their order
            ordered += [(table.order(key), key) for key in islice(self.rows, len(ordered), None)]
            ordered.sort()
        low, high = 0, len(ordered)
        for name, sign, value in where:
            if name == first and sign in _ENDS:
                starts, ends = _ENDS[sign] if first not in table.descending else _ENDS[_REVERSED.get(sign, sign)]
                bound = table.order_of(first, value)
                if starts is not None:
                    low = max(low, starts(ordered, bound, key=_first))
                if ends is not None:
                    high = min(high, ends(ordered, bound, key=_first))
        return [key for _, key in ordered[low:high]]

    def statics(self, now: float, told: Sequence[str] = ()) -> dict[str, Any]:
        """Returns the values of the static columns, with write time and lifetime of the ``told`` ones."""
        values = self.static.read_values(self.deleted, now) or {}
        return values | self.static.read_cell_facts([name for name in told if name in values], now)


def _first(entry: tuple[Key, Key]) -> Any:  # noqa: ANN401 - of any type
    return entry[0][0]


_ENDS: dict[str, tuple[Any, Any]] = {
    "=": (bisect_left, bisect_right),
    ">=": (bisect_left, None),
    ">": (bisect_right, None),
    "<=": (None, bisect_right),
    "<": (None, bisect_left),
}
"""The functions that find the start and end of the rows that a condition on their first column selects."""
_REVERSED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}

Place = tuple[str, Key]
"""A table and a partition key."""
Change = tuple[Place, Partition]
"""A write's addition to a partition."""


def _holds(conditions: Sequence[tuple[str, str, Any]], values: Mapping[str, Any]) -> bool:
    return all(_compare(values.get(name), sign, value) for name, sign, value in conditions)


def _compare(stored: Any, sign: str, value: Any) -> bool:  # noqa: ANN401 - of any type
    """Returns whether a condition on a value holds; with None only equality. UUIDs are compared by positions."""
    if sign == "IN":
        return stored in value
    if sign == "=" or stored is None or value is None:
        return bool(stored == value)
    return bool(_SIGNS[sign](_make_sortable(stored), _make_sortable(value)))


_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _make_sortable(value: Any) -> Any:  # noqa: ANN401 - of any type
    return _position(value.int) if isinstance(value, UUID) else value


@lru_cache(maxsize=100_000)
def _position(number: int) -> ids.Position:
    return ids.parse_position(f"{number:032x}")


_CONDITION = re.compile(r"(\w+|\([\w, ]+\)) (=|<=|>=|<|>|IN) (\?|-?\w+|'[^']*'|\([^)]*\))")

Value = Callable[[Sequence[Any]], Any]
"""Returns a value of a statement, given the values of its markers."""
Condition = tuple[Any, str, Value]
"""A column or tuple of columns, an operator, and the value to compare with."""


def _evaluate_all(parts: Sequence[Value], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(part(values) for part in parts)


class Command:
    """A parsed statement.

    Args:
        cql: Its text.
    """

    def __init__(self, cql: str) -> None:
        self.text = cql
        self.verb = cql.split(maxsplit=1)[0]
        self.markers: list[tuple[str, str]] = []
        """The names and types of its bind markers, in order."""
        match = re.search(r"(?:FROM|INTO|UPDATE) (\w+(?:\.\w+)?)", cql)
        assert match is not None, cql
        self.table = TABLES.get(match[1]) or Table(match[1], {}, (), (), frozenset(), frozenset())
        self.creates = "IF NOT EXISTS" in cql
        text = cql.replace("IF NOT EXISTS", "")
        getattr(self, f"_read_{self.verb.lower()}")(text)
        self.conditional = self.creates or bool(self.demands)

    # Parsing: markers are numbered in the order in which they are read

    columns: Sequence[str] = ()
    assignments: Sequence[tuple[str, Value]] = ()
    where: Sequence[Condition] = ()
    demands: Sequence[Condition] = ()
    stamp: Value | None = None
    ttl: Value | None = None
    limit: Value | None = None
    descending = False

    def _value(self, text: str, name: str, kind: str) -> Value:
        """Parses a constant, or a marker, which it adds to ``markers`` under this name and type."""
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
        conditions: list[Condition] = []
        for name, sign, value in _CONDITION.findall(text):
            if value.startswith("("):
                names = _names(name)
                parts = value[1:-1].split(",")
                columns = (names * len(parts))[: len(parts)]
                all_of = partial(_evaluate_all, [self._value_of(*one) for one in zip(columns, parts, strict=True)])
                conditions.append((names if name.startswith("(") else name, sign, all_of))
            else:
                kind = self.table.types.get(name, "")
                conditions.append((name, sign, self._value(value, name, f"list {kind}" if sign == "IN" else kind)))
        return conditions

    def _read_using(self, text: str) -> None:
        for name, value in re.findall(r"(TIMESTAMP|TTL) (\?|\d+)", text):
            if name == "TTL":
                self.ttl = self._value(value, name, "int")
            else:
                self.stamp = self._value(value, name, "bigint")

    def _read_select(self, text: str) -> None:
        match = re.fullmatch(r"SELECT (.*?) FROM \S+(?: WHERE (.*?))?(?: ORDER BY (.*?))?(?: LIMIT (\S+))?\s*", text)
        assert match is not None, text
        self.columns = [name.strip() for name in match[1].split(",")]
        self.where = self._conditions(match[2] or "")
        table = self.table
        if match[3]:
            # Only the table's order and its reverse are supported.
            first = match[3].split(",")[0].split()
            self.descending = (first[1] == "DESC") != (first[0] in table.descending)
        if match[4]:
            self.limit = self._value(match[4], "LIMIT", "int")

    def _read_insert(self, text: str) -> None:
        match = re.fullmatch(r"INSERT INTO \S+ \((.*?)\)\s+VALUES\s+\((.*?)\)\s*(?:USING (.*))?", text.strip())
        assert match is not None, text
        names, values = _names(match[1]), match[2].split(",")
        self.assignments = [(name, self._value_of(name, value)) for name, value in zip(names, values, strict=True)]
        self._read_using(match[3] or "")

    def _read_update(self, text: str) -> None:
        match = re.fullmatch(r"UPDATE \w+ (?:USING (.*?) )?SET (.*?) WHERE (.*?)(?: IF (.*))?", text.strip())
        assert match is not None, text
        self._read_using(match[1] or "")
        pairs = [one.split(" = ") for one in match[2].split(",")]
        self.assignments = [(name.strip(), self._value_of(name.strip(), value)) for name, value in pairs]
        self.where, self.demands = self._conditions(match[3]), self._conditions(match[4] or "")

    def _read_delete(self, text: str) -> None:
        match = re.fullmatch(r"DELETE (.*?)FROM \w+ (?:USING (.*?) )?WHERE (.*?)(?: IF (.*))?", text.strip())
        assert match is not None, text
        self.columns = _names(match[1])
        self._read_using(match[2] or "")
        self.where, self.demands = self._conditions(match[3]), self._conditions(match[4] or "")

    # Execution

    @property
    def scans(self) -> bool:
        return self.verb == "SELECT" and not self.where

    @property
    def is_of_rows(self) -> bool:
        """Whether it concerns rows, not only static columns."""
        clustering = self.table.clustering
        return not clustering or any(name in clustering for name, *_ in [*self.where, *self.assignments])

    def places(self, values: Sequence[Any]) -> list[Place]:
        """Returns the partitions that it concerns: one, or one for each value of an IN."""
        keys: list[Key] = [()]
        for value in self._partition_key:
            key_value = value(values)
            key_values = sorted(key_value) if isinstance(key_value, list | tuple) else [key_value]
            keys = [(*key, part) for key in keys for part in key_values]
        return [(self.table.name, key) for key in keys]

    @cached_property
    def _partition_key(self) -> list[Value]:
        value_of = dict(self.assignments) | {name: value for name, _, value in self.where if isinstance(name, str)}
        return [value_of[name] for name in self.table.partition]

    def changes(self, values: Sequence[Any], stamp: int, now: float, *, decided: bool = False) -> list[Change]:
        """Returns the changes that it writes.

        Args:
            values: The values of its markers.
            stamp: The timestamp, unless the statement has its own.
            now: Start of lifetimes, in seconds.
            decided: It is part of a conditional write, whose range deletes do not cover the rows that it writes.
        """
        stamp = self.stamp(values) if self.stamp is not None else stamp
        seconds = self.ttl(values) if self.ttl is not None else self.table.lifetime
        expires = math.floor(now) + seconds if seconds else math.inf
        return [(place, self._partition(values, stamp, stamp - decided, expires)) for place in self.places(values)]

    def _partition(self, values: Sequence[Any], stamp: int, stamp_of_ranges: int, expires: float) -> Partition:
        table, change = self.table, Partition()
        assigned = {name: value(values) for name, value in self.assignments}
        of_rows = [one for one in self.where if one[0] not in table.partition]
        keys = assigned | {name: value(values) for name, sign, value in of_rows if sign == "="}
        is_one_row = all(name in keys for name in table.clustering)
        row = change.rows.setdefault(tuple(keys[name] for name in table.clustering), Row()) if is_one_row else Row()
        if self.verb == "DELETE":
            if self.columns:
                for name in self.columns:
                    (change.static if name in table.static else row).cells[name] = Cell(stamp, None)
            elif is_one_row and table.clustering:
                row.deleted = stamp
            elif of_rows:
                conditions = tuple((name, sign, value(values)) for name, sign, value in of_rows)
                change.spans.add(Span(conditions, stamp_of_ranges))
            else:
                change.rows.clear()
                change.deleted = stamp_of_ranges
            return change
        if self.verb == "INSERT":
            row.marker = Cell(stamp, "", expires)
        for name, value in assigned.items():
            if value is not UNSET and name not in table.partition and name not in table.clustering:
                target = change.static if name in table.static else row
                target.cells[name] = Cell(stamp, value, math.inf if value is None else expires)
        return change

    def refusal(
        self, values: Sequence[Any], stored: Partition, now: float, batch: Sequence[Command]
    ) -> tuple[Any, ...] | None:
        """Returns Cassandra's answer if a condition does not hold (of the first row), or None if all hold.

        Args:
            values: The values of its markers.
            stored: The partition.
            now: Seconds.
            batch: All statements of its batch, or itself. If none concerns rows, only rows with markers count and
                their columns are not read. The answer to a batch includes the key.
        """
        table = self.table
        keys = {name: value(values) for name, value in self.assignments}
        keys |= {name: value(values) for name, _, value in self.where if isinstance(name, str)}
        where = [(name, "=", keys[name]) for name in table.clustering if name in keys]
        marked = not any(one.is_of_rows for one in batch)
        rows = list(stored.iter_rows(table, now, where, marked=marked))
        statics = stored.statics(now)
        partition = dict(zip(table.partition, self.places(values)[0][1], strict=True))
        row = partition | (rows[0] if rows else {}) | statics if rows or statics else None
        if self.creates:  # IF NOT EXISTS does not read the static columns
            return (False, *map((partition | rows[0]).get, table.all)) if rows else None
        if _holds([(name, sign, value(values)) for name, sign, value in self.demands], row or {}):
            return None
        names = [*table.partition, *table.clustering] if len(batch) > 1 else []
        return (False,) if row is None else (False, *map(row.get, [*names, *(name for name, _, _ in self.demands)]))

    def row_filter(self, values: Sequence[Any]) -> Callable[[Key], bool]:
        names = self.table.clustering
        conditions = [(names.index(name), sign, value(values)) for name, sign, value in self.where if name in names]
        return lambda key: all(_compare(key[place], sign, value) for place, sign, value in conditions)

    def rows(self, values: Sequence[Any], partitions: Mapping[Place, Partition], now: float) -> Rows:
        limit = None if self.limit is None else self.limit(values)
        selected = self._select_rows(values, partitions, now)
        if self.columns == ["count(id)"]:
            return [(sum(1 for _ in selected),)]
        if ID_AS_BLOB not in self.columns:
            return [tuple(map(row.get, self.columns)) for row in islice(selected, limit)]
        return [tuple(_column(row, name) for name in self.columns) for row in islice(selected, limit)]

    def _select_rows(
        self, values: Sequence[Any], partitions: Mapping[Place, Partition], now: float
    ) -> Iterator[Mapping[str, Any]]:
        """Yields selected rows with static columns. A partition with only static columns counts as one row."""
        on_rows = [(name, sign, value(values)) for name, sign, value in self.where if name not in self.table.partition]
        for place, partition in partitions.items():
            keys = dict(zip(self.table.partition, place[1], strict=True))
            statics = partition.statics(now, self._fact_columns)
            if statics and not on_rows:
                rows = partition.iter_rows(self.table, now, (), self._fact_columns, descending=self.descending)
                rows = iter(list(rows) or [{}])
            else:
                rows = partition.iter_rows(self.table, now, on_rows, self._fact_columns, descending=self.descending)
            for row in rows:
                whole = keys | statics | row
                for name, sign, value in on_rows:
                    if not self._selects(whole, name, sign, value):
                        break
                else:
                    yield whole

    @cached_property
    def _fact_columns(self) -> list[str]:
        return re.findall(r"(?:writetime|ttl)\((\w+)\)", ", ".join(self.columns))

    def _selects(self, row: Mapping[str, Any], name: Any, sign: str, value: Any) -> bool:  # noqa: ANN401 - of any type
        if isinstance(name, tuple):
            return _compare(tuple(row[each] for each in name), sign, value)
        return _compare(row.get(name), sign, value)

    # Serialization

    def decode_row(self, row: bytes) -> list[Any]:
        values, position = [], 0
        for _, kind in self.markers:
            (size,) = SIZE.unpack_from(row, position)
            position += 4
            values.append(UNSET if size == -2 else None if size < 0 else decode(kind, row[position : position + size]))
            position += max(0, size)
        return values

    def type_of(self, column: str) -> str:
        """Returns the type of a selected column, or of a function of one."""
        if column.startswith("ttl("):
            return "int"
        if column.startswith(("count(", "writetime(")):
            return "bigint"
        return "timeuuid" if column == "now()" else self.table.types.get(column, "blob")

    def encode_result(self, rows: Rows) -> bytes:
        cells = [
            encode(self.type_of(name), value) for row in rows for name, value in zip(self.columns, row, strict=True)
        ]
        packed = [SIZE.pack(-1) if cell is None else SIZE.pack(len(cell)) + cell for cell in cells]
        return struct.pack(">iiii", 2, 4, len(self.columns), len(rows)) + b"".join(packed)


@lru_cache(maxsize=1000)
def command(cql: str) -> Command:
    return Command(cql)


def values_of(request: Encoded) -> Iterator[list[Any]]:
    parsed = command(request.statement.cql)
    return (parsed.decode_row(row) for row in request.rows)


def _column(row: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - of any type
    if name == ID_AS_BLOB:
        return row["id"].bytes
    return row.get(name)
