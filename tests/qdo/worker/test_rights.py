"""Workers whose keys may do less than their options require, or are refused while they run."""

from __future__ import annotations

import asyncio
import logging

import httpx2
import pytest
from prometheus_client import CollectorRegistry

from qdo.partitions import Queue
from qdo.worker import rights
from qdo.worker.failure import ExitCode
from qdo.worker.worker import Worker
from queuey.client import RetryPolicy
from tests.qdo.consumer.test_sight import INVALID_KEY, GroupWithKeys, KeyedTransport, group, partitions_of
from tests.qdo.worker.conftest import Workers, quick, until
from tests.replacing import replace_in


async def test_a_service_that_is_busy_is_asked_again(workers: Workers) -> None:
    """The check at the start waits for a busy service, as the rest of the start does."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)
    busy = [503, 503]

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        return httpx2.Response(busy.pop()) if busy and request.url.path.endswith("/_rights") else None

    workers.system.transport.answer = answer
    with replace_in(rights, rights.RETRY_PAUSES, RetryPolicy(deadline=0.0, base=0.001, cap=0.001)):
        assert await workers.serve_until(await workers.make(workers.note, queue), 1) == ExitCode.ENDED
    assert (workers.seen, busy) == (["1:1"], [])


__all__ = ["group"]

DISCOVER = {"discover": 0.1}


async def make(
    group: GroupWithKeys,
    workers: Workers,
    transport: KeyedTransport,
    *queues: Queue,
    stalled_after: float = 1.0,
    registry: CollectorRegistry | None = None,
) -> Worker:
    """Makes a worker whose key may change, and that ends when it has been refused for some time."""
    settings = quick(stalled_after=stalled_after, commit_seconds=0.05)
    client = group.system.connect(transport=transport)
    handler = workers.note_async
    return await workers.make(handler, *queues, client=client, settings=settings, consuming=DISCOVER, registry=registry)


async def test_a_revoked_worker_hands_over_and_ends(
    group: GroupWithKeys, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """When its key is revoked a worker's partitions go to the other members at once, and it exits as failed."""
    (orders,) = await group.queues("orders")
    registry = CollectorRegistry()
    transport = KeyedTransport(group.full)
    refused = await make(group, workers, transport, orders, registry=registry)
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
    worker = await make(group, workers, transport, orders, mails)
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
    worker = await make(group, workers, transport, orders, stalled_after=60.0)
    workers.start(worker)
    await until(lambda: worker.consumer.assignment == partitions_of(orders))
    transport.key = INVALID_KEY
    await until(lambda: worker.consumer.refused > 0)
    transport.key = group.full
    await until(lambda: worker.consumer.refused == 0)
    await group.system.send(orders, 1)
    await until(lambda: workers.seen == ["1:1"])
