"""Queuey: tasks of :class:`qdo.Jobs`; workers are ``qdo work bench.job_queues.queuey_side:jobs``, or ``async_jobs``."""

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
    """Is the plain one."""
    probe.counted(port, total)


@async_jobs.task
async def timed(port: int, sent: float) -> None:
    """Is the plain one."""
    probe.timed(port, sent)


class Queuey:
    """Sends by a client; by default it does so by HTTP to the service that ``QUEUEY_URL`` names."""

    bulk = True

    def __init__(self, client: Client | None = None) -> None:
        self._jobs = Jobs(QUEUE, client=client)
        self._tasks = {name: self._jobs.task(name=name)(function) for name, function in probe.TASKS.items()}

    def reset(self) -> None:
        """Purges the queue."""
        self._jobs.client.purge_queue(QUEUE)

    def send(self, task: str, *arguments: float) -> None:
        """Sends one call."""
        self._tasks[task].send(*arguments)

    def send_many(self, task: str, arguments: tuple[float, ...], count: int) -> None:
        """Sends calls in one request."""
        self._jobs.send_many([self._tasks[task].call(*arguments) for _ in range(count)])

    def pending(self) -> int:
        """Asks for the backlog."""
        backlog = self._jobs.client.job_queue(QUEUE).backlog()
        return backlog.waiting + backlog.claimed


def side() -> Queuey:
    """Returns what is measured."""
    return Queuey()
