"""A hanging test run ends, and a run always ends the processes that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.processes import is_alive
from tests.waiting import until

pytestmark = pytest.mark.needs_programs

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 120
STARTS_A_PROGRAM = """
import subprocess, sys, pathlib

def test_starts_a_program():
    from multiprocessing import resource_tracker
    resource_tracker.ensure_running()
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pathlib.Path(__file__).with_name("program.pid").write_text(str(program.pid))
"""
HANGS = """
import threading, time

def test_passes_first():
    pass

def test_waits_for_a_thread_of_a_pool():
    thread = threading.Thread(target=waits_for_a_worker, daemon=True)
    thread.start()
    thread.join()

def waits_for_a_worker():
    time.sleep(600)
"""


@contextmanager
def suite(directory: Path, text: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    (directory / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.suite.watchdog", "-c", os.devnull, *options]
    with subprocess.Popen(
        [*command, f"--rootdir={directory}", "-p", "no:cacheprovider", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        try:
            yield run
        finally:
            run.kill()


def test_a_test_that_hangs_ends(tmp_path: Path) -> None:
    """A run with a test that hangs ends with 1, and prints the stacks of its process."""
    with suite(tmp_path, HANGS, "--stall-limit=5", "--numprocesses=2") as run:
        out = run.communicate(timeout=RUN_SECONDS)[0]
    assert run.returncode == 1, out
    assert "waits_for_a_worker" in out


@pytest.mark.parametrize(("kill", "processes"), [(False, 0), (True, 0), (True, 2)], ids=["ended", "killed", "two"])
def test_what_a_run_started_ends_with_it(tmp_path: Path, kill: bool, processes: int) -> None:  # noqa: FBT001 - a column
    """A program in its own session, which a test left behind, ends with the run, even if the run is killed."""
    pid = tmp_path / "program.pid"
    text = STARTS_A_PROGRAM + "    import time\n    time.sleep(600)\n" * kill
    with suite(tmp_path, text, f"--numprocesses={processes}", "--stall-limit=60") as run:
        until(lambda: pid.exists() and pid.read_text(), RUN_SECONDS, process=run)
        if kill:
            run.send_signal(signal.SIGKILL)
            run.wait(RUN_SECONDS)
        else:
            out = run.communicate(timeout=RUN_SECONDS)[0]
            assert run.returncode == 0, out
            assert out.count("The run left a process behind") == 1, "Python's own resource tracker is left alone"
        until(lambda: not is_alive(int(pid.read_text())), RUN_SECONDS)
