"""Results of tasks: the receipt returns what the task returned, wherever it ran."""

from __future__ import annotations

import asyncio

import pytest

from qdo import Jobs
from queuey.client import Client, JobFailed, Outgoing, ResultTooLarge
from tests.qdo.worker.claiming.conftest import Errands
from tests.qdo.worker.claiming.test_tasks import worker_of
from tests.qdo.worker.conftest import Workers


@pytest.mark.parametrize("processes", [0, 1])
async def test_what_tasks_return(
    workers: Workers, errands: Errands, caplog: pytest.LogCaptureFixture, processes: int
) -> None:
    """Each job of a run has its own result, or none; one without a JSON form is done and logged."""
    queue = await workers.system.queue(result_ttl=3600)
    client = workers.system.client
    calls = [("double", "a"), ("double", ""), ("double", "b"), ("double", "c" * 9000)]
    bodies = [{"task": task, "args": [text]} for task, text in calls] + [{"task": "image"}]
    receipts = await client.send_many(queue.name, [Outgoing(json=body) for body in bodies])
    async with workers.serving(errands(queue, processes=processes)):
        first, none, second, large, image = [asyncio.create_task(receipt.aresult(60)) for receipt in receipts]
        assert [await first, await none, await second, await image] == ["aa", None, "bb", None]
        with pytest.raises(ResultTooLarge, match="18002 bytes"):
            await large
    if not processes:
        assert "has no result: the result has no JSON form" in caplog.text


async def test_async_tasks_and_failures(workers: Workers, client: Client) -> None:
    """An async task has a result like a plain one; one that failed for good has its error."""
    queue = await workers.system.queue(result_ttl=3600)
    jobs = Jobs(queue.name, client=client, async_client=workers.system.client)

    @jobs.task
    async def add(one: int, two: int) -> int:
        return one + two

    @jobs.task(retries=0)
    def fail() -> None:
        raise ValueError("no egg")

    async with workers.serving(worker_of(workers, jobs)):
        assert await (await add.asend(1, 2)).aresult(60) == 3
        with pytest.raises(JobFailed, match="ValueError: no egg"):
            await (await fail.asend()).aresult(60)
        unique = await add.send_with(unique="once").asend(3, 4)
        assert unique is not None
        assert await unique.aresult(60) == 7
