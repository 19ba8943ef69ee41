"""Messages are handled in order, side by side, at least once, and recorded."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from qdo.errors import HandlerError, InvalidArgument
from qdo.worker import exit_codes
from qdo.worker.executors.in_process import delivery
from qdo.worker.failure import StopWorker
from queuey.client import Message, Outgoing
from tests.qdo.worker.conftest import Floor, quick, until


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_every_message_is_handled_once_and_in_order(floor: Floor, kind: str) -> None:
    """All messages of all partitions arrive, those of one in order; a successor begins where the worker ended."""
    queue = await floor.site.queue(partitions=3)
    for number in (1, 2, 3):
        await floor.site.send(queue, 400, number)
    handler = floor.note if kind == "plain" else floor.note_async
    code = await floor.serve_until(await floor.worker(handler, queue), 1200)
    assert code == exit_codes.ENDED
    for number in (1, 2, 3):
        mine = [body for body in floor.seen if body.startswith(f"{number}:")]
        assert mine == [f"{number}:{at}" for at in range(1, 401)]
    last = await floor.site.send(queue, 1, 2, first=401)
    await floor.serve_until(await floor.worker(handler, queue), 1201)
    assert floor.seen[1200:] == ["2:401"]
    assert (await floor.offsets())[2] == last[0]


async def test_messages_that_come_later_are_handled(floor: Floor) -> None:
    """A worker that has nothing to do takes up what comes."""
    queue = await floor.site.queue()
    worker = await floor.worker(floor.note, queue)
    floor.start(worker)
    for number in range(1, 4):
        await floor.site.send(queue, 1, first=number)
        await until(lambda: len(floor.seen) == number)  # noqa: B023 - awaited in the same round
    assert floor.seen == ["1:1", "1:2", "1:3"]


async def test_partitions_are_handled_side_by_side(floor: Floor) -> None:
    """A handler that waits for another partition's message gets it."""
    queue = await floor.site.queue(partitions=2)
    both = threading.Barrier(2)

    def handle(message: Message, context: object) -> None:
        both.wait(30)
        floor.note(message, context)

    await floor.site.send(queue, 1, 1)
    await floor.site.send(queue, 1, 2)
    await floor.serve_until(await floor.worker(handle, queue), 2)
    assert sorted(floor.seen) == ["1:1", "2:1"]


async def test_a_partition_that_waits_has_its_turn(floor: Floor) -> None:
    """With one thread and slow messages, no partition is finished before another has begun."""
    queue = await floor.site.queue(partitions=2)
    pause = threading.Event()

    def handle(message: Message, context: object) -> None:
        floor.note(message, context)
        pause.wait(0.01)

    for number in (1, 2):
        await floor.site.send(queue, 20, number)
    await floor.serve_until(await floor.worker(handle, queue, settings=quick(threads=1, slice=0.02)), 40)
    first = [body.partition(":")[0] for body in floor.seen]
    assert len(set(first[:20])) == 2


async def test_messages_with_one_key_keep_their_order(floor: Floor) -> None:
    """With a key, messages of one partition run at the same time, and those of one key one after another."""
    queue = await floor.site.queue()
    both = threading.Barrier(2)
    order: dict[str, list[int]] = {}

    def handle(message: Message, context: object) -> None:
        if message.body["at"] < 2:
            both.wait(30)
        order.setdefault(message.body["key"], []).append(message.body["at"])
        floor.note(message, context)

    sent = [Outgoing(json={"key": "ab"[at % 2], "at": at}, partition=1) for at in range(200)]
    receipts = await floor.site.client.send_many(queue.name, sent)
    worker = await floor.worker(handle, queue, settings=quick(by="body:key", parallel=2, batch=2))
    await floor.serve_until(worker, 200)
    assert order == {"a": list(range(0, 200, 2)), "b": list(range(1, 200, 2))}
    assert (await floor.offsets())[1] == receipts[-1].id


async def test_only_what_lies_before_the_first_unfinished_message_is_recorded(floor: Floor) -> None:
    """With a key, one message in hand keeps the offset before it, however much behind it is done."""
    queue = await floor.site.queue()
    go_on = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        if message.body == "slow":
            await go_on.wait()
        floor.note(message, context)

    sent = [Outgoing(body, headers={"key": body}) for body in ("quick", "slow", "quick", "quick")]
    receipts = await floor.site.client.send_many(queue.name, sent)
    worker = await floor.worker(handle, queue, settings=quick(by="header:key"))
    task = floor.start(worker)
    await until(lambda: len(floor.seen) == 3)
    await floor.recorded(receipts[0].id)
    go_on.set()
    await floor.recorded(receipts[3].id)
    worker.stop()
    assert await task == exit_codes.ENDED


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_handler_can_stop_the_worker(floor: Floor, kind: str) -> None:
    """What came before is recorded, the message itself is not; the worker ends cleanly, and its successor gets it."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 5)

    def handle(message: Message, context: object) -> None:
        if message.body == "1:3":
            raise StopWorker
        floor.note(message, context)

    async def handle_async(message: Message, context: object) -> None:
        handle(message, context)

    worker = await floor.worker(handle if kind == "plain" else handle_async, queue)
    assert await floor.start(worker) == exit_codes.ENDED
    assert (await floor.offsets())[1] == ids[1]
    await floor.serve_until(await floor.worker(floor.note, queue), 5)
    assert floor.seen == [f"1:{number}" for number in range(1, 6)]


async def test_a_plain_function_that_returns_a_coroutine_is_found_out(floor: Floor) -> None:
    """Nothing would be handled by it, so the worker ends instead of marking its messages."""
    queue = await floor.site.queue()
    await floor.site.send(queue, 2)
    worker = await floor.worker(lambda message, context: floor.note_async(message, context), queue)  # noqa: PLW0108 - not async by itself
    assert await floor.start(worker) == exit_codes.FAILED
    assert (await floor.offsets()).get(1) is None


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_handler_knows_where_its_message_comes_from(floor: Floor, kind: str) -> None:
    """A message does not name its queue; whoever handles several can ask, and for the attempt too."""
    one, other = await floor.site.queue(partitions=2), await floor.site.queue()
    await floor.site.send(one, 1, 2)
    await floor.site.send(other, 1)

    def handle(message: Message, context: object) -> None:
        partition, attempt = delivery()
        floor.seen.append((partition.queue.name, partition.number, attempt))
        if attempt == 1:
            raise ValueError

    async def handle_async(message: Message, context: object) -> None:
        handle(message, context)

    await floor.serve_until(await floor.worker(handle if kind == "plain" else handle_async, one, other), 4)
    assert set(floor.seen) == {(one.name, 2, 1), (one.name, 2, 2), (other.name, 1, 1), (other.name, 1, 2)}
    with pytest.raises(LookupError):
        delivery()


async def test_the_context_is_entered_once_and_left_at_the_end(floor: Floor) -> None:
    """Of any kind: a context manager, an async one, a plain value; without any it is an empty dict."""
    queue = await floor.site.queue(partitions=2)
    events: list[str] = []

    @contextlib.contextmanager
    def plain() -> Iterator[str]:
        events.append("entered")
        yield "plain"
        events.append("left")

    @contextlib.asynccontextmanager
    async def late() -> AsyncIterator[str]:
        events.append("entered")
        yield "late"
        events.append("left")

    def handle(message: Message, context: Any) -> None:  # noqa: ANN401 - as made
        floor.seen.append(context)

    for factory, expected in ((plain, "plain"), (late, "late"), (lambda: 5, 5), (None, {})):
        for number in (1, 2):
            await floor.site.send(queue, 1, number)
        floor.seen.clear()
        await floor.serve_until(await floor.worker(handle, queue, context=factory), 2)
        assert floor.seen == [expected, expected]
    assert events == ["entered", "left"] * 2


async def test_a_context_that_fails_is_told_before_the_group_is_joined(floor: Floor) -> None:
    """No partition is taken by a worker that could not handle anything."""
    queue = await floor.site.queue()

    def broken() -> object:
        raise OSError("no database")

    worker = await floor.worker(floor.note, queue, context=broken)
    with pytest.raises(HandlerError, match="no database"):
        await worker.serve()
    assert await (await floor.site.coordinator()).members() == {}


async def test_settings_that_contradict_each_other_are_refused(floor: Floor) -> None:
    """A thread cannot be stopped, and two must not commit for the same partitions; both are said at once."""
    queue = await floor.site.queue()
    with pytest.raises(InvalidArgument, match="thread"):
        await floor.worker(floor.note, queue, settings=quick(time_limit=1.0))
    with pytest.raises(InvalidArgument, match="commit"):
        await floor.worker(floor.note, queue, consuming={"commit_every": 1.0})
    await floor.worker(floor.note_async, queue, settings=quick(time_limit=1.0))


async def test_a_worker_serves_once(floor: Floor) -> None:
    """It has left its group and its context for good."""
    queue = await floor.site.queue()
    await floor.site.send(queue, 1)
    worker = await floor.worker(floor.note, queue)
    await floor.serve_until(worker, 1)
    with pytest.raises(InvalidArgument):
        await worker.serve()


async def test_the_seconds_between_records_are_kept(floor: Floor) -> None:
    """Few messages are recorded after a while, though their number would not demand it."""
    queue = await floor.site.queue()
    ids = await floor.site.send(queue, 1)
    floor.start(await floor.worker(floor.note, queue, settings=quick(commit_messages=1_000_000, commit_seconds=0.05)))
    await floor.recorded(ids[0])
