"""Partitions that go: to another member, by a lost session, or because the worker ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection
from typing import Any

import pytest

from qdo.consumer.consumer import AsyncConsumer
from qdo.consumer.partition_listener import Callbacks
from qdo.coordination import Member
from qdo.errors import CoordinationLost, NotOwner
from qdo.partitions import Partition
from qdo.worker import exit_codes
from qdo.worker.dispatch.offset_committer import OffsetCommitter
from queuey.client import AsyncClient, Message, Outgoing, RetryPolicy
from tests.qdo.worker.conftest import Floor, quick, until
from tests.qdo.worker.door import Door
from tests.replacing import replace


async def test_a_clean_hand_over_handles_nothing_twice(floor: Floor) -> None:
    """Members come and go while messages are handled: each message is handled once, each partition in order."""
    queue = await floor.site.queue(partitions=4)
    for number in range(1, 5):
        await floor.site.send(queue, 300, number)
    pause = threading.Event()

    def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        pause.wait(0.0005)

    first = await floor.worker(handle, queue)
    ended = [floor.start(first)]
    await until(lambda: len(floor.seen) > 50)
    second = await floor.worker(handle, queue)
    ended.append(floor.start(second))
    await until(lambda: len(second.consumer.assignment) == 2)
    first.stop()
    assert await ended[0] == exit_codes.ENDED
    third = await floor.worker(handle, queue)
    floor.start(third)
    await until(lambda: len(floor.seen) >= 1200)
    assert len(floor.seen) == 1200
    for number in range(1, 5):
        mine = [body for body in floor.seen if body.startswith(f"{number}:")]
        assert mine == [f"{number}:{at}" for at in range(1, 301)]


async def test_a_clean_hand_over_fills_the_gaps_between_keys(floor: Floor) -> None:
    """What one key is ahead of another is recorded at the end, so that nobody handles it again."""
    queue = await floor.site.queue()
    go_on = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        if message.body == 1:
            await go_on.wait()
        floor.note(message, context)

    sent = [Outgoing(json=at, headers={"key": "slow" if at % 10 == 1 else f"{at % 10}"}) for at in range(100)]
    await floor.site.client.send_many(queue.name, sent)
    settings = quick(by="header:key", parallel=2)
    worker = await floor.worker(handle, queue, settings=settings)
    task = floor.start(worker)
    await until(lambda: len(floor.seen) == 90)
    worker.stop()
    go_on.set()
    assert await task == exit_codes.ENDED
    assert len(floor.seen) == 100
    await floor.serve_until(await floor.worker(handle, queue, settings=settings), 100)
    assert sorted(floor.seen) == list(range(100))


async def test_gaps_are_filled_when_the_coordination_service_answers_again(floor: Floor) -> None:
    """A worker that drains was suspended in the middle of it: it finishes what it had begun all the same."""
    queue = await floor.site.queue()
    go_on, filled = asyncio.Event(), asyncio.Event()
    begun: list[object] = []

    async def handle(message: Message, context: object) -> None:
        begun.append(message.body)
        if message.body == 1:
            await go_on.wait()
        if message.body == 11:
            await filled.wait()
        floor.note(message, context)

    sent = [Outgoing(json=at, headers={"key": "slow" if at % 10 == 1 else f"{at % 10}"}) for at in range(100)]
    await floor.site.client.send_many(queue.name, sent)
    worker = await floor.worker(handle, queue, settings=quick(by="header:key", parallel=2))
    task = floor.start(worker)
    await until(lambda: len(floor.seen) == 90)
    worker.stop()
    await until(lambda: worker._drained is not None)
    go_on.set()
    await until(lambda: 11 in begun)
    worker._suspended()
    filled.set()
    await until(lambda: len(floor.seen) == 92)
    worker._resumed()
    assert await task == exit_codes.ENDED
    assert len(floor.seen) == 100


async def test_a_session_that_is_lost_while_a_worker_drains_is_told(floor: Floor) -> None:
    """What it had in hand counts for nothing and is handled again: whoever supervises it learns that by the code."""
    queue = await floor.site.queue()
    go_on = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        await go_on.wait()

    worker = await floor.worker(handle, queue)
    task = floor.start(worker)
    await floor.site.send(queue, 1)
    await until(lambda: bool(floor.seen))
    worker.stop()
    await until(lambda: worker._drained is not None)
    coordinator = await floor.site.coordinator()
    await coordinator.join(Member(worker.consumer.member), lambda _: None, replace=True)
    await until(task.done)
    go_on.set()
    assert await task == exit_codes.UNFINISHED
    assert await floor.offsets() == {}


async def test_the_message_in_hand_is_finished_before_its_partition_goes(floor: Floor) -> None:
    """The new member gets nothing of the partition until then, and begins right behind it."""
    queue = await floor.site.queue(partitions=2)
    for number in (1, 2):
        await floor.site.send(queue, 5, number)
    go_on = asyncio.Event()
    hands: list[tuple[str, str]] = []

    async def slow(message: Message, context: object) -> None:
        if message.body.endswith(":2"):
            await go_on.wait()
        hands.append(("slow", message.body))

    async def quick_one(message: Message, context: object) -> None:
        hands.append(("quick", message.body))

    told: list[Partition] = []
    old = await floor.worker(slow, queue)
    old.consumer.attach(Callbacks(on_revoke=told.extend))
    floor.start(old)
    await until(lambda: len(hands) == 2)
    new = await floor.worker(quick_one, queue)
    floor.start(new)
    await until(lambda: bool(told))
    assert len(old.consumer.assignment) == 1
    assert new.consumer.assignment == frozenset()
    go_on.set()
    await until(lambda: len(hands) == 10)
    assert sorted(body for _, body in hands) == sorted(f"{number}:{at}" for number in (1, 2) for at in range(1, 6))
    (moved,) = new.consumer.assignment
    assert [body for who, body in hands if who == "quick"] == [f"{moved.number}:{at}" for at in (3, 4, 5)]


async def test_a_message_that_takes_too_long_does_not_hold_up_the_group(floor: Floor) -> None:
    """After the time allowed the partition goes; the message is handled again there, and its end here means nothing."""
    queue = await floor.site.queue(partitions=2)
    first = {number: (await floor.site.send(queue, 3, number))[0] for number in (1, 2)}
    go_on = asyncio.Event()
    hands: list[tuple[str, str]] = []

    async def stuck(message: Message, context: object) -> None:
        if message.body.endswith(":2"):
            await go_on.wait()
        hands.append(("stuck", message.body))

    async def quick_one(message: Message, context: object) -> None:
        hands.append(("quick", message.body))

    settings = quick(commit_seconds=0.05)
    old = await floor.worker(stuck, queue, settings=settings, consuming={"revoke_timeout": 0.5})
    floor.start(old)
    for number, identifier in first.items():
        await floor.recorded(identifier, number)
    new = await floor.worker(quick_one, queue)
    floor.start(new)
    await until(lambda: len(hands) == 4)
    (moved,) = new.consumer.assignment
    assert hands[2:] == [("quick", f"{moved.number}:2"), ("quick", f"{moved.number}:3")]
    last = (await floor.site.send(queue, 1, moved.number, first=4))[0]
    await floor.recorded(last, moved.number)
    go_on.set()
    await until(lambda: ("stuck", f"{moved.number}:2") in hands)
    assert (await floor.offsets())[moved.number] == last


async def test_what_was_handled_in_a_run_that_does_not_end_is_recorded(floor: Floor) -> None:
    """Of a run with a message that never ends, those before it count."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 5)
    go_on = threading.Event()

    def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        if message.body == "1:4":
            go_on.wait(60)

    worker = await floor.worker(handle, queue, settings=quick(drain=0.2))
    task = floor.start(worker)
    await until(lambda: len(floor.seen) == 4)
    worker.stop()
    assert await task == exit_codes.UNFINISHED
    assert (await floor.offsets())[1] == ids[2]
    go_on.set()


async def test_a_slow_message_does_not_keep_those_before_it_from_being_recorded(floor: Floor) -> None:
    """They are recorded after the usual time, though they are in one run with it."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 5)
    go_on = threading.Event()

    def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        if message.body == "1:4":
            go_on.wait(60)

    floor.start(await floor.worker(handle, queue, settings=quick(commit_seconds=0.05)))
    await floor.recorded(ids[2])
    go_on.set()
    await floor.recorded(ids[4])


async def test_stopping_finishes_the_message_in_hand(floor: Floor) -> None:
    """Nothing behind it begins, it is recorded, and the worker has left its group when it returns."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 3)
    go_on = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        await go_on.wait()

    worker = await floor.worker(handle, queue)
    task = floor.start(worker)
    await until(lambda: len(floor.seen) == 1)
    worker.stop()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    assert await task == exit_codes.ENDED
    assert floor.seen == ["1:1"]
    assert (await floor.offsets())[1] == ids[0]
    assert await (await floor.site.coordinator()).members() == {}


async def test_a_worker_that_drains_hands_each_partition_back_when_it_is_done_with_it(floor: Floor) -> None:
    """Quiet ones go on elsewhere while a long message is finished; nothing new comes to it, whoever leads."""
    queue = await floor.site.queue(partitions=6)
    go_on = asyncio.Event()
    assigned: list[Partition] = []

    async def slow(message: Message, context: object) -> None:
        await go_on.wait()

    old = await floor.worker(slow, queue)
    leaving = floor.start(old)
    await until(lambda: len(old.consumer.assignment) == 6)
    new = await floor.worker(floor.note, queue)
    floor.start(new)
    await until(lambda: len(old.consumer.assignment) == len(new.consumer.assignment) == 3)
    busy, *quiet = sorted(old.consumer.assignment)
    await floor.site.send(queue, 1, busy.number)
    await until(lambda: old.metrics.in_flight == 1)
    old.consumer.attach(Callbacks(on_assign=assigned.extend))
    old.stop()
    await until(lambda: len(new.consumer.assignment) == 5)
    for partition in quiet:
        await floor.site.send(queue, 1, partition.number)
    await until(lambda: len(floor.seen) == 2)
    await floor.site.client.update_queue(queue.name, partitions=8)
    new.consumer._finder.soon()
    await until(lambda: len(new.consumer.assignment) == 7)
    assert not leaving.done()
    assert old.consumer._group.table.held.keys() == {busy}
    go_on.set()
    assert await leaving == exit_codes.ENDED
    await until(lambda: len(new.consumer.assignment) == 8)
    assert assigned == []


async def test_an_end_that_cannot_be_recorded_is_told(floor: Floor) -> None:
    """Whoever supervises the worker learns by its exit code that messages will be handled again."""
    queue = await floor.site.queue()
    await floor.site.send(queue, 1)
    settings = quick(commit_seconds=60, commit_messages=100)
    worker = await floor.worker(floor.note, queue, settings=settings, consuming={"revoke_timeout": 0.5})
    ended = floor.start(worker)
    await until(lambda: len(floor.seen) == 1)

    async def refuse(self: AsyncConsumer, offsets: object) -> None:
        raise CoordinationLost("nobody answers")

    flush = OffsetCommitter.flush

    async def flush_briefly(self: OffsetCommitter, partitions: Collection[Partition] | None, deadline: float) -> None:
        await flush(self, partitions, min(deadline, asyncio.get_running_loop().time() + 0.3))

    with replace(AsyncConsumer.commit, refuse), replace(flush, flush_briefly):
        worker.stop()
        assert await ended == exit_codes.UNFINISHED


async def test_cancelling_gives_up_what_is_in_hand(floor: Floor) -> None:
    """The handler is cancelled, what was handled before is recorded, and the cancellation goes on."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 3)
    cancelled = []

    async def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        if message.body == "1:3":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

    worker = await floor.worker(handle, queue)
    task = floor.start(worker)
    await until(lambda: len(floor.seen) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == ["1:3"]
    assert (await floor.offsets())[1] == ids[1]
    assert await (await floor.site.coordinator()).members() == {}


async def test_while_the_coordination_is_away_nothing_begins(floor: Floor) -> None:
    """The message in hand is finished; those behind it, taken already, wait until the service answers again."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 5)
    go_on = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        if message.body == "1:2":
            await go_on.wait()
        floor.note(message, context)

    worker = await floor.worker(handle, queue, session_timeout=30.0)
    floor.start(worker)
    await until(lambda: floor.seen == ["1:1"])
    await floor.site.service.cut()
    await until(lambda: worker._handling._halted)
    go_on.set()
    await until(lambda: floor.seen == ["1:1", "1:2"])
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert floor.seen == ["1:1", "1:2"]
    await floor.site.service.heal()
    await until(lambda: len(floor.seen) == 5)
    await floor.recorded(ids[4])


async def test_a_lost_session_abandons_what_is_in_hand(floor: Floor) -> None:
    """Nothing is recorded for it, whoever has the partition then begins behind the last record, and work goes on."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 3)
    go_on = asyncio.Event()
    lost = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        if message.body == "1:2" and not lost.is_set():
            await go_on.wait()

    worker = await floor.worker(handle, queue, settings=quick(commit_seconds=0.05))
    worker.consumer.attach(Callbacks(on_lost=lambda _: lost.set()))
    floor.start(worker)
    await until(lambda: floor.seen == ["1:1", "1:2"])
    await floor.recorded(ids[0])
    await floor.site.service.expire(worker.consumer._group._group_session._session)  # type: ignore[union-attr]
    await asyncio.wait_for(lost.wait(), 30)
    await until(lambda: bool(worker.consumer.assignment))
    assert floor.seen == ["1:1", "1:2"]
    assert (await floor.offsets())[1] == ids[0]
    go_on.set()
    await floor.recorded(ids[2])
    assert floor.seen[2:] == ["1:2", "1:3"]


async def test_a_dead_letter_that_hangs_when_the_session_is_lost_holds_up_nothing(floor: Floor) -> None:
    """It is given up with the partition, and the partition goes on when it is this worker's again."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 2)
    door = Door()
    door.shut = "PUT"
    bad = {"1:1"}

    def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        if message.body in bad:
            raise ValueError

    async with AsyncClient(floor.site.profile.url, key=floor.site.profile.key, transport=door) as client:
        worker = await floor.worker(handle, queue, client=client)
        task = floor.start(worker)
        await until(lambda: "PUT" in door.methods)
        bad.clear()
        await floor.site.service.expire(worker.consumer._group._group_session._session)  # type: ignore[union-attr]
        await floor.recorded(ids[1])
        worker.stop()
        assert await task == exit_codes.ENDED
    assert floor.seen == ["1:1"] * 4 + ["1:2"]


async def test_a_worker_can_be_stopped_before_it_has_joined(floor: Floor) -> None:
    """A service that is away, so that nobody knows which queues there are, does not keep it from ending."""
    away = AsyncClient("http://127.0.0.1:1/v1/nobody", key="", retry=RetryPolicy(rounds=1))
    worker = await floor.worker(floor.note, floor.site.named("orders"), client=away)
    task = floor.start(worker)
    async with asyncio.timeout(30), away:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), 0.2)
        worker.stop()
        assert await task == exit_codes.ENDED
    early = await floor.worker(floor.note, floor.site.named("orders"))
    early.stop()
    assert await early.serve() == exit_codes.ENDED


async def test_any_thread_can_stop_it(floor: Floor) -> None:
    """A handler in its thread says when it is enough; that message still counts."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 3)

    def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        if message.body == "1:3":
            worker.stop()

    worker = await floor.worker(handle, queue)
    assert await floor.start(worker) == exit_codes.ENDED
    assert (await floor.offsets())[1] == ids[2]
    worker.stop()


async def test_what_cannot_be_noted_is_not_tried_without_a_pause(floor: Floor) -> None:
    """A partition that is another member's by now is not begun again and again until the worker hears of it."""
    queue = await floor.site.queue()
    await floor.site.send(queue, 3)
    partition = Partition(queue, 1)
    session = await (await floor.site.coordinator()).join(Member("gone"), lambda _: None)
    await session.claim([partition])
    await session.leave()  # without a release: the next owner notes what it begins
    worker = await floor.worker(floor.note_async, queue)
    note, tried = worker.consumer.note, list[float]()

    async def refused(*given: Any) -> None:  # noqa: ANN401 - passed on
        tried.append(asyncio.get_running_loop().time())
        if len(tried) <= 3:
            raise NotOwner("it went to another member", frozenset([partition]))
        await note(*given)

    worker.consumer.note = refused  # type: ignore[assignment, method-assign] # stands for a coordination that lets it know late
    assert await floor.serve_until(worker, 3) == exit_codes.ENDED
    assert floor.seen == ["1:1", "1:2", "1:3"]
    assert tried[2] - tried[0] > 0.9
