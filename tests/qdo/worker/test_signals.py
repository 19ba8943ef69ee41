"""Signals to a worker's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue as queues
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.worker.failure import ExitCode, StopWorker
from qdo.worker.worker import Worker
from queuey.client import AsyncClient, Client, Message
from tests.qdo.contract.in_service import ServiceGroups
from tests.qdo.worker.conftest import Workers, until
from tests.qdo.worker.test_processes import live_processes
from tests.servers.plugin import unique_name
from tests.servers.served import Served, environment

PATIENCE = 60.0
KINDS: dict[str, dict[str, Any]] = {"threads": {}, "tasks": {"async": True}, "processes": {"processes": 1}}


class Program:
    """A worker's process, in a group of its own."""

    def __init__(self, profile: Path, group: str, queue: str, options: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "tests.qdo.worker.program"]
        self.process = subprocess.Popen(
            [*command, str(profile), group, queue, json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._seen: queues.Queue[str | None] = queues.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> None:
        while True:
            line = self._seen.get(timeout=PATIENCE)
            if line is None:
                raise AssertionError(f"ended without {text!r}:\n{''.join(self.lines)}")
            if text in line:
                return

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def said(self, word: str) -> list[str]:
        return [line.removeprefix(word).strip() for line in self.lines if line.startswith(word)]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.end()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line)
                self._seen.put(line)
        self._seen.put(None)


@pytest.fixture
def start(running: Served, workers: Workers) -> Iterator[Any]:
    """Starts programs that end with their test, in a group of the service that the test shares."""
    groups = ServiceGroups(workers.system.client, unique_name("group"))
    workers.system.use(groups)
    with contextlib.ExitStack() as started:

        def begin(queue: str, **options: Any) -> Program:  # noqa: ANN401 - of WorkerSettings
            program = Program(running.profile_path, groups.group, queue, options)
            started.callback(program.kill)
            return program

        yield begin


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("tasks", signal.SIGTERM),
        ("processes", signal.SIGTERM),
        ("threads", signal.SIGINT),
    ],
    ids=str,
)
async def test_the_first_signal_drains(
    workers: Workers,
    start: Any,  # noqa: ANN401 - starts programs
    tmp_path: Path,
    kind: str,
    number: int,
) -> None:
    """The first signal drains: the message in hand is finished and recorded, no other begins, and the code is 0."""
    queue = await workers.system.queue()
    go_on = tmp_path / "go_on"
    second = f"wait {go_on}"
    receipts = await workers.system.client.send_many(queue.name, ["first", second, "third"])
    program = start(queue.name, **KINDS[kind])
    program.wait_for("begun wait")
    for _ in range(2):  # as when one signal goes to the worker and one to its process group
        program.process.send_signal(number)
    program.wait_for("no more are started")
    go_on.touch()
    assert program.end() == ExitCode.ENDED
    assert program.said("done") == ["first", second]
    assert "third" not in program.said("begun")
    assert (await workers.offsets())[1] == receipts[1].id
    assert await (await workers.system.coordinator()).members() == {}
    log = " ".join(program.said("log"))
    order = [f"{signal.Signals(number).name}: running messages are finished, no more are started", "left the group"]
    assert sorted(order, key=log.index) == order
    assert "revoked" not in log


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_the_second_signal_ends_it_at_once(workers: Workers, start: Any, kind: str) -> None:  # noqa: ANN401 - starts programs
    """The second signal ends the worker at once, with the processes that it started, and the code is 1."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "endless 600")
    program = start(queue.name, **KINDS[kind])
    program.wait_for("begun endless")
    program.process.send_signal(signal.SIGTERM)
    program.wait_for("no more are started")
    started = list(children(program.process.pid))
    assert started
    await asyncio.sleep(0.2)  # Signals within a tenth of a second count as one.
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == ExitCode.FAILED
    await until(lambda: not any(live_processes(child) for child in started))


@pytest.mark.parametrize("kind", ["tasks", "threads", "processes"])
async def test_a_child_that_a_handler_forks_ends_alone(workers: Workers, start: Any, kind: str) -> None:  # noqa: ANN401 - starts programs
    """A handler that ends a child process by SIGTERM does not stop the worker."""
    queue = await workers.system.queue()
    await workers.system.client.send_many(queue.name, ["fork", "next"])
    program = start(queue.name, **KINDS[kind])
    program.wait_for("done next")
    assert program.said("forked") == [str(-signal.SIGTERM)]
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == ExitCode.ENDED


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_a_drain_ends_in_time(workers: Workers, start: Any, kind: str) -> None:  # noqa: ANN401 - starts programs
    """A message that never ends does not keep the process: earlier messages are recorded, and the code reports it."""
    queue = await workers.system.queue()
    receipts = await workers.system.client.send_many(queue.name, ["first", "endless 600"])
    program = start(queue.name, drain=0.2, **KINDS[kind])
    program.wait_for("begun endless")
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == ExitCode.UNFINISHED
    assert (await workers.offsets())[1] == receipts[0].id
    assert await (await workers.system.coordinator()).members() == {}


async def test_children_do_not_outlive_a_worker_that_was_killed(workers: Workers, start: Any) -> None:  # noqa: ANN401 - starts programs
    """Children of a killed worker end too: their results could not be recorded, and another worker repeats them."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "endless 600")
    program = start(queue.name, processes=2)
    program.wait_for("begun endless")
    started = list(children(program.process.pid))
    assert len(started) == 2
    program.process.kill()
    program.end()
    await until(lambda: not any(live_processes(child) for child in started))


def children(parent: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(stat.parent.name)


def test_a_worker_runs_without_a_loop_of_the_callers(running: Served) -> None:
    """``run`` creates a loop, serves, closes its resources, returns the code, and restores the signal handlers."""
    profile = running.profile
    with Client(profile.url, key=profile.key) as client:
        queue = client.create_queue().name
        client.send(queue, "one")
    seen = []

    def handle(message: Message, context: object) -> None:
        seen.append(message.body)
        raise StopWorker

    before = signal.getsignal(signal.SIGTERM)
    ours = AsyncClient(profile.url, key=profile.key)
    consumer = AsyncConsumer(ours, group=unique_name("group"), queues=[queue])
    assert Worker(handle, consumer).run() == ExitCode.ENDED
    assert seen == ["one"]
    assert signal.getsignal(signal.SIGTERM) == before
