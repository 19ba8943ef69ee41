"""States of handlers: shown while they run, and kept when they have failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from qdo import Claims, InvalidArgument, StopWorker, Worker, WorkerSettings, delivery, set_state
from queuey.client import AsyncJobQueue, Message
from tests.qdo.worker.claiming.conftest import Errands
from tests.qdo.worker.claiming.test_claims import wait_until_drained
from tests.qdo.worker.conftest import Workers
from tests.qdo.worker.test_processes import Book


async def wait_for_state(jobs: AsyncJobQueue) -> Any:  # noqa: ANN401 - any JSON
    async with asyncio.timeout(30):
        while True:
            states = await jobs.outstanding(states=True)
            if states and states[0].state is not None:
                return states[0].state
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("task", "processes"), [("climb", 0), ("climb", 1), ("climb_async", 0)])
async def test_a_state_is_seen_while_it_runs(
    workers: Workers, errands: Errands, tmp_path: Path, task: str, processes: int
) -> None:
    """The last state of a running handler is shown, in any executor; that of a failure has its reason beside it."""
    queue, gate = await workers.system.queue(), tmp_path / "gate"
    client = workers.system.client
    sent = await client.send(queue.name, json={"task": task, "args": [str(gate), "no rope"]})
    async with workers.serving(errands(queue, processes=processes)):
        assert await wait_for_state(client.job_queue(queue.name)) == {"step": 2}
        gate.touch()
        await wait_until_drained(workers, queue)
    reasons = (await client.explain(queue.name, sent)).reasons
    [failed] = [reason.text for reason in reasons if reason.code == "attempt"]
    [last] = [reason.text for reason in reasons if reason.code == "state"]
    assert failed.endswith("ValueError: no rope")
    assert last.endswith('{"step":"last"}')


async def test_the_next_attempt_has_the_last_state(workers: Workers, errands: Errands, book: Book) -> None:
    """The next attempt gets the last state, so it can resume there, in any process."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, json={"task": "resume"})
    async with workers.serving(errands(queue, processes=1)):
        await wait_until_drained(workers, queue)
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


async def test_states_do_not_extend_the_time(workers: Workers, errands: Errands) -> None:
    """States do not extend the time: a process that keeps reporting is killed when its message has taken too long."""
    queue = await workers.system.queue()
    sent = await workers.system.client.send(queue.name, json={"task": "chatter"})
    async with workers.serving(errands(queue, "slow_jobs", processes=1, stalled_after=1)):
        await wait_until_drained(workers, queue)
    reasons = (await workers.system.client.explain(queue.name, sent)).reasons
    assert any("killed" in reason.text for reason in reasons if reason.code == "attempt")


def test_what_no_state_can_be() -> None:
    """An invalid state is refused where it is set; without a message in hand nothing happens."""
    with pytest.raises(InvalidArgument, match="longer than 4096 bytes of JSON: it has 4097"):
        set_state("x" * 4095)
    with pytest.raises(InvalidArgument, match="JSON"):
        set_state(object())
    set_state("x" * 4094)
