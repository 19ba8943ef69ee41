"""Workers that end with their test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings, Retry, WorkerSettings
from qdo.worker.failure import ExitCode
from qdo.worker.worker import Worker
from queuey.client import AsyncClient, Message
from queuey.client.deadletters import DeadLetter, DeadLetterFilter, dead_letters
from tests.qdo.consumer.conftest import POLL_SECONDS, System, own_environment, profile, running, system, until
from tests.qdo.consumer.controlled_transport import PATIENCE

__all__ = ["IMMEDIATE_RETRY", "Workers", "own_environment", "profile", "running", "system", "until"]

IMMEDIATE_RETRY = Retry(attempts=3, base=0.001, cap=0.001)
"""Three attempts, at once."""


class Workers:
    """Creates workers, lets them serve, and keeps the records of their handlers.

    Attributes:
        system: The service, the coordination, and a client apart from the workers.
        seen: The records of handlers.
    """

    def __init__(self, system: System, opened: contextlib.AsyncExitStack) -> None:
        self.system = system
        self.seen: list[Any] = []
        self._opened = opened

    async def make(
        self,
        handler: Any,  # noqa: ANN401 - a handler or its name
        *queues: Queue,
        client: AsyncClient | None = None,
        group: str = "group",
        session_timeout: float = 20.0,
        consuming: dict[str, Any] | None = None,
        patterns: tuple[str, ...] = (),
        settings: WorkerSettings | None = None,
        **options: Any,  # noqa: ANN401 - of Worker
    ) -> Worker:
        """Creates a worker that is not started; by default it tries three times without pauses and commits at once."""
        consumer = AsyncConsumer(
            client or self.system.connect(),
            await self.system.coordinator(group, session_timeout=session_timeout),
            queues=[queue.name for queue in queues],
            patterns=patterns,
            settings=ConsumerSettings(**{"settle": 0.0, "wait": POLL_SECONDS, **(consuming or {})}),
        )
        return Worker(handler, consumer, settings=settings or quick(), **options)

    def start(self, worker: Worker) -> asyncio.Task[int]:
        task = asyncio.get_running_loop().create_task(worker.serve())
        self._opened.push_async_callback(_end, worker, task)
        return task

    @contextlib.asynccontextmanager
    async def serving(self, worker: Worker) -> AsyncIterator[asyncio.Task[int]]:
        """Lets a worker serve during the block; then it has to end well."""
        task = self.start(worker)
        yield task
        worker.stop()
        assert await task == ExitCode.ENDED

    async def serve_until(self, worker: Worker, count: int) -> int:
        task = self.start(worker)
        await until(lambda: len(self.seen) >= count or task.done())
        worker.stop()
        return await task

    def note(self, message: Message, context: object) -> None:
        self.seen.append(message.body)

    async def note_async(self, message: Message, context: object) -> None:
        self.seen.append(message.body)

    async def offsets(self, group: str = "group") -> dict[int, str | None]:
        return {partition.number: offset for partition, offset in (await self.system.offsets(group)).items()}

    async def wait_until_recorded(self, identifier: str | None, number: int = 1) -> None:
        async def is_recorded() -> bool:
            return (await self.offsets()).get(number) == identifier

        await until(is_recorded)

    async def letters(self, queue: Queue, dead_queue: str | None = None, *, count: int = 0) -> list[DeadLetter]:
        """Returns the dead letters of a queue, once there are some: they are stored a moment after the message ends."""
        found: list[DeadLetter] = []

        async def are_stored() -> bool:
            selection = DeadLetterFilter(queues=(queue.name,), dead_queue=dead_queue)
            found[:] = [one async for one in dead_letters(self.system.client, selection)]
            return len(found) >= count

        await until(are_stored)
        return found


def quick(**settings: Any) -> WorkerSettings:  # noqa: ANN401 - of WorkerSettings
    """Settings that try three times without pauses and commit after each run."""
    return WorkerSettings(**{"retry": IMMEDIATE_RETRY, "commit_messages": 1, **settings})


def partition_of(queue: Queue, number: int = 1) -> Partition:
    return Partition(queue, number)


async def _end(worker: Worker, task: asyncio.Task[int]) -> None:
    worker.stop()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await asyncio.wait_for(task, PATIENCE)


@pytest.fixture
async def workers(system: System) -> AsyncIterator[Workers]:
    async with contextlib.AsyncExitStack() as opened:
        yield Workers(system, opened)
