"""States of handlers: shown while they run, and kept when they have failed."""

from __future__ import annotations

import asyncio
import socket
from contextvars import Context, copy_context
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from qdo import (
    Claims,
    Delivery,
    InvalidArgument,
    Partition,
    StopWorker,
    Worker,
    WorkerSettings,
    delivery,
    set_state,
)
from qdo.partitions import Queue
from qdo.worker.executors import child
from qdo.worker.executors.processes import HANDLED, STATE, ChildTask, make_frame
from qdo.worker.failure import ExitCode
from qdo.worker.runs import MessageRun
from queuey.client import AsyncJobQueue, Message
from tests.qdo.worker.claiming.test_claims import wait_until_drained
from tests.qdo.worker.conftest import Workers
from tests.qdo.worker.test_processes import Book, book

__all__ = ["book"]


async def wait_for_state(jobs: AsyncJobQueue) -> Any:  # noqa: ANN401 - any JSON
    async with asyncio.timeout(30):
        while True:
            states = await jobs.outstanding(states=True)
            if states and states[0].state is not None:
                return states[0].state
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("task", "processes"), [("climb", 0), ("climb", 1), ("climb_async", 0)])
async def test_a_state_is_seen_while_it_runs(
    workers: Workers, book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, processes: int
) -> None:
    """The last state of a running handler is shown, in any executor; that of a failure has its reason beside it."""
    queue, gate = await workers.system.queue(), tmp_path / "gate"
    monkeypatch.setenv("ERRANDS_QUEUE", queue.name)
    client = workers.system.client
    sent = await client.send(queue.name, json={"task": task, "args": [str(gate), "no rope"]})
    claims = Claims(workers.system.connect(), [queue.name])
    settings = WorkerSettings(processes=processes) if processes else WorkerSettings()
    worker = Worker("tests.qdo.worker.claiming.errands:jobs", claims, settings=settings)
    running = workers.start(worker)
    assert await wait_for_state(client.job_queue(queue.name)) == {"step": 2}
    gate.touch()
    await wait_until_drained(workers, queue)
    worker.stop()
    assert await running == ExitCode.ENDED
    reasons = (await client.explain(queue.name, sent)).reasons
    [failed] = [reason.text for reason in reasons if reason.code == "attempt"]
    [last] = [reason.text for reason in reasons if reason.code == "state"]
    assert failed.endswith("ValueError: no rope")
    assert last.endswith('{"step":"last"}')


@pytest.mark.parametrize("processes", [0, 1])
async def test_the_next_attempt_has_the_last_state(
    workers: Workers, book: Book, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """The next attempt gets the last state, so it can resume there, in any process."""
    queue = await workers.system.queue()
    monkeypatch.setenv("ERRANDS_QUEUE", queue.name)
    await workers.system.client.send(queue.name, json={"task": "resume"})
    claims = Claims(workers.system.connect(), [queue.name])
    settings = WorkerSettings(processes=processes) if processes else WorkerSettings()
    worker = Worker("tests.qdo.worker.claiming.errands:jobs", claims, settings=settings)
    running = workers.start(worker)
    await wait_until_drained(workers, queue)
    worker.stop()
    assert await running == ExitCode.ENDED
    assert [" ".join(line) for line in book.lines()] == ["began at None", "began at {'step': 2}"]


@pytest.mark.parametrize("end", ["StopWorker", "drain"])
async def test_a_worker_that_stops_leaves_the_last_state(workers: Workers, end: str) -> None:
    """The last state before a stop is stored too, whether the handler asked for it or was given up."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "a")
    states: list[object] = []

    async def handle(_message: Message, _context: object) -> None:
        states.append(delivery().state)
        if len(states) > 1:
            return
        set_state({"page": 7})
        if end == "StopWorker":
            raise StopWorker
        worker.stop()
        await asyncio.sleep(60)

    for _ in range(2):
        claims = Claims(workers.system.connect(), [queue.name])
        worker = Worker(handle, claims, settings=WorkerSettings(drain=0.3))
        running = workers.start(worker)
        if states:
            await wait_until_drained(workers, queue)
            worker.stop()
        await running
    assert states == [None, {"page": 7}]


async def test_states_do_not_extend_the_time(workers: Workers, book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    """States do not extend the time: a process that keeps reporting is killed when its message has taken too long."""
    queue = await workers.system.queue()
    monkeypatch.setenv("ERRANDS_QUEUE", queue.name)
    sent = await workers.system.client.send(queue.name, json={"task": "chatter"})
    claims = Claims(workers.system.connect(), [queue.name])
    settings = WorkerSettings(processes=1, stalled_after=1)
    worker = Worker("tests.qdo.worker.claiming.errands:slow_jobs", claims, settings=settings)
    running = workers.start(worker)
    await wait_until_drained(workers, queue)
    worker.stop()
    assert await running == ExitCode.ENDED
    reasons = (await workers.system.client.explain(queue.name, sent)).reasons
    assert any("killed" in reason.text for reason in reasons if reason.code == "attempt")


def test_a_process_says_nothing_of_a_run_that_has_ended() -> None:
    """States set by a background task of a handler do not count for later messages."""
    message = Message(partition=1, id="0" * 32, timestamp="0", body="x")
    place = Delivery(Partition(Queue("http://localhost", "app", "q"), 1), 1)
    contexts: list[Context] = []

    def handle(_message: Message, _context: object) -> None:
        set_state("now")
        contexts.append(copy_context())

    here, far = socket.socketpair()
    with here, far, asyncio.Runner() as runner:
        reporter = child.ProgressReporter(here)
        run = child.ChildRun(ChildTask((message,), place), reporter, BytesIO(b"1"))
        Context().run(child.run_task, runner, handle, None, run, place, 0.0, reporter)
        contexts[0].run(set_state, "late")
        said = far.recv(4096)
    assert said == STATE + make_frame(b'"now"') + HANDLED


def test_what_is_passed_on() -> None:
    """A run passes on the last state of the present message once, not that of a handled one."""
    message = Message(partition=1, id="0" * 32, timestamp="0", body="x")
    run = MessageRun([message, message], 1)
    assert run.take_new_state() is None
    run.set_state(b"1")
    run.set_state(b"2")
    assert (run.take_new_state(), run.take_new_state()) == ((0, b"2"), None)
    run.set_state(b"2")
    assert run.take_new_state() == (0, b"2")
    run.set_state(b"3")
    run.handled = 1
    assert run.take_new_state() is None
    run.set_state(b"4")
    assert run.take_new_state() == (1, b"4")
    run.handled = 2
    run.set_state(b"late")
    assert run.take_new_state() is None


def test_what_no_state_can_be() -> None:
    """An invalid state is refused where it is set; without a message in hand nothing happens."""
    with pytest.raises(InvalidArgument, match="longer than 4096 bytes of JSON: it has 4097"):
        set_state("x" * 4095)
    with pytest.raises(InvalidArgument, match="JSON"):
        set_state(object())
    set_state("x" * 4094)
