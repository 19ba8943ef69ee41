"""Drivers of streams in processes of their own, which may be killed at any time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.spark.conftest import QUICK
from tests.spark.faults.faulty import Faults

ROOT = Path(__file__).parents[3]
PATIENCE = 1500
"""Timeout in seconds; a driver needs 15 s of processor time to do anything, and the machine may be busy."""


@contextlib.contextmanager
def driver(place: Path, way: str, options: Mapping[str, str], faults: Faults) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a driver, and ends all its processes afterwards.

    Args:
        place: Its working directory, with its log.
        way: What it does: "read" a queue or "write" to one.
        options: Options of the source or the sink.
        faults: What happens to it.
    """
    arguments = [str(place), way, json.dumps({**options, **faults.option})]
    command = [sys.executable, "-m", "tests.spark.faults.program", *arguments]
    environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK}
    with (place / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # child processes may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def kill_when(process: subprocess.Popen[bytes], there: Callable[[], bool]) -> None:
    """Kills a driver as soon as a condition holds, with the least delay, unless it has ended before."""
    until = time.monotonic() + PATIENCE
    while process.poll() is None:
        if there():
            os.killpg(process.pid, signal.SIGKILL)
            return
        assert time.monotonic() < until
        time.sleep(0.0002)


def end_of(process: subprocess.Popen[bytes], place: Path) -> str:
    """Waits for the end of a driver; returns "" if it is a success, else the end of its log."""
    return (place / "log").read_text()[-3000:] or "no log" if process.wait(PATIENCE) else ""
