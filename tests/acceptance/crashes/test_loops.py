"""Loops over jobs while their workers and the service are killed, stopped and paused: every job is done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from queuey.client import Client
from tests.acceptance.crashes import loop_worker
from tests.acceptance.crashes.conftest import PATIENT
from tests.harness.plans import fault_minutes
from tests.servers.served import Served, free_port

WORKERS = 2
JOBS = 12
"""Jobs that are sent before each fault."""
PATIENCE = 120.0
"""Seconds in which the jobs are done when faults have ended."""
AWAY = 20.0
"""Seconds to wait at most until a worker has begun a job, or sees that its job is lost."""


class Run:
    """A service, and workers on a queue of it.

    Args:
        directory: For all files.
        colour: Of the workers: ``sync`` or ``async``.
        seed: Of all that is random.
    """

    def __init__(self, directory: Path, colour: str, seed: int) -> None:
        self._directory, self._colour = directory, colour
        self._rng = random.Random(seed)
        self._port = free_port()
        self._record = directory / "record"
        self._record.touch()
        self.sent: set[str] = set()

    def __enter__(self) -> Self:
        self._start_service()
        profile = self._service.profile
        self.client = Client(profile.url, key=profile.key, application=profile.application, retry=PATIENT, timeout=5)
        self.queue = self.client.create_queue(partitions=2).name
        self._workers = [self._worker() for _ in range(WORKERS)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self.client.close()
        self._service.kill()

    def recorded(self, what: str) -> Counter[str]:
        """Counts the bodies of what workers have recorded."""
        lines = (line.split() for line in self._record.read_text().splitlines())
        return Counter(body for kind, body in lines if kind == what)

    def send(self) -> None:
        """Sends more jobs."""
        bodies = list(map(str, range(len(self.sent), len(self.sent) + JOBS)))
        self.client.send_many(self.queue, bodies)
        self.sent.update(bodies)

    def hold(self) -> None:
        """Sends a job whose handler stops when it is lost, and waits until a worker has begun it."""
        body = f"{loop_worker.UNTIL_LOST}-{len(self.sent)}"
        self.client.send(self.queue, body)
        self.sent.add(body)
        self._wait(lambda: body in self.recorded("begun"))

    def calm(self) -> None:
        """Handlers make no mistakes from now on."""
        (self._directory / loop_worker.NEVER_FAILS).touch()

    def kill_worker(self) -> None:
        """Kills a worker, and starts another."""
        self._replace(signal.SIGKILL)

    def stop_worker(self) -> None:
        """Ends a worker in order, and starts another."""
        self._replace(signal.SIGTERM)

    def pause_worker(self) -> None:
        """Stops a worker for longer than its claims last."""
        worker = self._rng.choice(self._workers)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(1, 2) * loop_worker.TTL)
        worker.send_signal(signal.SIGCONT)

    def kill_service(self) -> None:
        """Kills the service, and starts it again when a worker has seen that its job is lost."""
        self.hold()
        self._service.kill()
        self._while_away()
        self._start_service()

    def stop_service(self) -> None:
        """Ends the service in order, and starts it again when a worker has seen that its job is lost."""
        self.hold()
        self._service.end(signal.SIGTERM)
        self._while_away()
        self._start_service()

    def pause_service(self) -> None:
        """Stops all processes of the service for a while."""
        self.hold()
        os.killpg(self._service.process.pid, signal.SIGSTOP)
        self._while_away()
        os.killpg(self._service.process.pid, signal.SIGCONT)

    def perform(self) -> str:
        """Performs one of these faults; returns its name."""
        workers = [self.kill_worker, self.stop_worker, self.pause_worker]
        act = self._rng.choice([*workers, self.kill_service, self.stop_service, self.pause_service])
        act()
        return act.__name__

    def _while_away(self) -> None:
        seen = self.recorded("lost").total()
        self._wait(lambda: self.recorded("lost").total() > seen)
        time.sleep(self._rng.uniform(0, 1))

    def _wait(self, check: Callable[[], bool]) -> None:
        end = time.monotonic() + AWAY
        while not check() and time.monotonic() < end:
            time.sleep(0.05)

    def _start_service(self) -> None:
        self._service = Served(self._directory, port=self._port)
        self._service.__enter__()

    def _worker(self) -> subprocess.Popen[bytes]:
        profile, limit = self._service.profile, self._rng.choice((1, 5))
        about = self._colour, profile.url, profile.key, profile.application, self.queue, limit, self._record
        seed = self._rng.randrange(1 << 30)
        return subprocess.Popen([sys.executable, loop_worker.__file__, *map(str, (*about, seed))])

    def _replace(self, number: int) -> None:
        at = self._rng.randrange(WORKERS)
        worker = self._workers[at]
        worker.send_signal(number)
        try:
            worker.wait(PATIENCE)
        finally:
            worker.kill()
        self._workers[at] = self._worker()


def check(run: Run) -> None:
    """Waits until the queue is empty, and looks whether every job was done, and what workers were told."""
    run.calm()
    jobs, end = run.client.job_queue(run.queue), time.monotonic() + PATIENCE
    while jobs.size().size and time.monotonic() < end:
        time.sleep(0.1)
    done = run.recorded("done")
    assert run.sent - set(done) == set(), "jobs were acknowledged that were not done"
    assert jobs.size().size == 0
    assert run.recorded("back") == Counter(), "jobs were lost, and then no more"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_every_job_is_done(tmp_path: Path, colour: str) -> None:
    """Whatever ends or stands still, no job is acknowledged whose handler has stopped before its end."""
    with Run(tmp_path, colour, seed=1) as run:
        faults: list[Callable[[], None]] = [run.kill_service, run.kill_worker, run.stop_service, run.stop_worker]
        for fault in faults:
            run.send()
            fault()
        check(run)
        assert run.recorded("lost")


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_every_job_is_done_for_long(tmp_path: Path, colour: str) -> None:
    """The same with faults in any order, for minutes."""
    with Run(tmp_path, colour, seed=random.randrange(1 << 30)) as run:
        end, faults = time.monotonic() + 60 * fault_minutes() / 2, Counter[str]()
        while time.monotonic() < end:
            run.send()
            faults[run.perform()] += 1
        check(run)
        assert len(faults) >= 4
