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
    """Starts a driver, and ends all its processes afterwards.

    Args:
        program: A module of this package.
        place: Its working directory, with its log.
        arguments: Arguments of the program, before the options.
        options: Options of the source or the sink.
        seconds: Timeout of its end after a kill.
    """
    arguments_of_options = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", f"tests.spark.faults.{program}", str(place), *arguments, *arguments_of_options]
    environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK}
    with (place / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # child processes may outlive it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(seconds)


def await_or_end(process: subprocess.Popen[bytes], there: Callable[[], bool], seconds: float) -> bool:
    """Waits for a condition with the least delay; returns False if the process ends before."""
    until = time.monotonic() + seconds
    while process.poll() is None:
        if there():
            return True
        assert time.monotonic() < until
        time.sleep(0.0002)
    return False
