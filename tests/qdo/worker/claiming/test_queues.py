"""Queues of tasks: the code sets their options, and they are created automatically."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from qdo import Claims, InvalidArgument, Jobs, Worker
from qdo.tasks.queues import DEFAULTS
from queuey.client import AsyncClient, Backoff, Client, InvalidRequest, NotAllowed, QueueNotFound
from tests.qdo.consumer.test_sight import GroupWithKeys, group
from tests.qdo.worker.claiming.test_claims import has_begun
from tests.qdo.worker.conftest import Workers, until

__all__ = ["group"]


@pytest.fixture
def name() -> str:
    """The name of a queue that does not exist."""
    return uuid4().hex


async def begin(workers: Workers, jobs: Jobs, client: AsyncClient | None = None) -> None:
    worker = Worker(jobs, Claims(client or workers.system.connect(), jobs.queues))
    async with workers.serving(worker) as running:
        await until(lambda: has_begun(worker) or running.done())


async def test_a_worker_creates_them(workers: Workers, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """New queues have the defaults and the code's options, each its own; a second start changes and logs nothing."""
    other, ran = f"{name}-2", list[str]()
    jobs = Jobs({name: {}, other: {"ttl": timedelta(hours=1)}}, max_deliveries=3)
    jobs.task(every=60, name="later")(print)
    worker = Worker(jobs, Claims(workers.system.connect(), jobs.queues))
    async with workers.serving(worker):
        await until(lambda: has_begun(worker))
        jobs.task(name="note")(ran.append)
        await workers.system.client.send(other, json={"task": "note", "args": ["done"]})
        await until(lambda: ran == ["done"])
    with caplog.at_level(logging.INFO, "qdo.worker"):
        await begin(workers, jobs)
    assert not [record for record in caplog.records if "queue" in record.getMessage()]
    made = [await workers.system.client.info(each) for each in (name, other)]
    assert [(each.ttl, each.max_deliveries, each.backoff) for each in made] == [
        (30 * 86_400, 3, DEFAULTS["backoff"]),
        (3600, 3, DEFAULTS["backoff"]),
    ]


async def test_two_programs(workers: Workers, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker sets unset options, keeps others and logs both values; create_queues() changes them."""
    client = workers.system.client
    await client.create_queue(name, ttl=3600, backoff="first=5")
    first = Jobs(name, async_client=client, ttl=7200, max_deliveries=7, kind="ordered")
    with caplog.at_level(logging.WARNING, "qdo.worker"):
        await begin(workers, first)
    [text] = caplog.messages
    assert f"{name} has ttl 3600, kind plain, but this program names ttl 7200, kind ordered: the queue" in text
    assert "The kind never changes" in text
    assert text.endswith(f"or: queuey queue update {name} --ttl 7200")
    info = await client.info(name)
    assert (info.ttl, info.max_deliveries, info.backoff, info.kind) == (3600, 7, Backoff(first=5), "plain")
    [changed] = await Jobs(name, async_client=client, ttl=7200).acreate_queues()
    assert (changed.ttl, changed.max_deliveries, changed.backoff) == (7200, 7, Backoff(first=5))
    with pytest.raises(InvalidRequest, match="is plain, which never changes"):
        await first.acreate_queues()


async def test_an_option_is_refused(workers: Workers, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """If one option is refused, the others are set; partitions and messages of readers are never changed unasked."""
    client = workers.system.client
    await client.create_queue(name)
    fields: Any = {"max_claimed_per_key": 2, "max_deliveries": 7, "partitions": 4, "on_ack": "delete"}
    with caplog.at_level(logging.WARNING, "qdo.worker"):
        await begin(workers, Jobs(name, async_client=client, **fields))
    refused, unlike = caplog.messages
    assert f"queue {name} has no max_claimed_per_key, and the service refuses max_claimed_per_key 2: 400" in refused
    assert "has partitions 1, on_ack keep, but this program names partitions 4, on_ack delete: the queue" in unlike
    queue_info = await client.info(name)
    assert (queue_info.max_deliveries, queue_info.partitions, queue_info.on_ack) == (7, 1, "keep")


async def test_a_call_creates_its_queue(client: Client, workers: Workers, name: str) -> None:
    """The first call, single or batched, creates a missing queue, whether or not the code names options."""
    jobs, ran = Jobs(name, client=client, async_client=workers.system.client), list[int]()
    note = jobs.task(name="note")(ran.append)
    unique = jobs.task(name="unique", unique=True)(ran.append)
    sends: list[Any] = [note.send, unique.send, lambda number: jobs.send_many([note.call(number)])]
    asends: list[Any] = [note.asend, unique.asend, lambda number: jobs.asend_many([note.call(number)])]
    for number, (send, asend) in enumerate(zip(sends, asends, strict=True)):
        await asyncio.to_thread(send, number)
        await asyncio.to_thread(jobs.run_all)
        await workers.system.client.delete_queue(name)
        await asend(number)
        await jobs.arun_all()
        await workers.system.client.delete_queue(name)
    assert ran == [0, 0, 1, 1, 2, 2]


async def test_without_admin(
    group: GroupWithKeys, workers: Workers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with only the right to claim goes on and logs what to run; if all options match, it logs nothing."""
    system = group.system
    key = group.key(system.refer_to(name), allow="send,read,claim")
    with Client(system.profile.url, key=key) as client:
        jobs = Jobs(name, client=client, async_client=system.connect(key=key), max_deliveries=5)
        task = jobs.task(name="task")(print)
        created = f"queuey queue create {name} --ttl 2592000 --max-deliveries 5 --backoff first=1,"
        for sending in (asyncio.to_thread(task.send), task.asend()):
            with pytest.raises(QueueNotFound) as refusal:
                await sending
            assert created in refusal.value.__notes__[0]
        with pytest.raises(NotAllowed):
            await jobs.acreate_queues()
        with caplog.at_level(logging.WARNING, "qdo.worker"):
            await begin(workers, jobs, jobs.async_client)
            assert created in caplog.messages[0]
            await system.client.create_queue(name)
            caplog.clear()
            await begin(workers, jobs, jobs.async_client)
            assert "has max_deliveries 0, but this program names max_deliveries 5, and" in caplog.messages[0]
            assert f"queuey queue update {name} --max-deliveries 5" in caplog.messages[0]
            await system.client.update_queue(name, max_deliveries=5)
            caplog.clear()
            await begin(workers, jobs, jobs.async_client)
        assert caplog.messages == []


async def test_a_hidden_queue(group: GroupWithKeys, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A queue that the key may not see stays unchanged, and the log does not claim that it is missing."""
    client = group.system.connect(key=group.key(group.system.refer_to(name), allow="send"))
    queue = await group.system.client.create_queue(name, ttl=3600)
    with caplog.at_level(logging.WARNING, "qdo.worker"):
        await Jobs(name, async_client=client, ttl=7200).as_handler().keep_queues(client)
    [text] = caplog.messages
    assert f"may neither see nor create queue {name}" in text
    assert f"If it does not exist, an administrator can: queuey queue create {name} --ttl 7200" in text
    assert (await group.system.client.info(name)).ttl == queue.ttl == 3600


def test_options_that_cannot_be() -> None:
    """Impossible options are refused by name."""
    bad: list[tuple[dict[str, Any], str]] = [
        ({"max_deliverys": 3}, "queue q has no option max_deliverys. Options are partitions, ttl"),
        ({"claims": "paused"}, "no option claims"),
        ({"ttl": 0.5}, "queue q: ttl is 0.5: Expected `int"),
        ({"max_deliveries": -1}, "queue q: max_deliveries is -1: "),
        ({"backoff": "first=1"}, "queue q: backoff is 'first=1': "),
        ({"on_ack": "burn"}, "queue q: on_ack is 'burn': use keep or delete"),
    ]
    with pytest.raises(InvalidArgument, match="queue q: options 7 are not a mapping"):
        Jobs({"q": 7})
    for options, text in bad:
        with pytest.raises(InvalidArgument, match=text):
            Jobs("q", **options)
        with pytest.raises(InvalidArgument, match=text):
            Jobs({"q": options})
