"""Workers that are killed at any moment of their life, or cannot start: the service answers while one of them can."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from queuey.client import ClientError
from tests.acceptance.test_serve_stop import variables_with_startup_code
from tests.servers.processes import is_alive
from tests.servers.served import Served
from tests.waiting import join, until

KILLS, LONGEST_LIFE = 16, 0.8
ENDS_AT_ITS_START = """
import os, pathlib, sys
fate = pathlib.Path(__file__).with_name("fate")
if fate.exists() and any("spawn_main" in each for each in sys.orig_argv):
    os.kill(os.getpid(), 9) if fate.read_text() == "killed" else os._exit(3)
"""
"""Ends each worker before it is up, while the file ``fate`` exists."""


class Writer:
    """A program that sends messages one after another; a message that fails for good is left out."""

    def __init__(self, served: Served) -> None:
        self.acknowledged: list[str] = []
        self._served = served
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._served.client(deadline=300) as client:
            while not self._ends.is_set():
                with suppress(ClientError):
                    self.acknowledged.append(client.send("q", "x").id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        join(self._thread)


@pytest.mark.parametrize("count", [1, 3])
def test_workers_are_killed_at_random_moments(tmp_path: Path, count: int) -> None:
    """Singly and all at once, also before they are up, under load: the service answers again, and lost nothing."""
    draw = random.Random(count)
    with Served(tmp_path, ["--workers", str(count)]) as served:
        with served.client() as client:
            client.create_queue("q")
        with Writer(served) as writer:
            for number in range(KILLS):
                time.sleep(draw.uniform(0.0, LONGEST_LIFE))
                pids = served.workers()
                for process in pids if number % 4 == 0 else pids[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            before = len(writer.acknowledged)
            until(lambda: len(writer.acknowledged) > before + 10, process=served.process)
            until(lambda: len(served.workers()) == count, process=served.process)
        with served.client(deadline=300) as client:
            assert {message.id for message in client.read_all("q", delay=False)} >= set(writer.acknowledged)
        assert "ended unexpectedly" in served.output
        assert served.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("fate", ["killed", "failed"])
def test_a_worker_that_cannot_start_again(tmp_path: Path, fate: str) -> None:
    """The others serve all connections meanwhile; it starts once it can, and a stop waits for no pause."""
    with Served(
        tmp_path, ["--workers", "2"], variables=variables_with_startup_code(tmp_path, ENDS_AT_ITS_START)
    ) as served:
        until(lambda: len(served.workers()) == 2)
        (tmp_path / "hindered" / "fate").write_text(fate)
        [first, second] = served.workers()
        os.kill(first, signal.SIGKILL)
        until(lambda: served.output.count("ended unexpectedly") >= 4, process=served.process)
        for _ in range(30):
            with served.client(timeout=5.0, deadline=0) as client:
                client.heartbeat()
        (tmp_path / "hindered" / "fate").unlink()
        until(lambda: len(served.workers()) == 2, process=served.process)
        os.kill(second, signal.SIGKILL)
        until(lambda: not is_alive(second))
        with served.client(deadline=300) as client:
            client.heartbeat()
        (tmp_path / "hindered" / "fate").write_text(fate)
        for process in served.workers():
            os.kill(process, signal.SIGKILL)
        until(lambda: served.output.count("ended unexpectedly") >= 9, process=served.process)
        assert served.end(signal.SIGTERM) == 0


def test_workers_that_are_killed_before_any_was_up(tmp_path: Path) -> None:
    """The service tries again and again, and serves once they are left alone."""
    variables = variables_with_startup_code(tmp_path, ENDS_AT_ITS_START)
    fate = tmp_path / "hindered" / "fate"
    fate.write_text("killed")
    served = Served(tmp_path, ["--workers", "2"], variables=variables)
    try:
        until(lambda: served.output.count("ended unexpectedly") >= 4, process=served.process)
        fate.unlink()
        served.wait_for("Queuey serves at")
        assert served.end(signal.SIGTERM) == 0
    finally:
        served.kill()


def test_workers_that_fail_before_any_was_up(tmp_path: Path) -> None:
    """The service ends with 1, and says so."""
    variables = variables_with_startup_code(tmp_path, ENDS_AT_ITS_START)
    (tmp_path / "hindered" / "fate").write_text("failed")
    served = Served(tmp_path, ["--workers", "2"], variables=variables)
    try:
        served.wait_for("No worker can start: the service ends.")
        assert served.end() == 1
        assert served.output.count("ended unexpectedly") == 2
    finally:
        served.kill()
