"""Jobs that are cancelled while workers have them."""

from __future__ import annotations

import pytest

from qdo import Claims, Worker, WorkerSettings
from qdo.worker.failure import ExitCode
from queuey.client import QueueNotFound
from tests.qdo.worker.claiming.test_claims import wait_until_drained
from tests.qdo.worker.conftest import Workers, until
from tests.qdo.worker.test_processes import Book, book

__all__ = ["book"]


@pytest.mark.parametrize(("task", "processes"), [("heed", 0), ("heed", 1), ("heed_async", 0)])
async def test_a_task_is_asked_to_stop(
    workers: Workers, book: Book, monkeypatch: pytest.MonkeyPatch, task: str, processes: int
) -> None:
    """A running job is told to stop, in any executor, and is not retried; cancelled jobs that were not begun never run.

    A failure of such a task does not count as a retry.
    """
    queue = await workers.system.queue()
    monkeypatch.setenv("ERRANDS_QUEUE", queue.name)
    client = workers.system.client
    jobs, calls = client.job_queue(queue.name), [{"task": task, "args": [text]} for text in ("one", "two")]
    first = await client.send(queue.name, json=calls[0])
    settings = WorkerSettings(processes=processes) if processes else WorkerSettings(threads=1, tasks=1)
    claims = Claims(workers.system.connect(), [queue.name], ttl=2)
    worker = Worker("tests.qdo.worker.claiming.errands:jobs", claims, settings=settings)
    running = workers.start(worker)
    await until(lambda: ["began", "one"] in book.lines())
    second = await client.send(queue.name, json=calls[1])
    assert [await jobs.cancel(second), await jobs.cancel(first)] == ["removed", "claimed"]
    await wait_until_drained(workers, queue)
    worker.stop()
    assert await running == ExitCode.ENDED
    counts = worker.metrics._counts
    assert (counts["failed"].total(), counts["retried"].total()) == (task == "heed", 0)
    assert [" ".join(line) for line in book.lines()] == ["began one", "stopped one"]
    with pytest.raises(QueueNotFound):
        await client.info(f"{queue.name}.dead")
