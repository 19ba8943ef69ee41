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
from tests.qdo.worker.conftest import Workers, partition_of, quick, until
from tests.qdo.worker.test_processes import MODULE, Book, book

__all__ = ["book"]


KEYED = {"by": "header:key", "parallel": 1, "window": 1}


@pytest.mark.parametrize("options", [{}, KEYED], ids=["by partition", "by key, one at a time"])
async def test_every_message_is_handled_once_and_in_order(workers: Workers, options: dict[str, Any]) -> None:
    """All messages of all partitions are handled, in order within each; the next worker begins where this one ended.

    A handler knows the queue, the partition and the attempt of its message; outside of handlers there is none.
    """
    queue, counts = await workers.system.queue(partitions=3), (60, 40, 20)
    for number, count in enumerate(counts, 1):
        await workers.system.send(queue, count, number)

    def handle(message: Message, context: object) -> None:
        assert delivery() == (partition_of(queue, message.partition), 1)
        workers.note(message, context)

    settings = quick(**options)
    assert await workers.serve_until(await workers.make(handle, queue, settings=settings), 120) == ExitCode.ENDED
    for number, count in enumerate(counts, 1):
        mine = [body for body in workers.seen if body.startswith(f"{number}:")]
        assert mine == [f"{number}:{at}" for at in range(1, count + 1)]
    last = await workers.system.send(queue, 1, 2, first=101)
    await workers.serve_until(await workers.make(workers.note_async, queue, settings=settings), 121)
    assert workers.seen[120:] == ["2:101"]
    assert (await workers.offsets())[2] == last[0]
    with pytest.raises(LookupError):
        delivery()


@pytest.mark.parametrize(
    ("by", "groups", "kind"), [(None, 3, "threads"), ("header:key", 60, "threads"), ("header:key", 60, "processes")]
)
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
    async with workers.serving(worker) as task:
        await until(lambda: len(book.lines("done")) == 300 or task.done())
        assert [line[1] for line in book.lines("done")].index("last") >= before_last


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


ENDS: dict[str, tuple[int, int]] = {"stops": (2, ExitCode.ENDED), "is a mistake": (0, ExitCode.FAILED)}


@pytest.mark.parametrize("how", ENDS)
async def test_a_handler_can_end_the_worker(workers: Workers, how: str) -> None:
    """When a handler stops the worker, earlier messages are recorded, its own is not; the next worker gets it.

    A plain function that returns a coroutine is a mistake: it ends the worker, and marks nothing as handled.
    """
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 5)
    recorded, code = ENDS[how]

    def handle(message: Message, context: object) -> Any:  # noqa: ANN401 - of a mistake
        if how == "is a mistake":
            return workers.note_async(message, context)
        if message.body == "1:3":
            raise StopWorker
        return workers.note(message, context)

    assert await workers.start(await workers.make(handle, queue)) == code
    assert (await workers.offsets()).get(1) == ([None, *ids][recorded])
    await workers.serve_until(await workers.make(workers.note, queue), 5)
    assert workers.seen == [f"1:{number}" for number in range(1, 6)]


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


@pytest.mark.parametrize("processes", [0, 2])
async def test_a_context_that_fails_is_told_before_the_group_is_joined(workers: Workers, processes: int) -> None:
    """A worker whose context fails, here or in its processes, ends with the reason and takes no partition."""
    queue, settings = await workers.system.queue(), quick(processes=processes)
    worker = await workers.make(f"{MODULE}:handle", queue, context=f"{MODULE}:broken", settings=settings)
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
