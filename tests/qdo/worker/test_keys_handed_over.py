"""Partitions whose messages are handled by key, handed over while one of them waits for its next attempt."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from qdo.partitions import Queue
from qdo.settings import Retry
from qdo.worker.failure import ExitCode, StopWorker
from queuey.client import Message, Outgoing
from tests.qdo.worker.conftest import Workers, partition_of, quick, until

SOON = Retry(attempts=5, base=2.0, cap=2.0)
NEVER = Retry(attempts=5, base=31_536_000.0, cap=31_536_000.0)


async def send(workers: Workers, queue: Queue, partition: int = 1) -> str:
    """Stores one that fails, three with other keys and one behind it with its key; gives the last one's id."""
    keys = ("bad", "b", "c", "d", "bad")
    outgoing = [
        Outgoing(f"{partition}:{key}{at}", headers={"key": key}, partition=partition) for at, key in enumerate(keys)
    ]
    return (await workers.system.client.send_many(queue.name, outgoing))[-1].id


class FailsOnce:
    """Fails on the first attempt at some messages; notes what it handles."""

    def __init__(self, workers: Workers, *bad: str) -> None:
        self._workers = workers
        self._bad = set(bad)
        self.failed: list[str] = []

    async def __call__(self, message: Message, context: object) -> None:
        """Handles a message."""
        if message.body in self._bad:
            self._bad.discard(message.body)
            self.failed.append(message.body)
            raise ValueError
        self._workers.note(message, context)


@pytest.mark.parametrize("end", ["signal", "StopWorker"])
async def test_a_stop_says_that_messages_will_be_repeated(
    workers: Workers, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """The next attempt is too far away, or its handler ended the worker: the code and the log say so, at once."""
    queue = await workers.system.queue()
    await send(workers, queue)
    others = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        if message.body == "1:bad0":
            await others.wait()
            raise StopWorker if end == "StopWorker" else ValueError
        workers.note(message, context)
        if len(workers.seen) == 3:
            others.set()

    settings = quick(by="header:key", retry=NEVER, drain=60)
    worker = await workers.make(handle, queue, settings=settings)
    with caplog.at_level(logging.WARNING):
        task = workers.start(worker)
        await until(lambda: "attempt 1 failed" in caplog.text or task.done())
        worker.stop()
        assert await asyncio.wait_for(task, 30) == ExitCode.UNFINISHED
    (said,) = [record for record in caplog.records if "some will be handled again" in record.message]
    assert said.__dict__["partitions"] == [str(partition_of(queue))]
    assert await workers.offsets() == {1: None} or not await workers.offsets()


async def test_a_rebalance_repeats_nothing(workers: Workers) -> None:
    """A partition moves when the message that waits in it was tried again."""
    queue = await workers.system.queue(partitions=2)
    last = [await send(workers, queue, partition) for partition in (1, 2)]
    handle = FailsOnce(workers, "1:bad0", "2:bad0")
    settings = quick(by="header:key", retry=SOON)
    workers.start(await workers.make(handle, queue, settings=settings))
    await until(lambda: len(workers.seen) >= 6 and len(handle.failed) == 2)
    second = await workers.make(handle, queue, settings=settings)
    workers.start(second)
    await until(lambda: len(second.consumer.assignment) == 1)
    for number, identifier in enumerate(last, 1):
        await workers.recorded(identifier, number)
    assert max(Counter(workers.seen).values()) == 1
