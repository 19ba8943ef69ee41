"""Drivers of streams in processes of their own, which may be killed at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.spark.conftest import QUICK

ROOT = Path(__file__).parents[3]


@contextlib.contextmanager
def driver(
    program: str, place: Path, *arguments: str, options: Mapping[str, str], seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a driver; all of it is gone afterwards.

    Args:
        program: A module of this package.
        place: Where it works, and writes its log.
        arguments: Of the program, before the options.
        options: Of the source or the sink.
        seconds: It may take to end once it is killed.
    """
    given = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", f"tests.spark.faults.{program}", str(place), *arguments, *given]
    environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK}
    with (place / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # what it has started may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(seconds)


def await_or_end(process: subprocess.Popen[bytes], there: Callable[[], bool], seconds: float) -> bool:
    """Waits for something with the least delay; returns False if the process ends before."""
    until = time.monotonic() + seconds
    while process.poll() is None:
        if there():
            return True
        assert time.monotonic() < until
        time.sleep(0.0002)
    return False
