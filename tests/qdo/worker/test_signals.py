"""Signals to a worker's process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.partitions import Queue
from qdo.worker.failure import ExitCode, StopWorker
from qdo.worker.worker import Worker
from queuey.client import AsyncClient, Client, Message
from tests.qdo.cli.workers import WorkerProcess
from tests.qdo.contract.in_service import ServiceGroups
from tests.qdo.worker.conftest import Workers, until
from tests.servers.plugin import unique_name
from tests.servers.processes import children, live_processes
from tests.servers.served import Served, environment

ROOT = Path(__file__).parents[3]
KINDS = {"threads": (), "tasks": (), "processes": ("--processes", "1")}
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(running: Served, workers: Workers) -> Iterator[Start]:
    """Starts workers that end with their test, in a group of the service that the test shares."""
    groups = ServiceGroups(workers.system.client, unique_name("group"))
    workers.system.use(groups)
    variables = {"QUEUEY_PROFILE": str(running.profile_path), "QDO_GROUP": groups.group, "QDO_SESSION_TIMEOUT": "20"}
    with contextlib.ExitStack() as started:

        def begin(queue: Queue, kind: str, *options: str) -> WorkerProcess:
            handler = f"tests.qdo.worker.hands:{'handle_async' if kind == 'tasks' else 'handle'}"
            retries = ["--retry-base", "0.001", "--retry-cap", "0.001"]
            command = [handler, "--queue", queue.name, *KINDS[kind], *retries, *options]
            return started.enter_context(WorkerProcess(command, ROOT, environment(**variables)))

        yield begin


@pytest.mark.parametrize(
    ("kind", "number"), [("tasks", signal.SIGTERM), ("processes", signal.SIGTERM), ("threads", signal.SIGINT)], ids=str
)
async def test_the_first_signal_drains(workers: Workers, start: Start, tmp_path: Path, kind: str, number: int) -> None:
    """The first signal drains: the message in hand is finished and recorded, no other begins, and the code is 0."""
    queue = await workers.system.queue()
    go_on = tmp_path / "go_on"
    second = f"wait {go_on}"
    receipts = await workers.system.client.send_many(queue.name, ["first", second, "third"])
    program = start(queue, kind)
    program.wait_for("begun wait")
    for _ in range(2):  # as when one signal goes to the worker and one to its process group
        program.process.send_signal(number)
    program.wait_for_log("no more are started")
    go_on.touch()
    assert program.wait_for_end() == ExitCode.ENDED
    assert program.said("done") == ["first", second]
    assert "third" not in program.said("begun")
    assert (await workers.offsets())[1] == receipts[1].id
    assert await (await workers.system.coordinator()).members() == {}
    log = " ".join(program.log)
    order = [f"{signal.Signals(number).name}: running messages are finished, no more are started", "left the group"]
    assert sorted(order, key=log.index) == order
    assert "revoked" not in log


async def test_the_second_signal_ends_it_at_once(workers: Workers, start: Start) -> None:
    """The second signal ends the worker at once, with the processes that it started, and the code is 1."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "rest 600")
    program = start(queue, "processes")
    program.wait_for("begun rest")
    program.process.send_signal(signal.SIGTERM)
    program.wait_for_log("no more are started")
    started = children(program.process.pid)
    assert started
    await asyncio.sleep(0.2)  # Signals within a tenth of a second count as one.
    assert program.end() == ExitCode.FAILED
    await until(lambda: not any(live_processes(child) for child in started))


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_a_child_that_a_handler_forks_ends_alone(workers: Workers, start: Start, kind: str) -> None:
    """A handler that ends a child process by SIGTERM does not stop the worker."""
    queue = await workers.system.queue()
    await workers.system.client.send_many(queue.name, ["fork", "next"])
    program = start(queue, kind)
    program.wait_for("done next")
    assert program.said("forked") == [str(-signal.SIGTERM)]
    assert program.end() == ExitCode.ENDED


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_a_drain_ends_in_time(workers: Workers, start: Start, kind: str) -> None:
    """A message that never ends does not keep the process: earlier messages are recorded, and the code reports it."""
    queue = await workers.system.queue()
    receipts = await workers.system.client.send_many(queue.name, ["first", "rest 600"])
    program = start(queue, kind, "--drain", "0.2")
    program.wait_for("begun rest")
    assert program.end() == ExitCode.UNFINISHED
    assert (await workers.offsets())[1] == receipts[0].id
    assert await (await workers.system.coordinator()).members() == {}


async def test_children_do_not_outlive_a_worker_that_was_killed(workers: Workers, start: Start) -> None:
    """Children of a killed worker end too: their results could not be recorded, and another worker repeats them."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "rest 600")
    program = start(queue, "processes", "--processes", "2")
    program.wait_for("begun rest")
    started = children(program.process.pid)
    assert len(started) == 2
    program.process.kill()
    await until(lambda: not any(live_processes(child) for child in started))


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
