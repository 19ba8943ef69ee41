"""Partitions that leave the worker: to another member, by a lost session, or because the worker ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection
from typing import Any

import pytest

from qdo.errors import CoordinationLost, NotOwner
from qdo.group.offsets import PartitionOwnership
from qdo.group.partition_table import Ownership
from qdo.group.records import Member
from qdo.group.zookeeper.session import ZooKeeperSession
from qdo.partitions import Partition
from qdo.settings import Retry
from qdo.worker.failure import ExitCode, StopWorker
from queuey.client import AsyncClient, Message, Outgoing, RetryPolicy
from tests.qdo.consumer.conftest import session_of
from tests.qdo.worker.conftest import Workers, partition_of, quick, until
from tests.replacing import replace


@pytest.mark.parametrize("suspended", [False, True], ids=["connected", "suspended meanwhile"])
async def test_a_clean_end_fills_the_gaps_between_keys(workers: Workers, suspended: bool) -> None:  # noqa: FBT001 - drawn
    """At the end, messages that one key finished ahead of another are recorded, so that none is repeated.

    This also holds if the coordination service did not answer for a while.
    """
    queue = await workers.system.queue()
    go_on, filled = asyncio.Event(), asyncio.Event()
    begun: list[object] = []

    async def handle(message: Message, context: object) -> None:
        begun.append(message.body)
        if message.body == 1:
            await go_on.wait()
        if message.body == 11:
            await filled.wait()
        workers.note(message, context)

    sent = [Outgoing(json=at, headers={"key": "slow" if at % 10 == 1 else f"{at % 10}"}) for at in range(100)]
    await workers.system.client.send_many(queue.name, sent)
    settings = quick(by="header:key", parallel=2)
    worker = await workers.make(handle, queue, settings=settings)
    task = workers.start(worker)
    await until(lambda: len(workers.seen) == 90)
    worker.stop()
    await until(lambda: worker.time_left > 0)
    go_on.set()
    await until(lambda: 11 in begun)
    if suspended:
        await workers.system.service.cut()
    filled.set()
    if suspended:
        await until(lambda: len(workers.seen) >= 91)
        await workers.system.service.heal()
    assert await task == ExitCode.ENDED
    assert len(workers.seen) == 100
    await workers.serve_until(await workers.make(handle, queue, settings=settings), 100)
    assert sorted(workers.seen) == list(range(100))


async def test_a_session_that_is_lost_while_a_worker_drains_is_told(workers: Workers) -> None:
    """If the session is lost during a drain, messages in hand will be repeated, and the exit code says so."""
    queue = await workers.system.queue()
    go_on = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        await go_on.wait()

    worker = await workers.make(handle, queue)
    task = workers.start(worker)
    await workers.system.send(queue, 1)
    await until(lambda: bool(workers.seen))
    worker.stop()
    await until(lambda: worker.time_left > 0)
    await workers.system.service.expire(session_of(worker.consumer))
    await until(task.done)
    go_on.set()
    assert await task == ExitCode.UNFINISHED
    assert await workers.offsets() == {}


async def test_a_slow_message_does_not_keep_those_before_it_from_being_recorded(workers: Workers) -> None:
    """Messages before a slow one are recorded after the usual time, though they are in one run with it."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 5)
    go_on = threading.Event()

    def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        if message.body == "1:4":
            go_on.wait(60)

    workers.start(await workers.make(handle, queue, settings=quick(commit_seconds=0.05)))
    await workers.wait_until_recorded(ids[2])
    go_on.set()
    await workers.wait_until_recorded(ids[4])


async def test_a_worker_that_drains_hands_each_partition_back_when_it_is_done_with_it(workers: Workers) -> None:
    """A draining worker hands over idle partitions while a long message runs, and gets no new ones, whoever leads."""
    queue = await workers.system.queue(partitions=6)
    go_on = asyncio.Event()

    async def slow(message: Message, context: object) -> None:
        await go_on.wait()

    old = await workers.make(slow, queue, consuming={"discover": 0.1})
    leaving = workers.start(old)
    await until(lambda: len(old.consumer.assignment) == 6)
    new = await workers.make(workers.note, queue, consuming={"discover": 0.1})
    workers.start(new)
    await until(lambda: len(old.consumer.assignment) == len(new.consumer.assignment) == 3)
    busy, *quiet = sorted(old.consumer.assignment)
    await workers.system.send(queue, 1, busy.number)
    await until(lambda: old.metrics.in_flight == 1)
    old.stop()
    await until(lambda: len(new.consumer.assignment) == 5)
    for partition in quiet:
        await workers.system.send(queue, 1, partition.number)
    await until(lambda: len(workers.seen) == 2)
    await workers.system.client.update_queue(queue.name, partitions=8)
    await until(lambda: len(new.consumer.assignment) == 7)
    assert not leaving.done()
    go_on.set()
    assert await leaving == ExitCode.ENDED
    await until(lambda: len(new.consumer.assignment) == 8)


async def test_an_end_that_cannot_be_recorded_is_told(workers: Workers) -> None:
    """The exit code says that messages will be handled again, if the end cannot be recorded."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)
    settings = quick(commit_seconds=60, commit_messages=100)
    worker = await workers.make(workers.note, queue, settings=settings, consuming={"revoke_timeout": 0.5})
    ended = workers.start(worker)
    await until(lambda: len(workers.seen) == 1)

    async def refuse(self: ZooKeeperSession, offsets: object) -> None:
        raise CoordinationLost("nobody answers")

    flush = Ownership.flush

    async def flush_briefly(
        self: Ownership, rows: Collection[PartitionOwnership], deadline: float
    ) -> frozenset[Partition]:
        return await flush(self, rows, min(deadline, asyncio.get_running_loop().time() + 0.3))

    with replace(ZooKeeperSession.commit, refuse), replace(flush, flush_briefly):
        worker.stop()
        assert await ended == ExitCode.UNFINISHED


async def test_cancelling_gives_up_what_is_in_hand(workers: Workers) -> None:
    """A cancelled worker cancels its handler, records earlier messages, and passes the cancellation on."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 3)
    cancelled = []

    async def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        if message.body == "1:3":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

    worker = await workers.make(handle, queue)
    task = workers.start(worker)
    await until(lambda: len(workers.seen) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == ["1:3"]
    assert (await workers.offsets())[1] == ids[1]
    assert await (await workers.system.coordinator()).members() == {}


async def test_a_dead_letter_that_hangs_when_the_session_is_lost_holds_up_nothing(workers: Workers) -> None:
    """A dead letter that hangs is given up with its partition, which goes on when it comes back to this worker."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 2)
    workers.system.transport.hold = "PUT"
    bad = {"1:1"}

    def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        if message.body in bad:
            raise ValueError

    worker = await workers.make(handle, queue)
    async with workers.serving(worker):
        await until(lambda: "PUT" in workers.system.transport.methods)
        bad.clear()
        await workers.system.service.expire(session_of(worker.consumer))
        await workers.wait_until_recorded(ids[1])
    assert workers.seen == ["1:1"] * 4 + ["1:2"]


async def test_a_worker_can_be_stopped_before_it_has_joined(workers: Workers) -> None:
    """A worker that has not joined yet, because the service is away, can be stopped."""
    away = AsyncClient("http://127.0.0.1:1/v1/nobody", key="", retry=RetryPolicy(deadline=0))
    worker = await workers.make(workers.note, workers.system.refer_to("orders"), client=away)
    task = workers.start(worker)
    async with asyncio.timeout(30), away:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.2)
        worker.stop()
        assert await task == ExitCode.ENDED
    early = await workers.make(workers.note, workers.system.refer_to("orders"))
    early.stop()
    assert await early.serve() == ExitCode.ENDED


async def test_what_cannot_be_noted_is_not_tried_without_a_pause(workers: Workers) -> None:
    """A partition that another member owns by now is not begun again and again until the worker is notified."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 3)
    partition = Partition(queue, 1)
    session = await (await workers.system.coordinator()).join(Member("gone"), lambda _: None)
    await session.claim([partition])
    await session.leave()  # without a release: the next owner notes what it begins
    worker = await workers.make(workers.note_async, queue)
    note, tried = Ownership.record_note, list[float]()

    async def refused(*given: Any) -> None:  # noqa: ANN401 - passed on
        tried.append(asyncio.get_running_loop().time())
        if len(tried) <= 3:
            raise NotOwner("it went to another member", frozenset([partition]))
        await note(*given)

    with replace(note, refused):  # a coordination service that notifies it late
        assert await workers.serve_until(worker, 3) == ExitCode.ENDED
    assert workers.seen == ["1:1", "1:2", "1:3"]
    assert tried[2] - tried[0] > 0.9


DISTANT_RETRY = Retry(attempts=5, base=31_536_000.0, cap=31_536_000.0)


@pytest.mark.parametrize("end", ["signal", "StopWorker"])
async def test_a_stop_says_that_messages_will_be_repeated(
    workers: Workers, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    """A stop reports at once, by code and log, that a message will be repeated: it waits, or it ended the worker."""
    queue = await workers.system.queue()
    outgoing = [Outgoing(f"1:{key}", headers={"key": key}) for key in ("bad", "b", "c", "d", "bad")]
    await workers.system.client.send_many(queue.name, outgoing)
    others = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        if message.body == "1:bad":
            await others.wait()
            raise StopWorker if end == "StopWorker" else ValueError
        workers.note(message, context)
        if len(workers.seen) == 3:
            others.set()

    settings = quick(by="header:key", retry=DISTANT_RETRY, drain=60)
    worker = await workers.make(handle, queue, settings=settings)
    with caplog.at_level(logging.WARNING):
        task = workers.start(worker)
        await until(lambda: "attempt 1 failed" in caplog.text or task.done())
        worker.stop()
        assert await asyncio.wait_for(task, 30) == ExitCode.UNFINISHED
    (said,) = [record for record in caplog.records if "some will be handled again" in record.message]
    assert said.__dict__["partitions"] == [str(partition_of(queue))]
    assert await workers.offsets() == {1: None} or not await workers.offsets()
