"""Backups of the embedded store: their contents, and that neither a backup nor a restore is ever left half done."""

from __future__ import annotations

import fcntl
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from queuey.model import ids
from queuey.model.errors import StoreBusy, StoreFull, StoreIncompatible, StoreUnavailable
from queuey.model.messages import NewMessage, Queue, QueueSpec, Slice
from queuey.storage import Store, bridge
from queuey.storage.sqlite import SqliteOptions, backup, check, open_store
from queuey.storage.sqlite.connection import FILE, connect
from tests.replacing import replace

APP = "app"
OPTIONS = SqliteOptions(sync="normal", sweep_interval=None)
LARGE = "x" * 30_000
MANY = 3000
"""Number of messages whose copy takes several progress reports."""
TEXT = "no database at all\n" * 1000


def ignore_progress(text: str, done: int, total: int | None) -> None:
    pass


def post(store: Store, queue: Queue, *bodies: str) -> list[tuple[int, int]]:
    return bridge.run(store.messages.append(queue, [NewMessage(body=body, partition=1, ttl=3600) for body in bodies]))


def bodies(directory: Path, name: str = "q") -> list[str]:
    with closing(open_store(directory, options=OPTIONS)) as store:
        queue = bridge.run(store.catalogue.queue(APP, name))
        return [
            str(message.body) for page in bridge.run(store.messages.read(queue, [WHOLE])) for message in page.messages
        ]


WHOLE = Slice(1, limit=1_000_000, max_bytes=1 << 40)
"""A slice of all of partition 1."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Makes the directory of a closed store with an application, a queue and three messages."""
    with closing(open_store(tmp_path / "data", options=OPTIONS)) as store:
        bridge.run(store.applications.create_application(APP))
        queue, _ = bridge.run(store.catalogue.create_queue(APP, "q", QueueSpec()))
        post(store, queue, "a", "b", "c")
    return tmp_path / "data"


def find_leftover_files(directory: Path) -> list[str]:
    """Returns files that are neither a store nor a backup."""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith(".") or "-" in path.name)


def test_a_backup_restored_elsewhere(data: Path, tmp_path: Path) -> None:
    """A store restored from a backup has the messages that the backup counted, and continues."""
    target = tmp_path / "copy.sqlite3"
    contents = backup.back_up(data, target, OPTIONS, ignore_progress)
    assert (contents.applications, contents.queues, contents.messages) == (1, 1, 3)
    assert contents.size == target.stat().st_size
    assert target.stat().st_mode & 0o077 == 0
    assert backup.restore(target, tmp_path / "new", OPTIONS, ignore_progress) == contents
    assert find_leftover_files(tmp_path) == find_leftover_files(tmp_path / "new") == []
    assert check(tmp_path / "new") == []
    with closing(open_store(tmp_path / "new", options=OPTIONS)) as store:
        post(store, bridge.run(store.catalogue.queue(APP, "q")), "d")
    assert bodies(tmp_path / "new") == ["a", "b", "c", "d"]


def test_one_moment_while_others_write(data: Path, tmp_path: Path) -> None:
    """A backup made beside a writer has all messages acknowledged before it began, and the first of the later ones."""
    with closing(open_store(data, options=OPTIONS)) as store:
        first, _ = bridge.run(store.catalogue.create_queue(APP, "first", QueueSpec()))
        second, _ = bridge.run(store.catalogue.create_queue(APP, "second", QueueSpec()))
        written, ended = [0], threading.Event()

        def write() -> None:
            for number in count():
                if ended.is_set():
                    return
                post(store, (first, second)[number % 2], str(number))
                written[0] = number + 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for turn in range(4):
                until = written[0] + 20
                deadline = time.monotonic() + 60
                while written[0] < until and time.monotonic() < deadline:
                    time.sleep(0.002)
                least = written[0]
                target = tmp_path / f"{turn}.sqlite3"
                backup.back_up(data, target, OPTIONS, ignore_progress)
                backup.restore(target, tmp_path / f"{turn}", OPTIONS, ignore_progress)
                found = sorted(int(body) for name in ("first", "second") for body in bodies(tmp_path / f"{turn}", name))
                assert found == list(range(len(found)))
                assert len(found) >= least >= 20
        finally:
            ended.set()
            writer.join(60)


def test_a_backup_is_compact(data: Path, tmp_path: Path) -> None:
    """A backup leaves out unused space of the store's file."""
    with closing(open_store(data, options=OPTIONS)) as store:
        queue = bridge.run(store.catalogue.queue(APP, "q"))
        places = [(1, place) for _ in range(20) for place in post(store, queue, LARGE)]
        bridge.run(store.messages.delete(queue, places))
    contents = backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    assert contents.messages == 3
    assert contents.size < (data / FILE).stat().st_size / 3


def test_an_existing_file_stays_unless_asked(data: Path, tmp_path: Path) -> None:
    """Neither a file nor a store is replaced unless the caller asks for it."""
    target = tmp_path / "b"
    backup.back_up(data, target, OPTIONS, ignore_progress)
    before = target.read_bytes()
    with pytest.raises(FileExistsError):
        backup.back_up(data, target, OPTIONS, ignore_progress)
    with pytest.raises(FileExistsError):
        backup.restore(target, data, OPTIONS, ignore_progress)
    assert target.read_bytes() == before
    assert bodies(data) == ["a", "b", "c"]
    assert backup.restore(target, tmp_path / "new", OPTIONS, ignore_progress).sha256 is not None
    assert find_leftover_files(tmp_path) == find_leftover_files(data) == []


def test_a_store_in_use_is_not_replaced(data: Path, tmp_path: Path) -> None:
    """A restore over a store that a process has open is refused, and the process is not affected."""
    target = tmp_path / "b"
    backup.back_up(data, target, OPTIONS, ignore_progress)
    with closing(open_store(data, options=OPTIONS)) as store:
        queue = bridge.run(store.catalogue.queue(APP, "q"))
        post(store, queue, "d")
        with pytest.raises(StoreBusy, match=r"is in use\. Stop the service"):
            backup.restore(target, data, OPTIONS, ignore_progress, replace=True)
        post(store, queue, "e")
        bridge.run(store.ping())
    assert bodies(data) == ["a", "b", "c", "d", "e"]
    backup.restore(target, data, OPTIONS, ignore_progress, replace=True)
    assert bodies(data) == ["a", "b", "c"]
    assert find_leftover_files(data) == []


def test_ids_go_on_after_a_restore(data: Path, tmp_path: Path) -> None:
    """Neither message ids nor queue numbers of the replaced store are reused, although its clock was ahead."""
    backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    ahead = SqliteOptions(
        sync="normal", sweep_interval=None, clock=lambda: ids.now_ticks() + 3600 * ids.TICKS_PER_SECOND
    )
    with closing(open_store(data, options=ahead)) as store:
        late, _ = bridge.run(store.catalogue.create_queue(APP, "late", QueueSpec()))
        (newest,) = post(store, late, "late")
    backup.restore(tmp_path / "b", data, OPTIONS, ignore_progress, replace=True)
    with closing(open_store(data, options=OPTIONS)) as store:
        again, _ = bridge.run(store.catalogue.create_queue(APP, "late", QueueSpec()))
        assert min(again.qid, again.uid) > max(late.qid, late.uid)
        assert post(store, again, "new")[0] > newest


def test_delayed_messages_are_restored(data: Path, tmp_path: Path) -> None:
    """A delayed message of a backup becomes due on time, also if ids continue above it."""
    with closing(open_store(data, options=OPTIONS)) as store:
        queue = bridge.run(store.catalogue.queue(APP, "q"))
        bridge.run(store.messages.append(queue, [NewMessage(body="due", partition=1, ttl=9000, delay=1800.0)]))
    backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    backup.restore(tmp_path / "b", tmp_path / "new", OPTIONS, ignore_progress)
    assert bodies(tmp_path / "new") == ["a", "b", "c"]
    ahead = SqliteOptions(
        sync="normal", sweep_interval=None, clock=lambda: ids.now_ticks() + 2000 * ids.TICKS_PER_SECOND
    )
    with closing(open_store(data, options=ahead)) as store:
        post(store, bridge.run(store.catalogue.queue(APP, "q")), "late")
    backup.restore(tmp_path / "b", data, OPTIONS, ignore_progress, replace=True)
    with closing(open_store(data, options=OPTIONS)) as store:
        queue = bridge.run(store.catalogue.queue(APP, "q"))
        (newer,) = post(store, queue, "new")
        [page] = bridge.run(store.messages.read(queue, [WHOLE]))
        assert [message.body for message in page.messages] == ["a", "b", "c", "due", "new"]
        assert newer == page.messages[-1].position


def write_foreign_database(path: Path) -> None:
    path.unlink()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE t (x)")


def overwrite_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 300] = random.Random(start).randbytes(300)
    path.write_bytes(content)


HARMS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text(TEXT),
    "a database of another program": write_foreign_database,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-8192]),
    "overwritten": overwrite_pages,
    "empty": lambda path: path.write_bytes(b""),
    "with a log": lambda path: path.with_name(f"{path.name}-wal").write_bytes(b"log"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_no_backup_is_refused(data: Path, tmp_path: Path, harm: str) -> None:
    """A file that is not a sound backup is refused with an error that names it; the present store stays."""
    target = tmp_path / "b"
    backup.back_up(data, target, OPTIONS, ignore_progress)
    HARMS[harm](target)
    with pytest.raises(StoreIncompatible, match=str(target)):
        backup.restore(target, data, OPTIONS, ignore_progress, replace=True)
    with pytest.raises(StoreIncompatible, match=str(target)):
        backup.restore(target, tmp_path / "new", OPTIONS, ignore_progress)
    assert bodies(data) == ["a", "b", "c"]
    assert list((tmp_path / "new").glob("*")) == []


def test_a_damaged_store_is_not_backed_up(data: Path, tmp_path: Path) -> None:
    """A backup of a damaged store fails and leaves no file."""
    overwrite_pages(data / FILE)
    with pytest.raises((StoreUnavailable, StoreIncompatible)):
        backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    assert not (tmp_path / "b").exists()
    assert find_leftover_files(tmp_path) == []


def test_a_damaged_store_is_not_replaced(data: Path, tmp_path: Path) -> None:
    """It is unknown whether a damaged store is in use, so the error says how to move it away; then a restore works."""
    backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    (data / FILE).write_text(TEXT)
    with pytest.raises(StoreUnavailable, match=r"move queuey\.sqlite3 and the files beside it to another place"):
        backup.restore(tmp_path / "b", data, OPTIONS, ignore_progress, replace=True)
    (data / FILE).rename(tmp_path / "aside")
    (data / f"{FILE}-wal").write_bytes(b"an old log")
    with pytest.raises(StoreUnavailable, match=f"{FILE}-wal exists: remains of a store"):
        backup.restore(tmp_path / "b", data, OPTIONS, ignore_progress)
    (data / f"{FILE}-wal").unlink()
    backup.restore(tmp_path / "b", data, OPTIONS, ignore_progress)
    assert bodies(data) == ["a", "b", "c"]


@pytest.mark.parametrize("stage", ["copying", "checking"])
def test_an_interrupted_command_leaves_nothing(data: Path, tmp_path: Path, stage: str) -> None:
    """Ctrl-C at any stage leaves no file, and the store as it was."""
    with closing(open_store(data, options=OPTIONS)) as store:
        post(store, bridge.run(store.catalogue.queue(APP, "q")), *["x"] * MANY)
    target = tmp_path / "b"

    def interrupt(text: str, done: int, total: int | None) -> None:
        if text == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup.back_up(data, target, OPTIONS, interrupt)
    assert not target.exists()
    contents = backup.back_up(data, target, OPTIONS, ignore_progress)
    with pytest.raises(KeyboardInterrupt):
        backup.restore(target, data, OPTIONS, interrupt, replace=True)
    assert find_leftover_files(tmp_path) == find_leftover_files(data) == []
    assert len(bodies(data)) == contents.messages == MANY + 3


def test_files_of_killed_commands_go(data: Path, tmp_path: Path) -> None:
    """The next command removes leftovers of a killed one, but not files of a running command or of other programs."""
    names = (".b.1.queuey-partial", ".of-yesterday.1.queuey-partial", ".b.2.queuey-partial", ".b.1.partial")
    dead, older, alive, of_others = (tmp_path / name for name in names)
    for path in (dead, older, alive, of_others):
        path.write_bytes(b"half")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    assert [path.exists() for path in (dead, older, alive, of_others)] == [False, False, True, True]


@pytest.mark.needs_programs
@pytest.mark.parametrize("name", ["b", "with space", "back\\slash", "line\nend"])
def test_the_checksum_beside_a_backup(data: Path, tmp_path: Path, name: str) -> None:
    """A backup has a checksum file in the format of sha256sum; a backup that differs by one byte is not restored."""
    with closing(open_store(data, options=OPTIONS)) as store:
        post(store, bridge.run(store.catalogue.queue(APP, "q")), "a body with 100 in it")
    target = tmp_path / name
    contents = backup.back_up(data, target, OPTIONS, ignore_progress)
    checksum = tmp_path / f"{name}.sha256"
    assert checksum.stat().st_mode & 0o077 == 0
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", checksum.name], cwd=tmp_path, check=True)
    target.write_bytes(target.read_bytes().replace(b"with 100 in", b"with 900 in"))
    with pytest.raises(StoreIncompatible, match="its SHA-256 is"):
        backup.restore(target, tmp_path / "new", OPTIONS, ignore_progress)
    checksum.write_text("nothing\n")
    with pytest.raises(StoreIncompatible, match="has no line of sha256sum"):
        backup.restore(target, tmp_path / "new", OPTIONS, ignore_progress)
    with pytest.raises(FileExistsError):
        backup.back_up(data, target, OPTIONS, ignore_progress, replace=True)
    checksum.unlink()
    # Without the checksum the change is not detected.
    assert backup.restore(target, tmp_path / "new", OPTIONS, ignore_progress).sha256 is None
    assert bodies(tmp_path / "new")[-1] == "a body with 900 in it"
    again = backup.back_up(data, target, OPTIONS, ignore_progress, replace=True)
    assert again == backup.back_up(data, target, OPTIONS, ignore_progress, replace=True)
    assert again.sha256 is not None
    assert again.sha256 in checksum.read_text()
    assert again.messages == contents.messages


# Processes

KILLED = """
import os, signal, sys
from pathlib import Path
from queuey.storage.sqlite import SqliteOptions, backup

what, stage, first, second = sys.argv[1:]

def tell(text, done, total):
    if text == stage:
        os.kill(os.getpid(), signal.SIGKILL)

options = SqliteOptions(sync="normal", sweep_interval=None)
print("begins", flush=True)
if what == "back up":
    backup.back_up(Path(first), Path(second), options, tell, replace=True)
else:
    backup.restore(Path(first), Path(second), options, tell, replace=True)
"""


def run_until_killed(*arguments: str) -> None:
    """Runs a command that kills itself at a stage."""
    command = [sys.executable, "-c", KILLED, *arguments]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=300)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.needs_programs
def test_killed_in_the_middle(data: Path, tmp_path: Path) -> None:
    """A killed backup leaves the previous one; a killed restore leaves the previous store."""
    target = tmp_path / "b"
    backup.back_up(data, target, OPTIONS, ignore_progress)
    with closing(open_store(data, options=OPTIONS)) as store:
        post(store, bridge.run(store.catalogue.queue(APP, "q")), *["x"] * MANY)
    before = target.read_bytes()
    run_until_killed("back up", "copying", str(data), str(target))
    run_until_killed("back up", "checking", str(data), str(target))
    assert target.read_bytes() == before
    run_until_killed("restore", "checking", str(target), str(data))
    assert len(bodies(data)) == MANY + 3
    assert len(find_leftover_files(tmp_path)) == len(find_leftover_files(data)) == 1
    assert backup.back_up(data, target, OPTIONS, ignore_progress, replace=True).messages == MANY + 3
    backup.restore(target, data, OPTIONS, ignore_progress, replace=True)
    assert find_leftover_files(tmp_path) == find_leftover_files(data) == []


def test_a_process_that_starts_during_a_restore(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has opened the old file fails, so it never writes beside the new one."""
    backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    real, steps = apsw.Connection, list[str]()

    def open_before_the_restore(file: str, *arguments: Any, **options: Any) -> apsw.Connection:  # noqa: ANN401 - apsw's
        connection = real(file, *arguments, **options)
        if not steps:
            steps.append("opened")
            backup.restore(tmp_path / "b", data, OPTIONS, ignore_progress, replace=True)
            steps.append("restored")
        return connection

    monkeypatch.setattr(apsw, "Connection", open_before_the_restore)
    with pytest.raises(StoreUnavailable):
        connect(data / FILE, OPTIONS)
    monkeypatch.undo()
    assert steps == ["opened", "restored"]
    assert find_leftover_files(data) == []
    assert bodies(data) == ["a", "b", "c"]


def test_a_full_disk_is_that_of_the_backup(data: Path, tmp_path: Path) -> None:
    """If the disk is full during the copy, the error names the copy, not the store."""

    def full(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    with replace(backup._vacuum_into, full), pytest.raises(StoreFull, match=f"no space left for {tmp_path / 'b'}"):
        backup.back_up(data, tmp_path / "b", OPTIONS, ignore_progress)
    assert find_leftover_files(tmp_path) == []
