"""The real service of the fixtures ends with the program that has started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from queuey.testing.real import RealProcess
from tests.servers.processes import is_alive
from tests.waiting import until

TIMEOUT = 120.0
PROGRAM = """
import sys, time
from pathlib import Path
from queuey.testing.real import RealProcess
with RealProcess(Path(sys.argv[1])):
    print("up", flush=True)
    time.sleep(600)
"""


def list_descendants(pid: int) -> list[int]:
    """Returns the processes that a process and its descendants have started."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            children += map(int, (task / "children").read_text().split())
    return [*children, *(each for child in children for each in list_descendants(child))]


@contextmanager
def running_program(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(directory)], stdout=subprocess.PIPE)
    try:
        yield program
    finally:
        program.kill()
        program.communicate(timeout=60)


@pytest.mark.needs_programs
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["starting", "up"])
def test_the_service_ends_with_its_parent(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    """Whatever ends the program, and whether the service is up or starts, no process of the service stays."""
    with running_program(tmp_path) as program:
        assert program.stdout is not None
        if moment == "up":
            assert program.stdout.readline() == b"up\n"
        else:
            until(lambda: list_descendants(program.pid))
        service = list_descendants(program.pid)
        assert service
        program.send_signal(number)
        program.wait(TIMEOUT)
        try:
            until(lambda: not any(map(is_alive, service)))
        finally:
            for pid in (pid for pid in service if is_alive(pid)):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.needs_programs
def test_a_start_that_fails(tmp_path: Path) -> None:
    """A service that cannot start says why, and leaves no process behind."""
    (tmp_path / "data").write_text("no store")
    before = list_descendants(os.getpid())
    with pytest.raises(RuntimeError, match=r"queuey serve did not start: .*not a database"):
        RealProcess(tmp_path).__enter__()
    assert [pid for pid in list_descendants(os.getpid()) if pid not in before and is_alive(pid)] == []
