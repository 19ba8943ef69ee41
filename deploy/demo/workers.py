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
"""Time after which a killed worker counts as gone, in seconds; short, so that the demo is short."""
COMMIT_MESSAGES = 20
"""Number of messages after which a worker commits; few, so that after a kill few are handled again."""
GROUP = "demo-workers"
STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.02


class Handled(NamedTuple):
    """One call of the handler: the worker's process, and the message's partition and id."""

    pid: int
    partition: int
    id: str


def read_record(path: Path) -> list[Handled]:
    lines = (line.split() for line in path.read_text().splitlines())
    return [Handled(int(pid), int(partition), identifier) for pid, partition, identifier in lines]


@contextlib.contextmanager
def claimer(service: Service, queue: str, record: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a worker that claims jobs, yields its process, and kills it in the end."""
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
    """Several processes of ``qdo work``, which are members of one group. They are killed at the end of the block.

    Args:
        service: The service.
        queue: The queue whose messages they handle.
        count: Number of workers.
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
        return read_record(self._record)

    def wait_until_shared(self, partitions: int, seconds: float = 60) -> None:
        """Waits until every partition has an owner and every worker owns one.

        Raises:
            DemoFailed: It took too long, or all workers have ended.
        """
        deadline = time.monotonic() + seconds
        while len(owners := self._owners()) < partitions or len(set(owners)) < len(self.processes):
            self._pause_or_fail(deadline, f"the workers did not share out {partitions} partitions")

    def wait_for(self, count: int, seconds: float = 60) -> list[Handled]:
        """Waits until this number of different messages were handled, and returns the calls of the handler.

        Raises:
            DemoFailed: It took too long, or all workers have ended.
        """
        deadline = time.monotonic() + seconds
        handled = self.handled()
        while len({handling.id for handling in handled}) < count:
            self._pause_or_fail(deadline, f"only {len(handled)} messages were handled")
            handled = self.handled()
        return handled

    def kill(self, pid: int) -> None:
        self.processes[pid].kill()
        self.processes[pid].wait()

    def stop(self) -> list[int]:
        """Ends the running workers with SIGTERM, waits for their end, and returns their exit codes.

        Raises:
            DemoFailed: One did not end within ``STOP_SECONDS``.
        """
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            return [process.wait(STOP_SECONDS) for process in running]
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"a worker did not end after SIGTERM:\n{self._log.read_text()}") from error

    def _pause_or_fail(self, deadline: float, failure: str) -> None:
        """Sleeps a moment. Raises DemoFailed if all workers have ended, or the deadline is over."""
        gone = all(process.poll() is not None for process in self.processes.values())
        if gone or time.monotonic() > deadline:
            raise DemoFailed(f"{failure}:\n{self._log.read_text()}")
        time.sleep(_LOOK_SECONDS)

    def _owners(self) -> list[int]:
        """Returns for each partition with an owner the number of the member that owns it."""
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
