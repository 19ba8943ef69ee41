"""How processes wake each other, and what they learn from who does not listen."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from qdo.coordination import TargetAssignment
from qdo.coordination.local.wakeup_socket import OLD, WakeupSocket
from tests.qdo.contract.events import Heard, eventually
from tests.qdo.contract.processes import Process
from tests.qdo.contract.samples import ONE
from tests.qdo.local.conftest import MIDDLING, Join
from tests.replacing import replace


@pytest.fixture(params=["short", "long"])
def bells(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[WakeupSocket, WakeupSocket]]:
    """Two wakeup sockets beside one file, whose path is short or too long for a socket's address."""
    file = tmp_path / ("x" * 120 if request.param == "long" else "") / "file"
    file.parent.mkdir(exist_ok=True)
    found = WakeupSocket(file, "1"), WakeupSocket(file, "2")
    for wakeup_socket in found:
        wakeup_socket.open()
    yield found
    for wakeup_socket in found:
        wakeup_socket.close()


def is_rung(wakeup_socket: WakeupSocket) -> bool:
    """Waits until somebody rings."""
    assert wakeup_socket.socket is not None
    return bool(select.select([wakeup_socket.socket], [], [], 30)[0]) and wakeup_socket.hush()


def test_who_is_rung_wakes(bells: tuple[WakeupSocket, WakeupSocket]) -> None:
    """The one that is named becomes readable, once, and no other; however often it was rung."""
    mine, other = bells
    for _ in range(1000):
        mine.ring([other.name, "nobody"])
    assert is_rung(other)
    assert not other.hush()
    assert not mine.hush()


def test_nobody_is_taken_for_dead_for_want_of_files(bells: tuple[WakeupSocket, WakeupSocket]) -> None:
    """A process that may open no more files learns nothing of the others, and goes on."""
    mine, other = bells
    with mock.patch("socket.socket", side_effect=OSError(errno.EMFILE, "too many open files")):
        assert mine.silent([other.name]) == []


def test_only_the_dead_are_silent(bells: tuple[WakeupSocket, WakeupSocket]) -> None:
    """A process that ended without a word is told from one that listens, and from one that nobody knows."""
    mine, other = bells
    assert mine.silent([mine.name, other.name, "nobody"]) == []
    assert other.socket is not None
    other.socket.close()  # as the end of its process would
    assert mine.silent([mine.name, other.name, "nobody"]) == [other.name]
    mine.ring([other.name])


def test_what_dead_processes_left_is_removed(bells: tuple[WakeupSocket, WakeupSocket]) -> None:
    """The next one that comes cleans up, but leaves alone what is just being made."""
    mine, other = bells
    assert other.socket is not None
    other.socket.close()
    left = mine._directory / other.name
    again = WakeupSocket(left.parent.parent / "file", "3")
    again.open()
    assert left.exists()
    again.close()
    long_ago = left.stat().st_mtime - 2 * OLD
    os.utime(left, (long_ago, long_ago))
    os.utime(mine._directory / mine.name, (long_ago, long_ago))
    again.open()
    assert sorted(each.name for each in mine._directory.iterdir()) == sorted([mine.name, again.name])
    again.close()


async def test_without_bells_changes_are_heard_of_nevertheless(join: Join) -> None:
    """Where there can be no socket the file is looked at instead."""
    with replace(WakeupSocket.open, lambda _: None):
        mine, heard = await join("a", session_timeout=1000)
        other, _ = await join("b")
    for number in range(5):
        _, version = await other.target()
        wanted = TargetAssignment({}, {"n": float(number)})
        await mine.target()
        assert await other.set_target(wanted, version)
        while (await mine.target()).target != wanted:
            await heard.next("changed")


async def test_a_killed_process_is_noticed_before_its_session_ends(join: Join, path: Path) -> None:
    """Its socket refuses, so the others need not wait for its session, which would outlast this test."""
    process = await Process.start(f"local://{path}", "group", "killed", 1000)
    mine, heard = await join("a", session_timeout=MIDDLING)
    await process.ask("claim", [str(ONE)])
    assert set(await mine.members()) == {"a", "killed"}
    process.signal(signal.SIGKILL)
    await eventually(heard, lambda: mine.claim([ONE]), lambda held: ONE in held)
    assert set(await mine.members()) == {"a"}
    await process.end()
    assert len(list(path.with_name(f"{path.name}-bells").iterdir())) == 1


async def test_a_stopped_process_is_not_taken_for_dead(join: Join, path: Path) -> None:
    """As long as its session lasts it keeps what it has."""
    process = await Process.start(f"local://{path}", "group", "stopped", 1000)
    await process.ask("claim", [str(ONE)])
    process.signal(signal.SIGSTOP)
    first, _ = await join("a", session_timeout=MIDDLING)
    heard = Heard()
    await first.members()
    await join("b")
    await eventually(heard, first.members, lambda members: set(members) == {"a", "b", "stopped"})
    assert await first.claim([ONE]) == {}
    process.signal(signal.SIGCONT)
    assert await process.ask("commit", {str(ONE): "1"}) == [str(ONE)]
    await process.end()


def test_a_process_that_ends_without_closing_leaves_no_thread_behind(path: Path) -> None:
    """An interpreter ends although its coordinator was never closed."""
    program = f"""
import asyncio
from qdo.coordination import Member
from qdo.coordination.opening import open_coordinator
async def main():
    coordinator = open_coordinator("local://{path}", "group")
    await coordinator.open()
    await coordinator.join(Member("a"), print)
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=True, timeout=60, capture_output=True, text=True
    )
    assert ended.stderr == ""
