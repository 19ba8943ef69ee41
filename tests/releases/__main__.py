"""Writes the record of the present version: ``python -m tests.releases``; or parts of it: ``… keyspace``."""

from __future__ import annotations

import gzip
import importlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw
import msgspec
from packaging.version import Version

from deploy.local import start_cassandra
from queuey import __version__
from queuey.model import ids
from queuey.storage import Store, bridge
from queuey.storage.cassandra import open_store as open_cassandra
from tests.backends import APP, CassandraLocation, Clock
from tests.releases import recording
from tests.releases.keyspaces import SHORT, ReleasedKeyspace, dump, schema_hashes
from tests.releases.recording import HERE, Released, folders
from tests.servers.keyspaces import close, make, set_timing

AGE = 86_400
"""Age of the recorded time in seconds, so that the archive's buckets are closed."""


def record_store(directory: Path, work: Path) -> None:
    clock = ids.now_ticks() - AGE * ids.TICKS_PER_SECOND
    data = work / "data"
    with recording.opened(data, clock) as store:
        kept = fill(store, program_of(directory))
    clock += ids.TICKS_PER_SECOND  # No message is delayed because its id was made while the clock stood still.
    file = data / "queuey.sqlite3"
    _require_all(_tables(file))
    _pack(file, directory / "store.gz")
    with recording.opened(data, clock) as store:
        rows = recording.rows(store)
    with recording.opened(data, clock) as store, recording.served(store) as service, service.client() as client:
        answers = {name: recording.plain(answer) for name, answer in program_of(directory).ask(client, kept)}
    _write(directory / "record.gz", Released(__version__, clock, kept, rows, service.exchanges, answers))
    _archive(directory, work)


def record_keyspace(directory: Path, _: Path) -> None:
    _write(directory / "keyspace.gz", fill_keyspace(program_of(directory)))


PARTS = {"store": record_store, "keyspace": record_keyspace}


def _write(path: Path, content: msgspec.Struct) -> None:
    path.write_bytes(gzip.compress(msgspec.json.encode(content), mtime=0))


def program_of(directory: Path) -> ModuleType:
    """Returns the program of a record; a new record begins with a copy of the last version's."""
    if not (directory / "program.py").exists():
        shutil.copy(folders()[-1] / "program.py", directory)
    return importlib.import_module(f"tests.releases.{directory.name}.program")


def fill(store: Store, program: ModuleType) -> dict[str, Any]:
    """Writes everything into an empty store; returns what the program's second part needs."""
    bridge.run(store.applications.create_application(APP))
    bridge.run(store.applications.add_key(APP, recording.DIGEST))
    with recording.served(store) as service, service.client() as client:
        kept: dict[str, Any] = program.fill(client)
    recording.fill_rest(store)
    return kept


def fill_keyspace(program: ModuleType) -> ReleasedKeyspace:
    with start_cassandra(1) as cluster:
        url = make(cluster)
        try:
            set_timing(url, SHORT)
            with closing(open_cassandra(url)) as store:
                assert store.ready(60)
                fill(store, program)
                clock = bridge.run(store.ledger.now())
            tables = dump(url)
            _require_all(tables)
            with closing(CassandraLocation(url).open(Clock(clock))) as store:
                return ReleasedKeyspace(clock, tables, recording.rows(store), schema_hashes())
        finally:
            close()


def _tables(file: Path) -> dict[str, list[Any]]:
    with closing(apsw.Connection(str(file))) as connection:
        names = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name} LIMIT 1").fetchall() for name in names}


def _require_all(tables: Mapping[str, Sequence[object]]) -> None:
    """Exits with the names of tables that have no rows."""
    if empty := [name for name, rows in tables.items() if not rows]:
        raise SystemExit(f"Nothing is written into {', '.join(empty)}: add it to program.py or recording.py")


def _pack(file: Path, target: Path) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    target.write_bytes(gzip.compress(file.read_bytes(), mtime=0))


def _archive(directory: Path, work: Path) -> None:
    recording.unpack(directory / "store.gz", work / "again" / "queuey.sqlite3")
    command = [sys.executable, "-m", "queuey", "pipeline", "archive", "plain", "--app", APP]
    subprocess.run([*command, "--data", str(work / "again"), "--to", str(work / "archive")], check=True)
    with tarfile.open(directory / "archive.tar.gz", "w:gz") as packed:
        packed.add(work / "archive", "archive")


def main(parts: Sequence[str]) -> None:
    """Writes parts of the present version's record, by default all."""
    version = Version(__version__).base_version
    directory = HERE / f"v{version.replace('.', '_')}"
    directory.mkdir(exist_ok=True)
    (directory / "__init__.py").write_text(f'"""The record of version {version}."""\n')
    for part_name in parts or PARTS:
        with tempfile.TemporaryDirectory() as work:
            PARTS[part_name](directory, Path(work))
        print(f"Wrote {part_name} of {directory.name}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
