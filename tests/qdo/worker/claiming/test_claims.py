"""Workers that claim: one of them handles each message, whatever handlers, workers and the service do."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from qdo.errors import InvalidArgument, MissingRights
from qdo.partitions import Queue
from qdo.settings import Retry, WorkerSettings
from qdo.worker.claim_source import Claims
from qdo.worker.failure import ExitCode
from qdo.worker.worker import Worker
from queuey.client import AsyncTiming, Message, QueueNotFound
from tests.qdo.consumer.controlled_transport import refuse_method
from tests.qdo.consumer.test_sight import GroupWithKeys, group
from tests.qdo.worker.conftest import Workers, until
from tests.qdo.worker.test_processes import book

__all__ = ["book", "group"]

MODULE = "tests.qdo.worker.hands"
SHORT_BACKOFF = "first=0.05,most=0.05,jitter=0"


def make(workers: Workers, handler: Any, *queues: Queue, ttl: float = 30.0, **options: Any) -> Worker:  # noqa: ANN401
    more = {name: options.pop(name) for name in ("middleware", "context", "registry") if name in options}
    claims = Claims(workers.system.connect(), [queue.name for queue in queues], ttl=ttl)
    return Worker(handler, claims, settings=WorkerSettings(commit_seconds=0.05, **options), **more)


def has_begun(worker: Worker) -> bool:
    """Returns whether a worker claims and has put its schedules."""
    source: Any = worker._source
    return bool(source._queues) and not source._preparing


async def is_drained(workers: Workers, *queues: Queue) -> bool:
    sizes = [await workers.system.client.job_queue(queue.name).size() for queue in queues]
    return not any(size.size for size in sizes)


async def wait_until_drained(workers: Workers, *queues: Queue) -> None:
    async def are_drained() -> bool:
        return await is_drained(workers, *queues)

    await until(are_drained)


async def test_what_was_not_begun_in_time_is_delivered_again(workers: Workers) -> None:
    """Messages whose claims end while they wait for a handler are given back, so that others can claim them."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 60)
    before = await workers.system.client.job_queue(queue.name).receive(60)
    await workers.system.client.job_queue(queue.name).release(
        before
    )  # Messages delivered before are handled one by one.
    ahead = 0.0

    def handle(message: Message, context: object) -> None:
        nonlocal ahead
        workers.note(message, context)
        if len(workers.seen) == 20:
            ahead = 100.0

    timing = AsyncTiming(clock=lambda: time.monotonic() + ahead)
    claims = Claims(workers.system.connect(timing=timing), [queue.name])
    worker = Worker(handle, claims, settings=WorkerSettings(commit_seconds=0.05, threads=1))
    async with workers.serving(worker):
        await until(lambda: len(set(workers.seen)) == 60)
        await wait_until_drained(workers, queue)


async def test_a_handler_that_blocks_the_loop_for_longer_than_its_claim(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """A blocked loop cannot renew its claims: the messages come again and are acknowledged, but not handled again."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 2)

    async def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        time.sleep(2.5)  # noqa: ASYNC251 - the mistake

    registry = CollectorRegistry()
    worker = make(workers, handle, queue, ttl=2.0, registry=registry)
    async with workers.serving(worker):
        await until(lambda: len(workers.seen) >= 2)
        await wait_until_drained(workers, queue)
        overdue = registry.get_sample_value("qdo_messages_overdue_total", {"queue": queue.name})
    assert sorted(workers.seen) == sorted(set(workers.seen))
    assert (overdue or 0) >= 2
    lines = [record.getMessage() for record in caplog.records if "before the handler had handled it" in record.message]
    assert len(lines) >= 2
    assert all(queue.name in line for line in lines)


async def test_a_queue_that_is_deleted(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """When a queue is deleted the others go on, handled messages are acknowledged once, and the log names the queue."""
    gone, queue = [await workers.system.queue() for _ in range(2)]
    worker = make(workers, workers.note_async, gone, queue)
    async with workers.serving(worker):
        await workers.system.send(gone, 1)
        await until(lambda: len(workers.seen) == 1)
        await workers.system.client.delete_queue(gone.name)
        for count in (1, 2):
            await workers.system.send(queue, 1, first=count)
            await wait_until_drained(workers, queue)
    assert len(workers.seen) == 3
    warnings = [record.getMessage() for record in caplog.records if record.name == "queuey.client"]
    assert [text.split(":")[0] for text in warnings] == [f"No messages are claimed from queue {gone.name}"]


@pytest.mark.parametrize("what", ["dead-letter", "skip", "stop"])
async def test_errors_that_no_retry_can_help(workers: Workers, what: Any) -> None:  # noqa: ANN401 - a literal
    """A message that no retry can help becomes a dead letter at once, is skipped, or ends the worker and stays."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)

    def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        raise LookupError("nothing")

    settings = {"on_failure": what, "retry": Retry(never=("LookupError",))}
    worker = make(workers, handle, queue, **settings)
    if what == "stop":
        assert await workers.start(worker) == ExitCode.MESSAGE_FAILED
        assert (await workers.system.client.job_queue(queue.name).size()).size == 1
        return
    async with workers.serving(worker):
        await wait_until_drained(workers, queue)
    assert len(workers.seen) == 1
    if what == "dead-letter":
        assert len(await workers.letters(queue, count=1)) == 1
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
    """A stop finishes and acknowledges the running message; the other claimed ones are released at once."""
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


@pytest.mark.parametrize("kind", ["thread", "task"])
async def test_a_handler_that_does_not_end(workers: Workers, kind: str) -> None:
    """The message of a handler that does not end goes to other workers with a reason; the worker goes on."""
    queue = await workers.system.queue(max_deliveries=1, backoff=SHORT_BACKOFF)
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
    await wait_until_drained(workers, queue)
    worker.stop()
    assert await task == (ExitCode.UNFINISHED if kind == "thread" else ExitCode.ENDED)
    go_on.set()
    [dead_letter] = await workers.letters(queue, count=1)
    assert dead_letter.cause.error == "qdo.errors.TimeLimit"


async def test_a_worker_whose_threads_all_hang_ends(workers: Workers) -> None:
    """A worker whose threads all hang claims no more and exits with code 1, because each hang costs a thread.

    Its threads keep no process alive.
    """
    queue = await workers.system.queue(backoff=SHORT_BACKOFF)
    await workers.system.send(queue, 4)
    go_on, begun = threading.Event(), []

    def block(message: Message, context: object) -> None:
        begun.append(threading.current_thread().daemon)
        go_on.wait(60)

    worker = make(workers, block, queue, threads=2, stalled_after=0.3, drain=1.0)
    assert await asyncio.wait_for(workers.start(worker), 60) == ExitCode.FAILED
    assert all(begun)
    assert len(begun) <= 3  # The first hanging message had another thread beside it.
    backlog = await workers.system.client.job_queue(queue.name).backlog()
    assert backlog.waiting + backlog.retrying >= 2
    go_on.set()


async def test_long_work_keeps_its_claim(workers: Workers) -> None:
    """The claim of a message is renewed while its handler works, far beyond its time."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)

    async def handle(message: Message, context: object) -> None:
        await asyncio.sleep(3.5)
        workers.note(message, context)

    first, second = make(workers, handle, queue, ttl=2), make(workers, handle, queue, ttl=2)
    tasks = [workers.start(first), workers.start(second)]
    await wait_until_drained(workers, queue)
    for worker in (first, second):
        worker.stop()
    assert await asyncio.gather(*tasks) == [ExitCode.ENDED] * 2
    assert workers.seen == ["1:1"]


@pytest.mark.parametrize(
    ("method", "said"), [("GET", "does not answer now"), ("POST", "no messages can be claimed now")]
)
async def test_a_service_that_is_away(
    workers: Workers, caplog: pytest.LogCaptureFixture, method: str, said: str
) -> None:
    """At the start and later, the worker waits for a service that is away, logs it, and then goes on."""
    queue = await workers.system.queue()
    worker = make(workers, workers.note, queue, ttl=2)
    async with workers.serving(worker):
        if method == "POST":
            await until(lambda: has_begun(worker))
        workers.system.transport.answer = refuse_method(method)
        await until(lambda: said in caplog.text)
        workers.system.transport.answer = None
        await workers.system.send(queue, 1)
        await until(lambda: len(workers.seen) == 1)
    assert await is_drained(workers, queue)


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
    await until(lambda: has_begun(able))
    able.stop()
    assert await task == ExitCode.ENDED


@pytest.mark.parametrize(
    ("options", "text"),
    [({"ttl": 1}, "2 to 43,200"), ({"by": "header:x"}, "do not keep the order"), ({"queues": []}, "1 to 10")],
)
async def test_options_that_cannot_work(workers: Workers, options: dict[str, Any], text: str) -> None:
    """Options that cannot work are refused at once."""
    queues, settings = options.pop("queues", ["q"]), WorkerSettings(by=options.pop("by", None))
    with pytest.raises((InvalidArgument, ValueError), match=text):
        Worker(workers.note, Claims(workers.system.client, queues, **options), settings=settings)
