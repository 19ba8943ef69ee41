"""Workers that are restarted one after another, each with a long message in hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from qdo.worker import exit_codes
from queuey.client import Message, Outgoing
from tests.qdo.consumer.conftest import until
from tests.qdo.worker.conftest import Workers

WORKERS, PARTITIONS = 4, 12
LONG = 20.0
"""Seconds that the message takes which each worker has in hand when it is stopped."""
STILL = 12.0
"""Seconds for which a partition without such a message may stand still, on a machine that has much else to do."""


@pytest.mark.slow
async def test_no_quiet_partition_stands_still(
    workers: Workers, record_property: Callable[[str, object], None]
) -> None:
    """While one partition finishes its long message, messages of all others are handled soon after they were sent."""
    queue = await workers.system.queue(partitions=PARTITIONS)
    begun: list[str] = []
    delays: list[float] = []
    busy: set[int] = set()

    async def handle(message: Message, context: object) -> None:
        if str(message.body).startswith("long"):
            begun.append(str(message.body))
            await asyncio.sleep(LONG)
        else:
            delays.append(time.time() - float(message.timestamp))

    async def send() -> None:
        while True:
            numbers = [number for number in range(1, PARTITIONS + 1) if number not in busy]
            await workers.system.client.send_many(
                queue.name, [Outgoing("short", partition=number) for number in numbers]
            )
            await asyncio.sleep(0.2)

    serving_workers = [await workers.make(handle, queue) for _ in range(WORKERS)]
    serving = [workers.start(worker) for worker in serving_workers]
    await until(lambda: all(len(worker.consumer.assignment) == PARTITIONS // WORKERS for worker in serving_workers))
    sending = asyncio.create_task(send())
    for at in range(WORKERS):
        number = min(serving_workers[at].consumer.assignment).number
        busy.add(number)
        await workers.system.client.send_many(queue.name, [Outgoing(f"long {at}", partition=number)])
        await until(lambda at=at: begun[-1:] == [f"long {at}"])  # type: ignore[misc] # is called at once
        serving_workers[at].stop()
        following = await workers.make(handle, queue)
        workers.start(following)
        assert await serving[at] == exit_codes.ENDED
        busy.discard(number)
        serving_workers[at] = following
    sending.cancel()
    assert begun == [f"long {at}" for at in range(WORKERS)]
    record_property("longest", f"{max(delays):.2f} s from sending to handling, of {len(delays)} messages")
    assert max(delays) < STILL
