"""Where a group begins when it has no recorded offsets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2

from qdo.partitions import Partition, Queue
from queuey.client import order_of
from tests.qdo.consumer.conftest import System, body_numbers, collect, until


async def test_at_the_end_only_what_comes_is_handed_out(system: System) -> None:
    """With ``latest``, only later messages are handed out, in partitions with and without messages alike."""
    queue = await system.queue(partitions=2)
    sent = await system.send(queue, 5)
    consumer = await system.consumer(queue, start="latest")
    await until(lambda: all(consumer.committed(partition) for partition in consumer.assignment))
    await system.send(queue, 2, first=6)
    await system.send(queue, 1, 2)
    messages = await collect(consumer, 3)
    assert (body_numbers(messages, 1), body_numbers(messages, 2)) == ([6, 7], [1])
    recorded = await system.offsets()
    assert order_of(str(recorded[Partition(queue, 1)])) > order_of(sent[-1])


async def test_what_appears_in_a_group_at_work_begins_at_its_beginning(system: System) -> None:
    """Messages sent to added partitions before these were found are handed out, even if no member ran."""
    queue = await system.queue()
    await system.send(queue, 2)
    first = await system.consumer(queue, start="latest", discover=0.1)
    await until(lambda: first.committed(Partition(queue, 1)) is not None)
    await system.client.update_queue(queue.name, partitions=2)
    await system.send(queue, 2, 2)
    assert body_numbers(await collect(first, 2), 2) == [1, 2]
    await first.commit()
    await first.close()
    await system.client.update_queue(queue.name, partitions=3)
    await system.send(queue, 2, 3)
    second = await system.consumer(queue, start="latest")
    assert body_numbers(await collect(second, 2), 3) == [1, 2]


async def test_each_queue_begins_by_itself(system: System) -> None:
    """A queue that no member could begin begins at its end, a new one at its oldest message, also for later members."""
    begun, other, new = [Queue(system.store, system.client.application, f"by-itself-{number}") for number in range(3)]
    for queue in (begun, other):
        await system.queue(name=queue.name)
    await system.send(other, 2)

    def spoil(_: Any, answered: Any) -> None:  # noqa: ANN401 - JSON
        error = {"queue_name": other.name, "status": "error", "error_msg": {"NotAllowed": "on purpose"}}
        answered["queues"] = [error if row["queue_name"] == other.name else row for row in answered["queues"]]

    system.transport.heal = spoil
    queues = (begun, other)
    options: dict[str, Any] = {"start": "latest", "patterns": ["by-itself-*"], "discover": 0.1}
    first = await system.consumer(*queues, **options)
    await until(lambda: len(first.assignment) == 2 and first.committed(Partition(begun, 1)) is not None)
    second = await system.consumer(*queues, **options)
    await system.queue(name=new.name)
    await system.send(new, 2)
    places = {Partition(queue, 1) for queue in (begun, other, new)}
    await until(lambda: first.assignment | second.assignment == places)
    await first.close()
    system.transport.heal = None
    await until(lambda: second.assignment == places)
    await until(lambda: all(map(second.committed, places)))
    third = await system.consumer(*queues, **options)
    await second.close()
    await until(lambda: third.assignment == places)
    await system.send(other, 1, first=3)
    messages = await collect(third, 3)
    assert sorted(message.body for message in messages) == ["1:1", "1:2", "1:3"]


async def test_nothing_is_read_before_the_beginning_is_recorded(system: System) -> None:
    """A service that cannot say where the end is gets asked again; nothing is read until then."""
    queue = await system.queue()
    await system.send(queue, 2)
    failures = 2

    def fail(request: httpx2.Request) -> httpx2.Response | None:
        nonlocal failures
        failures -= 1
        return httpx2.Response(503, json={"status": "error", "error_msg": {}}) if failures >= 0 else None

    system.transport.fail = fail
    consumer = await system.consumer(queue, start="latest")
    await system.transport.until(lambda: len(system.transport.reads) >= 4)
    assert all("before" in read["queues"][0] for read in system.transport.reads[:3]), json.dumps(system.transport.reads)
    assert consumer.committed(Partition(queue, 1)) is not None
    assert await consumer.poll(timeout=0) == []


async def test_whoever_seeks_decides(system: System) -> None:
    """A place chosen in on_assign, or while the end is looked up, wins."""
    queue = await system.queue(partitions=2)
    for partition in (1, 2):
        await system.send(queue, 3, partition)
    first, second = Partition(queue, 1), Partition(queue, 2)

    started = asyncio.Event()

    async def on_assign(partitions: frozenset[Partition]) -> None:
        await started.wait()
        await consumer.seek(first, "earliest")

    system.transport.hold_reads()
    consumer = await system.consumer(queue, start="latest", callbacks={"on_assign": on_assign})
    started.set()
    await system.transport.until(lambda: any("before" in read["queues"][0] for read in system.transport.reads))
    await consumer.seek(second, "earliest")
    system.transport.release_reads()
    messages = await collect(consumer, 6)
    assert body_numbers(messages, 1) == body_numbers(messages, 2) == [1, 2, 3]
