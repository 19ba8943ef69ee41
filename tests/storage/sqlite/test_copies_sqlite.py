"""Copies of the embedded store's file: one that lacks the write-ahead log is refused, and the store itself never is."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from queuey import embedded
from queuey.client import ServiceUnavailable
from queuey.model.errors import StoreIncompatible
from queuey.storage.sqlite import SqliteOptions, backup, doctor, open_store
from queuey.storage.sqlite.connection import FILE
from tests.storage.sqlite.test_backup_sqlite import bodies, data, find_leftover_files, ignore_progress

__all__ = ["data"]
OPTIONS = SqliteOptions(sync="normal", sweep_interval=None)
PROGRAM = """
import sys
from pathlib import Path
from queuey.model.messages import NewMessage
from queuey.storage import bridge
from queuey.storage.sqlite import SqliteOptions, open_store

store = open_store(Path(sys.argv[1]), options=SqliteOptions(sync="full", sweep_interval=None))
queue = bridge.run(store.catalogue.queue("app", "q"))
for body in sys.argv[2:]:
    bridge.run(store.messages.append(queue, [NewMessage(body=body, partition=1, ttl=3600)]))
print("ready", flush=True)
sys.stdin.readline()
store.close()
print("closed", flush=True)
"""
"""Opens a store, posts messages, and closes it once it is told to."""


@contextmanager
def using(directory: Path, *posts: str) -> Iterator[subprocess.Popen[bytes]]:
    """Keeps a store open in another process, which has posted messages; kills the process in the end."""
    command = [sys.executable, "-c", PROGRAM, str(directory), *posts]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def copy_alone(directory: Path, target: Path) -> Path:
    """Copies the file of a store alone, as the file of a new directory."""
    target.mkdir()
    shutil.copy(directory / FILE, target / FILE)
    return target


def read_by_shell(directory: Path) -> None:
    """Reads the file with plain SQLite, which removes a log that a killed process has left."""
    with closing(sqlite3.connect(directory / FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchall() > [(0,)]


@pytest.fixture
def incomplete(data: Path, tmp_path: Path) -> Path:
    """A copy of the file alone, taken while a process had posted a message that is only in the log."""
    with using(data, "new"):
        return copy_alone(data, tmp_path / "copy")


Opening = Callable[[Path, Path], object]
OPENINGS: dict[str, Opening] = {
    "a store": lambda copy, _: open_store(copy, options=OPTIONS),
    "a backup of it": lambda copy, tmp_path: backup.back_up(copy, tmp_path / "b", OPTIONS, ignore_progress),
    "a restore of it": lambda copy, tmp_path: backup.restore(copy / FILE, tmp_path / "r", OPTIONS, ignore_progress),
    "the service in a program": lambda copy, _: embedded.open(copy / FILE),
}


@pytest.mark.needs_programs
@pytest.mark.parametrize("what", OPENINGS)
def test_a_copy_without_its_log(incomplete: Path, tmp_path: Path, what: str) -> None:
    """A copy of the file of an open store is refused each time, with what to do, and is not changed."""
    before = (incomplete / FILE).read_bytes()
    for _ in range(2):
        with pytest.raises((StoreIncompatible, ServiceUnavailable), match="queuey backup") as refusal:
            OPENINGS[what](incomplete, tmp_path)
        assert "newest messages may be missing" in str(refusal.value)
        assert (incomplete / FILE).read_bytes() == before
        assert [path.name for path in incomplete.iterdir()] == [FILE]
    assert not find_leftover_files(tmp_path)
    [finding] = [found for found in doctor.examine(incomplete, OPTIONS) if found.check == "integrity"]
    assert (finding.state, "is a copy" in finding.text) == ("fail", True)


@pytest.mark.needs_programs
def test_a_copy_that_is_accepted(incomplete: Path) -> None:
    """The command in the refusal opens the copy as it is."""
    with pytest.raises(StoreIncompatible) as refusal:
        open_store(incomplete, options=OPTIONS)
    file, statement = str(refusal.value).partition("run: sqlite3 ")[2].split(" ", 1)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement.strip("'"))
    assert bodies(incomplete) == ["a", "b", "c"]


def stay(_data: Path, _tmp_path: Path) -> None:
    """Changes nothing."""


def move_directory(data: Path, tmp_path: Path) -> None:
    data.rename(tmp_path / "moved")
    (tmp_path / "moved").rename(data)


def copy_directory(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "all")
    shutil.rmtree(data)
    (tmp_path / "all").rename(data)


def copy_and_kill(data: Path, tmp_path: Path) -> None:
    """Opens a copy of everything in a process that is killed, and then reads it with plain SQLite."""
    copy_directory(data, tmp_path)
    with using(data):
        pass
    read_by_shell(data)


def lose_log(data: Path, _tmp_path: Path) -> None:
    read_by_shell(data)
    assert not (data / f"{FILE}-wal").exists()


ACTS = {
    "nothing": stay,
    "a move": move_directory,
    "a copy of all files": copy_directory,
    "a copy of all files, and a kill": copy_and_kill,
    "SQLite's shell": lose_log,
}


@pytest.mark.needs_programs
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_is_never_refused(data: Path, tmp_path: Path, act: str, end: str) -> None:
    """A store opens with all its messages after a close or a kill, and whatever happened to all of its files since."""
    with using(data, "new") as process:
        if end == "closed":
            assert process.communicate(b"\n", timeout=100)[0] == b"closed\n"
    ACTS[act](data, tmp_path)
    for _ in range(2):
        assert bodies(data) == ["a", "b", "c", "new"]
        assert find_leftover_files(data) == []
