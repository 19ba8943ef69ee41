"""Messages are handled in order, in parallel, at least once, and recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from qdo.errors import HandlerError, InvalidArgument
from qdo.worker.failure import ExitCode, StopWorker
from qdo.worker.handlers import delivery
from queuey.client import Message, Outgoing
from tests.qdo.worker import hands
from tests.qdo.worker.conftest import Workers, quick, until
from tests.qdo.worker.test_processes import MODULE, Book, book

__all__ = ["book"]


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_every_message_is_handled_once_and_in_order(workers: Workers, kind: str) -> None:
    """All messages of all partitions are handled, in order within each; the next worker begins where this one ended."""
    queue = await workers.system.queue(partitions=3)
    for number in (1, 2, 3):
        await workers.system.send(queue, 100, number)
    handler = workers.note if kind == "plain" else workers.note_async
    code = await workers.serve_until(await workers.make(handler, queue), 300)
    assert code == ExitCode.ENDED
    for number in (1, 2, 3):
        mine = [body for body in workers.seen if body.startswith(f"{number}:")]
        assert mine == [f"{number}:{at}" for at in range(1, 101)]
    last = await workers.system.send(queue, 1, 2, first=101)
    await workers.serve_until(await workers.make(handler, queue), 301)
    assert workers.seen[300:] == ["2:101"]
    assert (await workers.offsets())[2] == last[0]


async def test_partitions_are_handled_side_by_side(workers: Workers) -> None:
    """A handler that waits for a message of another partition gets it."""
    queue = await workers.system.queue(partitions=2)
    both = threading.Barrier(2)

    def handle(message: Message, context: object) -> None:
        both.wait(30)
        workers.note(message, context)

    await workers.system.send(queue, 1, 1)
    await workers.system.send(queue, 1, 2)
    await workers.serve_until(await workers.make(handle, queue), 2)
    assert sorted(workers.seen) == ["1:1", "2:1"]


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize(("by", "groups"), [(None, 3), ("header:key", 60)])
async def test_a_slow_message_blocks_only_its_partition_or_key(
    workers: Workers, book: Book, kind: str, by: str | None, groups: int
) -> None:
    """The messages of other partitions, or of other keys of its partition, are all handled while it runs."""
    count = 300 // groups
    queue = await workers.system.queue(partitions=1 if by else groups)
    book.path.touch()
    bodies = [(f"m {key} {number}", key) for number in range(count) for key in range(1, groups + 1)]
    before_last = 300 - count + count // 2
    bodies[groups * (count // 2)] = f"last {before_last}", 1
    sent = [Outgoing(body, partition=1 if by else key, headers={"key": str(key)}) for body, key in bodies]
    await workers.system.client.send_many(queue.name, sent)
    settings = quick(by=by, parallel=2, slice=5.0, **{kind: 2})
    worker = await workers.make(hands.end_last, queue, settings=settings, context=f"{MODULE}:book")
    task = workers.start(worker)
    await until(lambda: len(book.lines("done")) == 300 or task.done())
    assert [line[1] for line in book.lines("done")].index("last") >= before_last
    worker.stop()
    assert await task == ExitCode.ENDED


async def test_a_partition_that_waits_has_its_turn(workers: Workers) -> None:
    """With one thread and slow messages, no partition is finished before another has begun."""
    queue = await workers.system.queue(partitions=2)
    pause = threading.Event()

    def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        pause.wait(0.01)

    for number in (1, 2):
        await workers.system.send(queue, 20, number)
    await workers.serve_until(await workers.make(handle, queue, settings=quick(threads=1, slice=0.02)), 40)
    first = [body.partition(":")[0] for body in workers.seen]
    assert len(set(first[:20])) == 2


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_handler_can_stop_the_worker(workers: Workers, kind: str) -> None:
    """When a handler stops the worker, earlier messages are recorded, its own is not; the next worker gets it."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 5)

    def handle(message: Message, context: object) -> None:
        if message.body == "1:3":
            raise StopWorker
        workers.note(message, context)

    async def handle_async(message: Message, context: object) -> None:
        handle(message, context)

    worker = await workers.make(handle if kind == "plain" else handle_async, queue)
    assert await workers.start(worker) == ExitCode.ENDED
    assert (await workers.offsets())[1] == ids[1]
    await workers.serve_until(await workers.make(workers.note, queue), 5)
    assert workers.seen == [f"1:{number}" for number in range(1, 6)]


async def test_a_plain_function_that_returns_a_coroutine_is_found_out(workers: Workers) -> None:
    """A plain function that returns a coroutine ends the worker, instead of marking messages as handled."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 2)
    worker = await workers.make(lambda message, context: workers.note_async(message, context), queue)  # noqa: PLW0108 - a plain function on purpose
    assert await workers.start(worker) == ExitCode.FAILED
    assert (await workers.offsets()).get(1) is None


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_handler_knows_where_its_message_comes_from(workers: Workers, kind: str) -> None:
    """A handler can ask for its message's queue, which the message does not name, and for the attempt."""
    first, second = await workers.system.queue(partitions=2), await workers.system.queue()
    await workers.system.send(first, 1, 2)
    await workers.system.send(second, 1)

    def handle(message: Message, context: object) -> None:
        partition, attempt = delivery()
        workers.seen.append((partition.queue.name, partition.number, attempt))
        if attempt == 1:
            raise ValueError

    async def handle_async(message: Message, context: object) -> None:
        handle(message, context)

    await workers.serve_until(await workers.make(handle if kind == "plain" else handle_async, first, second), 4)
    assert set(workers.seen) == {(first.name, 2, 1), (first.name, 2, 2), (second.name, 1, 1), (second.name, 1, 2)}
    with pytest.raises(LookupError):
        delivery()


async def test_the_context_is_entered_once_and_left_at_the_end(workers: Workers) -> None:
    """The context may be a context manager, an async one, or a plain value; the default is an empty dict."""
    queue = await workers.system.queue(partitions=2)
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

    def handle(message: Message, context: Any) -> None:  # noqa: ANN401 - any context
        workers.seen.append(context)

    for factory, expected in ((plain, "plain"), (late, "late"), (lambda: 5, 5), (None, {})):
        for number in (1, 2):
            await workers.system.send(queue, 1, number)
        workers.seen.clear()
        await workers.serve_until(await workers.make(handle, queue, context=factory), 2)
        assert workers.seen == [expected, expected]
    assert events == ["entered", "left"] * 2


async def test_a_context_that_fails_is_told_before_the_group_is_joined(workers: Workers) -> None:
    """A worker whose context fails takes no partition."""
    queue = await workers.system.queue()

    def broken() -> object:
        raise OSError("no database")

    worker = await workers.make(workers.note, queue, context=broken)
    with pytest.raises(HandlerError, match="no database"):
        await worker.serve()
    assert await (await workers.system.coordinator()).members() == {}


async def test_settings_that_contradict_each_other_are_refused(workers: Workers) -> None:
    """A plain handler with a time limit, and a consumer that commits by itself, are refused at once."""
    queue = await workers.system.queue()
    with pytest.raises(InvalidArgument, match="thread"):
        await workers.make(workers.note, queue, settings=quick(time_limit=1.0))
    with pytest.raises(InvalidArgument, match="commit"):
        await workers.make(workers.note, queue, consuming={"commit_every": 1.0})
    await workers.make(workers.note_async, queue, settings=quick(time_limit=1.0))


async def test_a_worker_serves_once(workers: Workers) -> None:
    """A worker serves once: it has left its group and its context for good."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)
    worker = await workers.make(workers.note, queue)
    await workers.serve_until(worker, 1)
    with pytest.raises(InvalidArgument):
        await worker.serve()
