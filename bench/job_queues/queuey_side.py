"""Queuey with :class:`qdo.Jobs`; workers run as ``qdo work bench.job_queues.queuey_side:jobs`` or ``:async_jobs``."""

from __future__ import annotations

from bench.job_queues import probe
from bench.job_queues.side import QUEUE
from qdo import Jobs
from queuey.client import Client

jobs, async_jobs = Jobs(QUEUE), Jobs(QUEUE)
for name, function in probe.TASKS.items():
    jobs.task(name=name)(function)


@async_jobs.task
async def counted(port: int, total: int) -> None:
    probe.count_run(port, total)


@async_jobs.task
async def timed(port: int, sent: float) -> None:
    probe.report_delay(port, sent)


class Queuey:
    """Sends through a client, by default over HTTP to the service at ``QUEUEY_URL``."""

    bulk = True

    def __init__(self, client: Client | None = None) -> None:
        self._jobs = Jobs(QUEUE, client=client)
        self._tasks = {name: self._jobs.task(name=name)(function) for name, function in probe.TASKS.items()}

    def reset(self) -> None:
        self._jobs.client.purge_queue(QUEUE)

    def send(self, task: str, *arguments: float) -> None:
        self._tasks[task].send(*arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        self._jobs.send_many([self._tasks[task].call(*arguments) for _ in range(count)])

    def pending(self) -> int:
        backlog = self._jobs.client.job_queue(QUEUE).backlog()
        return backlog.waiting + backlog.claimed


def side() -> Queuey:
    return Queuey()
