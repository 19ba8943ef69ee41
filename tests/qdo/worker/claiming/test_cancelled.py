"""Jobs that are cancelled while workers have them."""

from __future__ import annotations

import pytest

from queuey.client import QueueNotFound
from tests.qdo.worker.claiming.conftest import Errands
from tests.qdo.worker.claiming.test_claims import wait_until_drained
from tests.qdo.worker.conftest import Workers, until
from tests.qdo.worker.test_processes import Book


@pytest.mark.parametrize(("task", "processes"), [("heed", 0), ("heed", 1), ("heed_async", 0)])
async def test_a_task_is_asked_to_stop(
    workers: Workers, errands: Errands, book: Book, task: str, processes: int
) -> None:
    """A running job is told to stop, in any executor, and is not retried; cancelled jobs that were not begun never run.

    A failure of such a task does not count as a retry.
    """
    queue = await workers.system.queue()
    client = workers.system.client
    jobs, calls = client.job_queue(queue.name), [{"task": task, "args": [text]} for text in ("one", "two")]
    first = await client.send(queue.name, json=calls[0])
    async with workers.serving(errands(queue, ttl=2, processes=processes, threads=1, tasks=1)):
        await until(lambda: ["began", "one"] in book.lines())
        second = await client.send(queue.name, json=calls[1])
        assert [await jobs.cancel(second), await jobs.cancel(first)] == ["removed", "claimed"]
        await wait_until_drained(workers, queue)
    assert [" ".join(line) for line in book.lines()] == ["began one", "stopped one"]
    with pytest.raises(QueueNotFound):
        await client.info(f"{queue.name}.dead")
