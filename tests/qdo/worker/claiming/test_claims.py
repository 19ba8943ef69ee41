"""Workers that claim: each message is handled by one of them, whatever handlers, workers and the service do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qdo.errors import InvalidArgument, MissingRights
from qdo.partitions import Queue
from qdo.settings import Retry, WorkerSettings
from qdo.worker.claim_source import Claims
from qdo.worker.failure import ExitCode, StopWorker
from qdo.worker.handlers import delivery
from qdo.worker.worker import Worker
from queuey.client import AsyncTiming, Message, QueueNotFound, disable_tracing, enable_tracing
from queuey.client.deadletters import read_dead_letter
from tests.qdo.consumer.controlled_transport import refused
from tests.qdo.consumer.test_sight import GroupWithKeys, group
from tests.qdo.worker import hands
from tests.qdo.worker.conftest import Workers, until
from tests.qdo.worker.test_processes import Book, book

__all__ = ["book", "group"]

MODULE = "tests.qdo.worker.hands"
SOON = "first=0.05,most=0.05,jitter=0"


def make(workers: Workers, handler: Any, *queues: Queue, ttl: float = 30.0, **options: Any) -> Worker:  # noqa: ANN401
    """Makes a worker that claims from queues."""
    more = {name: options.pop(name) for name in ("middleware", "context", "registry") if name in options}
    claims = Claims(workers.system.connect(), [queue.name for queue in queues], ttl=ttl)
    return Worker(handler, claims, settings=WorkerSettings(commit_seconds=0.05, **options), **more)


async def done(workers: Workers, *queues: Queue) -> bool:
    """Whether nothing of queues is left to do."""
    sizes = [await workers.system.client.job_queue(queue.name).size() for queue in queues]
    return not any(size.size for size in sizes)


async def until_done(workers: Workers, *queues: Queue) -> None:
    """Waits until nothing of queues is left to do."""
    async with asyncio.timeout(30):
        while not await done(workers, *queues):  # noqa: ASYNC110 - nobody tells of an acknowledgement
            await asyncio.sleep(0.02)


async def dead_letters(workers: Workers, queue: Queue, count: int = 1) -> Sequence[Message]:
    """Waits for dead letters of a queue: they are stored a moment after their messages are given up."""
    async with asyncio.timeout(30):
        while True:
            with suppress(QueueNotFound):
                found = await workers.system.client.read(f"{queue.name}.dead", delay=False, partitions="*")
                if len(found.messages) >= count:
                    return found.messages
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["plain", "async", "processes"])
async def test_two_workers_share_the_messages(workers: Workers, book: Book, kind: str) -> None:
    """Each message is handled once, by whatever runs handlers, and acknowledged when both have stopped."""
    queue = await workers.system.queue(partitions=3)
    for number in (1, 2, 3):
        await workers.system.send(queue, 100, number)
    options: dict[str, Any] = {"processes": 2, "context": f"{MODULE}:book"} if kind == "processes" else {}
    handler = {"plain": workers.note, "async": workers.note_async, "processes": hands.write_down}[kind]
    both = [make(workers, handler, queue, **options) for _ in range(2)]
    tasks = [workers.start(worker) for worker in both]
    await until(lambda: len(workers.seen) + len(book.lines("done")) == 300)
    for worker in both:
        worker.stop()
    assert await asyncio.gather(*tasks) == [ExitCode.ENDED] * 2
    assert await done(workers, queue)
    assert len({*workers.seen, *(line[1] for line in book.lines("done"))}) == 300


async def test_what_was_not_begun_in_time_is_delivered_again(workers: Workers) -> None:
    """Messages whose claims end while they wait for a handler are given back, and not kept from everybody."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 60)
    before = await workers.system.client.job_queue(queue.name).receive(60)
    await workers.system.client.job_queue(queue.name).release(
        before
    )  # What was delivered before is handled one by one.
    ahead = 0.0

    def handle(message: Message, context: object) -> None:
        nonlocal ahead
        workers.note(message, context)
        if len(workers.seen) == 20:
            ahead = 100.0

    timing = AsyncTiming(clock=lambda: time.monotonic() + ahead)
    claims = Claims(workers.system.connect(timing=timing), [queue.name])
    worker = Worker(handle, claims, settings=WorkerSettings(commit_seconds=0.05, threads=1))
    task = workers.start(worker)
    await until(lambda: len(set(workers.seen)) == 60)
    await until_done(workers, queue)
    worker.stop()
    assert await task == ExitCode.ENDED


async def test_a_handler_that_blocks_the_loop_for_longer_than_its_claim(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be renewed meanwhile, so its messages come again: they are acknowledged, not handled again."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 2)

    async def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        time.sleep(2.5)  # noqa: ASYNC251 - the mistake

    worker = make(workers, handle, queue, ttl=2.0)
    task = workers.start(worker)
    await until(lambda: len(workers.seen) >= 2)
    await until_done(workers, queue)
    worker.stop()
    assert await task == ExitCode.ENDED
    assert sorted(workers.seen) == sorted(set(workers.seen))
    assert worker.metrics._counts["overdue"][queue.name, ""] >= 2
    lines = [record.getMessage() for record in caplog.records if "before the handler had handled it" in record.message]
    assert len(lines) >= 2
    assert all(queue.name in line for line in lines)


async def test_a_queue_that_is_deleted(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """The others are claimed from, what was handled is acknowledged once, and the log says which queue is missing."""
    gone, queue = [await workers.system.queue() for _ in range(2)]
    worker = make(workers, workers.note_async, gone, queue)
    task = workers.start(worker)
    await workers.system.send(gone, 1)
    await until(lambda: len(workers.seen) == 1)
    await workers.system.client.delete_queue(gone.name)
    for count in (1, 2):
        await workers.system.send(queue, 1, first=count)
        await until_done(workers, queue)
    worker.stop()
    assert await task == ExitCode.ENDED
    assert len(workers.seen) == 3
    warnings = [record.getMessage() for record in caplog.records if record.name == "queuey.client"]
    assert [text.split(":")[0] for text in warnings] == [f"No messages are claimed from queue {gone.name}"]


@pytest.mark.parametrize("what", ["dead-letter", "skip", "stop"])
async def test_errors_that_no_retry_can_help(workers: Workers, what: Any) -> None:  # noqa: ANN401 - a literal
    """Such a message becomes a dead letter at once, is passed over, or ends the worker and waits."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)

    def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        raise LookupError("nothing")

    settings = {"on_failure": what, "retry": Retry(never=("LookupError",))}
    worker = make(workers, handle, queue, **settings)
    task = workers.start(worker)
    if what == "stop":
        assert await task == ExitCode.MESSAGE_FAILED
        assert (await workers.system.client.job_queue(queue.name).size()).size == 1
        return
    await until_done(workers, queue)
    worker.stop()
    assert await task == ExitCode.ENDED
    assert len(workers.seen) == 1
    if what == "dead-letter":
        assert len(await dead_letters(workers, queue)) == 1
    else:
        with pytest.raises(QueueNotFound):
            await workers.system.client.read(f"{queue.name}.dead", delay=False)


async def test_preference(workers: Workers) -> None:
    """Messages of the first queue come before those of the others."""
    high, low = await workers.system.queue(), await workers.system.queue()
    await workers.system.send(low, 20)
    await workers.system.client.send_many(high.name, ["high"] * 20)
    worker = make(workers, workers.note, high, low, threads=1)
    await workers.serve_until(worker, 40)
    assert workers.seen[:20] == ["high"] * 20


async def test_a_stop_finishes_what_was_begun(workers: Workers) -> None:
    """The running message is finished and acknowledged; those that were claimed with it wait for others at once."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 50)
    go_on, begun = threading.Event(), threading.Event()

    def handle(message: Message, context: object) -> None:
        if len(workers.seen) == 20:
            begun.set()
            assert go_on.wait(20)
        workers.note(message, context)

    worker = make(workers, handle, queue, threads=1, ttl=600)
    task = workers.start(worker)
    await until(begun.is_set)
    worker.stop()
    await asyncio.sleep(0.1)
    go_on.set()
    assert await task == ExitCode.ENDED
    assert len(workers.seen) == 21
    counts = await workers.system.client.job_queue(queue.name).counts()
    assert counts.claimed == 0
    assert (await workers.system.client.job_queue(queue.name).size()).size == 29


async def test_what_is_not_finished_in_time_comes_again(workers: Workers) -> None:
    """A handler that outlasts the drain leaves its message to others."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)
    begun = asyncio.Event()

    async def handle(message: Message, context: object) -> None:
        begun.set()
        await asyncio.sleep(600)

    worker = make(workers, handle, queue, drain=0.0, ttl=600)
    task = workers.start(worker)
    await begun.wait()
    worker.stop()
    assert await task == ExitCode.UNFINISHED
    await workers.serve_until(make(workers, workers.note, queue), 1)


@pytest.mark.parametrize("kind", ["thread", "task"])
async def test_a_handler_that_does_not_end(workers: Workers, kind: str) -> None:
    """Its message goes on to others with a reason, and the worker goes on with the next ones."""
    queue = await workers.system.queue(max_deliveries=1, backoff=SOON)
    await workers.system.send(queue, 2)
    go_on = threading.Event()

    def block(message: Message, context: object) -> None:
        if message.body == "1:1":
            go_on.wait(30)
        workers.note(message, context)

    async def wait(message: Message, context: object) -> None:
        if message.body == "1:1":
            await asyncio.sleep(600)
        workers.note(message, context)

    worker = make(workers, block if kind == "thread" else wait, queue, threads=2, tasks=1, stalled_after=0.3)
    task = workers.start(worker)
    await until(lambda: workers.seen == ["1:2"])
    await until_done(workers, queue)
    worker.stop()
    assert await task == (ExitCode.UNFINISHED if kind == "thread" else ExitCode.ENDED)
    go_on.set()
    [letter] = await dead_letters(workers, queue)
    found = read_dead_letter(letter, f"{queue.name}.dead")
    assert found is not None
    assert found.cause.error == "qdo.errors.TimeLimit"


async def test_a_worker_whose_threads_all_hang_ends(workers: Workers) -> None:
    """Each message that hangs would cost another thread: the worker claims no more, and its supervisor sees code 1."""
    queue = await workers.system.queue(backoff=SOON)
    await workers.system.send(queue, 4)
    go_on, begun = threading.Event(), []

    def block(message: Message, context: object) -> None:
        begun.append(message.body)
        go_on.wait(60)

    worker = make(workers, block, queue, threads=2, stalled_after=0.3, drain=1.0)
    assert await asyncio.wait_for(workers.start(worker), 60) == ExitCode.FAILED
    assert len(begun) <= 3  # The first that hung had another beside it.
    left = await workers.system.client.job_queue(queue.name).backlog()
    assert left.waiting + left.retrying >= 2
    go_on.set()


async def test_long_work_keeps_its_claim(workers: Workers) -> None:
    """A message is renewed while its handler works, far beyond the time of a claim."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)

    async def handle(message: Message, context: object) -> None:
        await asyncio.sleep(5)
        workers.note(message, context)

    first, second = make(workers, handle, queue, ttl=2), make(workers, handle, queue, ttl=2)
    tasks = [workers.start(first), workers.start(second)]
    await until_done(workers, queue)
    for worker in (first, second):
        worker.stop()
    assert await asyncio.gather(*tasks) == [ExitCode.ENDED] * 2
    assert workers.seen == ["1:1"]


async def test_a_handler_stops_its_worker(workers: Workers) -> None:
    """The message of a handler that asks for the end counts as not handled."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)

    def handle(message: Message, context: object) -> None:
        raise StopWorker

    assert await workers.start(make(workers, handle, queue)) == ExitCode.ENDED
    assert (await workers.system.client.job_queue(queue.name).size()).size == 1


@pytest.mark.parametrize(
    ("method", "said"), [("GET", "does not answer now"), ("POST", "no messages can be claimed now")]
)
async def test_a_service_that_is_away(
    workers: Workers, caplog: pytest.LogCaptureFixture, method: str, said: str
) -> None:
    """At the start and later: the worker says so while it waits, and handles what is there when the service is back."""
    queue = await workers.system.queue()
    task = workers.start(worker := make(workers, workers.note, queue, ttl=2))
    if method == "POST":
        await until(lambda: bool(worker._source._queues))  # type: ignore[attr-defined] # it claims
    workers.system.transport.answer = refused(method)
    await until(lambda: said in caplog.text)
    workers.system.transport.answer = None
    await workers.system.send(queue, 1)
    await until(lambda: len(workers.seen) == 1)
    worker.stop()
    assert await task == ExitCode.ENDED
    assert await done(workers, queue)


async def test_hooks_and_counts(workers: Workers) -> None:
    """Middleware sees the same as with a group, and the same is counted."""
    queue = await workers.system.queue(backoff=SOON)
    await workers.system.send(queue, 2)
    told: list[str] = []

    class Told:
        def before(self, message: Message, _: object) -> None:
            told.append(f"before {message.body}")

        def failed(self, message: Message, place: Any, failure: Any) -> None:  # noqa: ANN401 - as it comes
            told.append(f"failed {message.body} {place.partition.queue.name == queue.name} {failure}")

        def retrying(self, message: Message, *_: object) -> None:
            told.append(f"retrying {message.body}")

    def handle(message: Message, context: object) -> None:
        if message.body == "1:2" and delivery().attempt == 1:
            raise KeyError("x")
        workers.note(message, context)

    worker = make(workers, handle, queue, middleware=[Told()])
    await workers.serve_until(worker, 2)
    assert [line for line in told if "1:2" in line] == [
        "before 1:2",
        "failed 1:2 True KeyError: 'x'",
        "retrying 1:2",
        "before 1:2",
    ]
    counts = {name: worker.metrics._counts[name][queue.name, ""] for name in ("handled", "failed", "retried")}
    assert counts == {"handled": 2, "failed": 1, "retried": 1}


async def test_spans(workers: Workers) -> None:
    """With tracing, what a handler reports is a child of the span that has sent its message."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    enable_tracing(provider)
    try:
        queue = await workers.system.queue()
        await workers.system.send(queue, 1)
        worker = make(workers, workers.note, queue)
        await workers.serve_until(worker, 1)
    finally:
        disable_tracing()
    found = {span.name: span for span in exporter.get_finished_spans()}
    sent, handled = found[f"send {queue.name}"], found[f"process {queue.name}"]
    assert handled.parent is not None
    assert handled.parent.span_id == sent.context.span_id


async def test_rights(group: GroupWithKeys) -> None:
    """A credential that may not claim is refused before the worker begins; one that may read and claim is enough."""
    queue = await group.system.queue()

    def worker(allow: str) -> Worker:
        key = group.key(queue, allow=allow)
        return Worker(lambda _message, _context: None, Claims(group.system.connect(key=key), [queue.name]))

    with pytest.raises(MissingRights, match="may not claim"):
        await worker("read").serve()
    able = worker("read,claim")
    task = asyncio.create_task(able.serve())
    await until(lambda: bool(able._source._queues))  # type: ignore[attr-defined] # it claims
    able.stop()
    assert await task == ExitCode.ENDED


@pytest.mark.parametrize(
    ("options", "text"),
    [({"ttl": 1}, "2 to 43,200"), ({"by": "header:x"}, "keeps an order"), ({"queues": []}, "1 to 10")],
)
async def test_options_that_cannot_work(workers: Workers, options: dict[str, Any], text: str) -> None:
    """They are refused where they are given."""
    queues, settings = options.pop("queues", ["q"]), WorkerSettings(by=options.pop("by", None))
    with pytest.raises((InvalidArgument, ValueError), match=text):
        Worker(workers.note, Claims(workers.system.client, queues, **options), settings=settings)
