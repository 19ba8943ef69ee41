"""The workers as the demo runs them: real processes that share out the partitions of a queue among themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from service import DemoFailed, Service

from queuey.client import Client, GroupNotFound
from queuey.client.credentials.profile import read_profile

SESSION_SECONDS = 3.0
"""How soon a worker that was killed counts as gone: short, so that the demo is."""
COMMIT_MESSAGES = 20
"""Few, so that a worker that is killed leaves few notices to be handled again."""
GROUP = "demo-workers"
STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.02


class Handled(NamedTuple):
    """One handling of one message."""

    pid: int
    partition: int
    id: str


def read_record(path: Path) -> list[Handled]:
    """Returns what was handled so far, in the order in which it was."""
    lines = (line.split() for line in path.read_text().splitlines())
    return [Handled(int(pid), int(partition), identifier) for pid, partition, identifier in lines]


@contextlib.contextmanager
def claimer(service: Service, queue: str, record: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker that claims jobs, and kills it in the end."""
    script = Path(__file__).with_name("claimer.py")
    command = [sys.executable, str(script), str(service.profile), queue, str(record)]
    with (service.directory / "claimers.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Workers:
    """Several ``qdo work``, which are members of one group.

    Args:
        service: Whose messages they handle.
        queue: Of which queue.
        count: How many there are.
    """

    def __init__(self, service: Service, queue: str, count: int) -> None:
        directory = service.directory
        self._record = directory / "handled.txt"
        self._record.touch()
        self._log = directory / "workers.log"
        self._profile = read_profile(service.profile)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("QUEUEY_", "QDO_"))}
        self._environment = environment | {"DEMO_RECORD": str(self._record)}
        self._work = ["work", "handling:handle", "--queue", queue, "--group", GROUP]
        self._work += ["--profile", str(service.profile)]
        self._work += ["--session-timeout", str(SESSION_SECONDS), "--commit-messages", str(COMMIT_MESSAGES)]
        self._count = count
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        for _ in range(self._count):
            with self._log.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "qdo", *self._work],
                    cwd=Path(__file__).parent,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                )
            self.processes[process.pid] = process
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def handled(self) -> list[Handled]:
        """Returns what was handled so far, in the order in which it was."""
        return read_record(self._record)

    def wait_until_shared(self, partitions: int, seconds: float = 60) -> None:
        """Waits until every partition has an owner and every worker owns one."""
        deadline = time.monotonic() + seconds
        while len(owners := self._owners()) < partitions or len(set(owners)) < len(self.processes):
            self._still_running(deadline, f"the workers did not share out {partitions} partitions")

    def wait_for(self, count: int, seconds: float = 60) -> list[Handled]:
        """Waits until so many different messages were handled."""
        deadline = time.monotonic() + seconds
        handled = self.handled()
        while len({handling.id for handling in handled}) < count:
            self._still_running(deadline, f"only {len(handled)} messages were handled")
            handled = self.handled()
        return handled

    def kill(self, pid: int) -> None:
        """Ends a worker with SIGKILL."""
        self.processes[pid].kill()
        self.processes[pid].wait()

    def stop(self) -> list[int]:
        """Ends the workers that are left with SIGTERM and returns their exit codes."""
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            return [process.wait(STOP_SECONDS) for process in running]
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"a worker did not end after SIGTERM:\n{self._log.read_text()}") from error

    def _still_running(self, deadline: float, failure: str) -> None:
        """Rests a moment before the next look."""
        gone = all(process.poll() is not None for process in self.processes.values())
        if gone or time.monotonic() > deadline:
            raise DemoFailed(f"{failure}:\n{self._log.read_text()}")
        time.sleep(_LOOK_SECONDS)

    def _owners(self) -> list[int]:
        """Returns the number of the member that owns each partition which has an owner."""
        with Client(self._profile.url, key=self._profile.key) as client:
            try:
                queues = client.consumer_groups.show(GROUP).queues
            except GroupNotFound:
                return []
        return [
            partition.owner
            for partitions in queues.values()
            for partition in partitions.values()
            if partition.owner is not None
        ]
