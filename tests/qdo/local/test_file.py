"""The file: private, made when needed, refused when it is not ours, and gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path

import apsw
import pytest

from qdo.coordination import Member, Session
from qdo.coordination.local import nodes
from qdo.coordination.local.database import APPLICATION_ID, FORMAT, CoordinationFile
from qdo.coordination.opening import open_coordinator
from qdo.errors import CoordinationIncompatible, CoordinationLost, SessionLost
from qdo.keepalive.vitals import now
from tests.qdo.contract.events import Heard
from tests.qdo.contract.processes import Process
from tests.qdo.contract.samples import ONE, some
from tests.qdo.local.conftest import MIDDLING, Join


async def test_the_file_and_its_directory_are_private(join: Join, path: Path) -> None:
    """Nobody else of the machine reads or rings what belongs to this user, whatever the mask says."""
    before = os.umask(0)
    try:
        session, _ = await join("a")
        await session.claim([ONE])
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    bells = path.with_name(f"{path.name}-bells")
    files = [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm"), *bells.iterdir()]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 4
    assert stat.S_IMODE(bells.stat().st_mode) == 0o700


async def refused(path: Path) -> str:
    """Returns why a file is refused, which must stay as it is."""
    before = path.read_bytes()
    coordinator = open_coordinator(f"local://{path}", "group")
    with pytest.raises(CoordinationIncompatible) as caught:
        await coordinator.open()
    with pytest.raises(CoordinationLost):
        await coordinator.members()
    assert path.read_bytes() == before
    return str(caught.value)


async def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    """A file of something else is left alone."""
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to be mistaken for one\n" * 100)
    assert "not a coordination file" in await refused(path)


async def test_another_database_is_refused(tmp_path: Path) -> None:
    """A database of something else is left alone, marked or not."""
    path = tmp_path / "other.sqlite3"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE things (name TEXT)")
    assert "something else" in await refused(path)
    connection.pragma("application_id", 0x1234)
    connection.close()
    assert "something else" in await refused(path)


async def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    """The error says what to do."""
    path = tmp_path / "other.sqlite3"
    connection = apsw.Connection(str(path))
    connection.pragma("application_id", APPLICATION_ID)
    connection.pragma("user_version", FORMAT + 1)
    connection.close()
    assert f"its format is {FORMAT + 1} and not {FORMAT}. To go on, update Qdo" in await refused(path)


async def test_a_damaged_file_is_refused(join: Join, path: Path) -> None:
    """Bytes that were overwritten are reported as damage when they are read, and suspend the members."""
    session, heard = await join("a", session_timeout=MIDDLING)
    await session.claim(some(1000))
    database = CoordinationFile(path, patience=10)
    with database.transaction(write=False):
        pass
    assert database._connection is not None
    database._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    database.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    coordinator = open_coordinator(f"local://{path}", "group")
    await coordinator.open()
    with pytest.raises(CoordinationIncompatible, match="damaged"):
        await coordinator.offsets()
    await coordinator.close()
    await heard.next("lost")
    assert heard.events[-2:] == ["suspended", "lost"]


async def test_a_place_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    """A directory where the file should be, or a file where its directory should be."""
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "coordination.sqlite3"):
        with pytest.raises(CoordinationLost):
            await open_coordinator(f"local://{path}", "group").open()


async def test_many_processes_begin_at_once(path: Path) -> None:
    """Whoever comes first makes the file, the others find it whole."""
    starting = [Process.start(f"local://{path}", "group", f"p{number}", 30) for number in range(8)]
    processes = await asyncio.gather(*starting)
    try:
        coordinator = open_coordinator(f"local://{path}", "group")
        await coordinator.open()
        assert set(await coordinator.members()) == {f"p{number}" for number in range(8)}
        await coordinator.close()
    finally:
        for process in processes:
            await process.end()


def test_a_file_that_is_filled_while_somebody_looks_is_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose it is, and what is in it, is looked up at one instant."""
    looks: list[str] = []

    def fill(_cursor: apsw.Cursor, statement: str, _bindings: object) -> bool:
        if "sqlite_schema" in statement and not looks:
            looks.append(statement)
            with contextlib.suppress(CoordinationLost), CoordinationFile(path, patience=0.0).transaction(write=False):
                pass
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = fill

    monkeypatch.setattr(apsw, "connection_hooks", [watch])
    file = CoordinationFile(path, patience=30.0)
    with file.transaction(write=False, create=True):
        assert looks
    file.close()


async def lose(session: Session, heard: Heard) -> None:
    """Waits until a session is lost, having been suspended before."""
    await heard.next("lost")
    assert [event for event in heard.events if event != "changed"] == ["suspended", "lost"]
    with pytest.raises(SessionLost):
        await session.claim([ONE])


async def test_a_file_that_is_removed_is_made_anew(join: Join, path: Path) -> None:
    """Its members are lost when their time is over; whoever joins then makes a new file that all see."""
    session, heard = await join("a", session_timeout=MIDDLING)
    await session.claim([ONE])
    path.unlink()
    with pytest.raises(CoordinationLost, match="gone"):
        await session.claim([ONE])
    await lose(session, heard)
    again, _ = await join("a")
    other, _ = await join("b")
    assert set(await again.members()) == set(await other.members()) == {"a", "b"}
    assert (await again.claim([ONE]))[ONE].offset.id is None


async def test_the_same_coordinator_joins_again_after_a_removal(path: Path) -> None:
    """A member whose file is gone needs nobody else to go on."""
    coordinator = open_coordinator(f"local://{path}", "group", session_timeout=MIDDLING)
    await coordinator.open()
    heard = Heard()
    await coordinator.join(Member("a"), heard)
    path.unlink()
    await heard.next("lost")
    again = await coordinator.join(Member("a"), Heard())
    assert set(await again.claim([ONE])) == {ONE}
    await coordinator.close()


async def test_a_file_that_takes_anothers_place_knows_no_session(join: Join, path: Path) -> None:
    """What was held in the file before is worth nothing in the new one."""
    session, heard = await join("a")
    held = (await session.claim([ONE]))[ONE]
    path.unlink()
    other, _ = await join("b")
    claimed = (await other.claim([ONE]))[ONE]
    with pytest.raises(SessionLost):
        await session.commit([(held, "1")])
    await heard.next("lost")
    assert (await other.commit([(claimed, "2")]))[ONE]


async def test_a_locked_file_suspends(join: Join, path: Path) -> None:
    """A transaction of somebody else that takes long suspends the members; they go on after it."""
    session, heard = await join("a", session_timeout=9.0)
    blocking = CoordinationFile(path, patience=10)
    with blocking.transaction():
        with pytest.raises(CoordinationLost, match="locked"):
            await session.claim([ONE])
        await heard.next("suspended")
    blocking.close()
    await heard.next("connected")
    assert set(await session.claim([ONE])) == {ONE}


async def test_a_file_locked_for_long_ends_the_sessions(join: Join, path: Path) -> None:
    """A process that is stopped in the middle of a transaction keeps nobody in doubt for longer than a session."""
    session, heard = await join("a", session_timeout=MIDDLING)
    blocking = CoordinationFile(path, patience=10)
    with blocking.transaction():
        await lose(session, heard)
    blocking.close()
    again, _ = await join("a")
    assert set(await again.members()) == {"a"}


async def test_a_session_from_before_a_reboot_is_dead(join: Join, path: Path) -> None:
    """The clock starts again with the machine: an end that is further off than the timeout means nothing."""
    await (await join("a"))[0].claim([ONE])
    database = CoordinationFile(path, patience=10)
    with database.transaction() as tx:
        tx.execute("UPDATE sessions SET expires = ?", (now() + 86_400,))
    database.close()
    other, _ = await join("b")
    assert set(await other.members()) == {"b"}
    assert set(await other.claim([ONE])) == {ONE}
    again, _ = await join("a")
    assert set(await again.members()) == {"a", "b"}


@pytest.mark.parametrize(("sync", "level"), [(False, 1), (True, 2)])
def test_commits_wait_for_the_disk_when_asked(path: Path, *, sync: bool, level: int) -> None:
    """By default what processes leave behind is kept when they crash; with sync also when the machine does."""
    database = CoordinationFile(path, patience=1, sync=sync)
    with database.transaction(create=True) as tx:
        assert tx.one("PRAGMA synchronous") == (level,)
        assert tx.one("PRAGMA journal_mode") == ("wal",)
    database.close()


def test_a_sign_of_life_during_a_look_ends_no_session(tmp_path: Path) -> None:
    """What is looked at is settled before the clock is read, so that no session ends further off than it may."""
    file = CoordinationFile(tmp_path / "coordination", patience=1)
    with file.transaction(create=True) as tx:
        nodes.NodeChanges(tx, 1, "scope", lambda *_: True).begin(MIDDLING)
    other = CoordinationFile(file.path, patience=1)
    with file.transaction(write=False) as tx:
        with other.transaction() as beating:
            nodes.renew(beating, 1)
        assert not nodes.dead(tx)
    file.close()
    other.close()
