"""Writes the record of the present version: ``python -m tests.releases``."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

import apsw
import msgspec

from queuey import __version__, ids
from tests.backends import APP
from tests.releases import program, recording
from tests.releases.recording import HERE, Released

AGE = 86_400
"""Seconds that the recorded time lies in the past, so that the archive's buckets are closed."""


def record(directory: Path, work: Path) -> None:
    """Fills a store, asks for everything in it, and writes a release's files."""
    clock = ids.now_ticks() - AGE * ids.TICKS_PER_SECOND
    data = work / "data"
    with recording.opened(data, clock) as store:
        store.create_application(APP)
        store.add_key(APP, recording.DIGEST)
        with recording.served(store) as service, service.client() as client:
            kept = program.fill(client)
        recording.fill_rest(store)
        rows = recording.rows(store)
    file = data / "queuey.sqlite3"
    _require_all_tables(file)
    _pack(file, directory / "store.gz")
    with recording.opened(data, clock) as store, recording.served(store) as service, service.client() as client:
        answers = {name: program.plain(answer) for name, answer in program.ask(client, kept)}
    groups = work / "qdo.sqlite3"
    asyncio.run(recording.fill_groups(groups))
    _pack(groups, directory / "groups.gz")
    offsets = asyncio.run(recording.offsets(groups))
    released = Released(__version__, clock, kept, rows, service.exchanges, answers, offsets, recording.tables())
    (directory / "record.gz").write_bytes(gzip.compress(msgspec.json.encode(released), mtime=0))
    shutil.copy(HERE / "program.py", directory)
    (directory / "__init__.py").write_text(
        f'"""The record of version {__version__}; nothing here changes any more."""\n'
    )
    _archive(directory, work)


def _require_all_tables(file: Path) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        empty = [name for name in names if not connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchall()]
    if empty:
        raise SystemExit(f"Nothing is written into {', '.join(empty)}: add it to program.py or recording.py")


def _pack(file: Path, target: Path) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    target.write_bytes(gzip.compress(file.read_bytes(), mtime=0))


def _archive(directory: Path, work: Path) -> None:
    """Archives the recorded store, on Spark."""
    recording.unpack(directory / "store.gz", work / "again" / "queuey.sqlite3")
    command = [sys.executable, "-m", "queuey", "pipeline", "archive", "plain", "--app", APP]
    subprocess.run([*command, "--data", str(work / "again"), "--to", str(work / "archive")], check=True)
    with tarfile.open(directory / "archive.tar.gz", "w:gz") as packed:
        packed.add(work / "archive", "archive")


def main() -> None:
    """Writes the folder of the present version, in place of one that is there."""
    directory = HERE / f"v{__version__.replace('.', '_')}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    with tempfile.TemporaryDirectory() as work:
        record(directory, Path(work))
    print(f"Wrote {directory.relative_to(recording.ROOT)}")  # noqa: T201


if __name__ == "__main__":
    main()
