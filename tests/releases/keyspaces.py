"""A version's keyspace: its rows as Cassandra's JSON, written into a keyspace of the present version."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from queuey.storage.cassandra.cluster import Driver, Statement, open_driver
from queuey.storage.cassandra.cluster.options import parse_url
from queuey.storage.cassandra.cluster.timing import KeyspaceTiming, LevelTiming
from tests.servers.keyspaces import OPTIONS

SHORT = KeyspaceTiming(0.6, 0.1, {"strong": LevelTiming(1.2, 0.1, 1.9), "very_strong": LevelTiming(3.0, 0.1, 3.7)})
"""Timing of a keyspace with which messages can be read and claimed soon."""
ROOT = Path(__file__).parents[2]
PROCESS_TABLES = {"heartbeats", "migrations", "recent_writes"}
"""Tables about running processes, and about the keyspace itself."""
TABLES = Statement("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?")


class ReleasedKeyspace(msgspec.Struct):
    """The record of a version's keyspace.

    Attributes:
        clock: A time at which all rows existed (ticks).
        tables: The rows of each table, without columns that are null.
        rows: The same as the storage contract shows them.
        files: Hashes of the files in ``cql`` by name.
    """

    clock: int
    tables: dict[str, list[dict[str, Any]]]
    rows: dict[str, Any]
    files: dict[str, str]


def read(folder: Path) -> ReleasedKeyspace:
    return msgspec.json.decode(gzip.decompress((folder / "keyspace.gz").read_bytes()), type=ReleasedKeyspace)


def schema_hashes() -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((ROOT / "cql").glob("*.cql"))}


def dump(url: str) -> dict[str, list[dict[str, Any]]]:
    """Returns all rows of a keyspace that outlive processes."""
    with open_driver(parse_url(url), OPTIONS, 60) as driver:
        names = [str(row[0]) for row in driver.run(TABLES, (parse_url(url).keyspace,))]
        return {name: _rows(driver, name) for name in sorted(set(names) - PROCESS_TABLES)}


def _rows(driver: Driver, table: str) -> list[dict[str, Any]]:
    decoded = (json.loads(str(row[0])) for row in driver.run(Statement(f"SELECT JSON * FROM {table}")))
    return [{name: value for name, value in row.items() if value is not None} for row in decoded]


def load(url: str, tables: dict[str, list[dict[str, Any]]]) -> None:
    with open_driver(parse_url(url), OPTIONS, 60) as driver:
        for table, rows in tables.items():
            for row in rows:
                values = ", ".join(["fromJson(?)"] * len(row))
                statement = Statement(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})")
                driver.run(statement, tuple(json.dumps(value) for value in row.values()))
