"""Workers whose keys may do less than their options require, or are refused while they run."""

from __future__ import annotations

import asyncio
import logging

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from qdo.worker.failure import ExitCode
from queuey.client import RetryPolicy
from tests.qdo.consumer.test_sight import INVALID_KEY, GroupWithKeys, KeyedTransport, group, partitions_of
from tests.qdo.worker.conftest import Workers, quick, until


async def test_a_service_that_is_busy_is_asked_again(workers: Workers) -> None:
    """The check at the start waits for a busy service, as the rest of the start does."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "hello")
    busy = [1, 2, 3, 4, 5, 6]

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(503) if request.url.path.endswith("/_rights") and busy and busy.pop() else None

    workers.system.transport.answer = answer
    client = workers.system.connect(retry=RetryPolicy())
    assert await workers.serve_until(await workers.make(workers.note, queue, client=client), 1) == 0
    assert workers.seen == ["hello"]
    assert not busy


__all__ = ["group"]

DISCOVER = {"discover": 0.1}


async def test_a_revoked_worker_hands_over_and_ends(
    group: GroupWithKeys, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """When its key is revoked a worker's partitions go to the other members at once, and it exits as failed."""
    (orders,) = await group.queues("orders")
    registry = CollectorRegistry()
    transport = KeyedTransport(group.full)
    refused = await workers.make(
        workers.note_async,
        orders,
        client=group.system.connect(transport=transport),
        settings=quick(stalled_after=1.0, commit_seconds=0.05),
        consuming=DISCOVER,
        registry=registry,
    )
    healthy = await workers.make(workers.note_async, orders, consuming=DISCOVER)
    ending, going_on = workers.start(refused), workers.start(healthy)
    await until(lambda: len(refused.consumer.assignment) == len(healthy.consumer.assignment) == 1)
    transport.key = INVALID_KEY
    await until(lambda: healthy.consumer.assignment == partitions_of(orders))
    await until(lambda: (registry.get_sample_value("qdo_refused_seconds") or 0) > 0)
    assert await asyncio.wait_for(ending, 60) == ExitCode.FAILED
    assert "the service has refused its credential" in caplog.text
    assert not going_on.done()
    await group.system.send(orders, 1)
    await until(lambda: workers.seen == ["1:1"])


async def test_a_worker_that_may_read_one_queue_of_two_no_more_ends(
    group: GroupWithKeys, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that may no longer read a queue exits if no other member may; the next worker gets the message."""
    caplog.set_level(logging.WARNING)
    orders, mails = await group.queues("orders", "mails")
    transport = KeyedTransport(group.full)
    worker = await workers.make(
        workers.note_async,
        orders,
        mails,
        client=group.system.connect(transport=transport),
        settings=quick(stalled_after=1.0, commit_seconds=0.05),
        consuming=DISCOVER,
    )
    ending = workers.start(worker)
    await until(lambda: worker.consumer.assignment == partitions_of(orders) | partitions_of(mails))
    transport.key = group.key(orders)
    await until(lambda: worker.consumer.refused > 0)
    assert partitions_of(mails) <= worker.consumer.assignment
    await group.system.send(mails, 1)
    assert await asyncio.wait_for(ending, 60) == ExitCode.FAILED
    assert workers.seen == []
    fresh = await workers.make(workers.note_async, mails, consuming=DISCOVER)
    await workers.serve_until(fresh, 1)
    assert workers.seen == ["1:1"]


async def test_a_refusal_that_passes_ends_no_worker(group: GroupWithKeys, workers: Workers) -> None:
    """Only a lasting refusal ends the worker; its time counts from the first refusal after the last answer."""
    (orders,) = await group.queues("orders")
    transport = KeyedTransport(group.full)
    worker = await workers.make(
        workers.note_async,
        orders,
        client=group.system.connect(transport=transport),
        settings=quick(stalled_after=60.0, commit_seconds=0.05),
        consuming=DISCOVER,
    )
    workers.start(worker)
    await until(lambda: worker.consumer.assignment == partitions_of(orders))
    transport.key = INVALID_KEY
    await until(lambda: worker.consumer.refused > 0)
    transport.key = group.full
    await until(lambda: worker.consumer.refused == 0)
    await group.system.send(orders, 1)
    await until(lambda: workers.seen == ["1:1"])
