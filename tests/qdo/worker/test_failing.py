"""Failed messages are tried again or given up, without harm to other messages."""

from __future__ import annotations

import asyncio
import logging

import httpx2
import pytest

from qdo.settings import Retry
from qdo.worker.failure import ExitCode, Failure
from qdo.worker.handlers import Middleware
from qdo.worker.runs import Delivery
from qdo.worker.worker import Worker
from queuey.client import Message, QueueNotFound
from tests.qdo.consumer.controlled_transport import refuse_method
from tests.qdo.worker.conftest import Workers, partition_of, quick, until


class FailsOnBodies:
    """Records every message, and fails on some.

    Args:
        workers: Records every attempt.
        bad: Bodies to fail on.
        times: How often each body fails; None for always.
    """

    def __init__(self, workers: Workers, *bad: str, times: int | None = None) -> None:
        self.workers = workers
        self.bad = bad
        self.left: dict[str, int | None] = dict.fromkeys(bad, times)

    def __call__(self, message: Message, context: object) -> None:
        self.workers.seen.append(message.body)
        remaining = self.left.get(message.body, 0)
        if remaining is None or remaining > 0:
            self.left[message.body] = None if remaining is None else remaining - 1
            raise ValueError(f"cannot handle {message.body}")


FAILURES: dict[str, tuple[int | None, str, list[int], int, int | None]] = {
    "passes": (2, "dead-letter", [1, 2, 2, 2, 3, 4], 4, ExitCode.ENDED),
    "dead-letter": (None, "dead-letter", [1, 2, 2, 2, 3, 4], 4, ExitCode.ENDED),
    "stop": (None, "stop", [1, 2, 2, 2], 1, ExitCode.MESSAGE_FAILED),
    "retry": (None, "retry", [1, *[2] * 9], 1, None),
}
"""How often the second message fails, the setting, the attempts, the last recorded one, and the code if certain."""


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failed_message(workers: Workers, case: str) -> None:
    """A failed message is tried again before any behind it.

    At last it becomes a dead letter with the reason, stops the worker unmarked, or is tried for ever.
    """
    times, on_failure, attempts, last, code = FAILURES[case]
    queue = await workers.system.queue(partitions=3)
    ids = await workers.system.send(queue, 4, 2)
    worker = await workers.make(
        FailsOnBodies(workers, "2:2", times=times), queue, settings=quick(on_failure=on_failure)
    )
    assert await workers.serve_until(worker, len(attempts)) == code or code is None
    assert workers.seen[: len(attempts)] == [f"2:{number}" for number in attempts]
    assert (await workers.offsets())[2] == ids[last - 1]
    found = await workers.letters(queue)
    assert [(each.queue, each.partition, each.id, each.body) for each in found] == (
        [(queue.name, 2, ids[1], "2:2")] if case == "dead-letter" else []
    )
    for each in found:
        assert (each.cause.attempts, each.cause.error, each.cause.text) == (3, "ValueError", "cannot handle 2:2")
        assert (await workers.system.client.info(f"{queue.name}.dead")).partitions == 3
    assert [one.body for one in await workers.system.client.get(queue.name, (2, ids[1]))] == ["2:2"]


async def test_other_partitions_go_on_while_one_waits(workers: Workers) -> None:
    """A message that waits for its next attempt holds up its own partition only."""
    queue = await workers.system.queue(partitions=2)
    await workers.system.send(queue, 2, 1)
    await workers.system.send(queue, 3, 2)
    settings = quick(retry=Retry(attempts=0, base=3600, cap=3600), threads=1)
    await workers.serve_until(await workers.make(FailsOnBodies(workers, "1:1"), queue, settings=settings), 4)
    assert [body for body in workers.seen if body[0] == "2"] == ["2:1", "2:2", "2:3"]
    assert [body for body in workers.seen if body[0] == "1"] == ["1:1"]
    assert (await workers.offsets()).get(1) is None


@pytest.mark.parametrize("broken", ["503", "forbidden"])
async def test_a_dead_letter_is_stored_before_the_offset_moves(workers: Workers, broken: str) -> None:
    """While the service refuses the dead letter the partition stands still; afterwards it goes on."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 2)

    def forbidden(request: httpx2.Request) -> httpx2.Response | None:
        return refuse_method("PUT", 403)(request) or (
            refuse_method("POST", 403)(request) if ".dead" in str(request.url) else None
        )

    workers.system.transport.answer = refuse_method("PUT") if broken == "503" else forbidden
    worker = await workers.make(FailsOnBodies(workers, "1:1"), queue)
    async with workers.serving(worker):
        await until(lambda: workers.system.transport.methods.count("PUT") >= 2)
        assert workers.seen == ["1:1"] * 3
        assert (await workers.offsets()).get(1) is None
        workers.system.transport.answer = None
        await until(lambda: len(workers.seen) == 4)
        await workers.wait_until_recorded(ids[1])
    assert [one.body for one in await workers.letters(queue)] == ["1:1"]


async def test_a_worker_can_stop_while_a_dead_letter_cannot_be_stored(workers: Workers) -> None:
    """A stop does not wait for a service that is away; the message is not marked, so the next worker tries it again."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)
    workers.system.transport.answer = refuse_method("PUT")
    worker = await workers.make(FailsOnBodies(workers, "1:1"), queue)
    async with workers.serving(worker):
        await until(lambda: "PUT" in workers.system.transport.methods)
    assert (await workers.offsets()).get(1) is None
    await workers.serve_until(await workers.make(workers.note, queue), 4)
    assert workers.seen == ["1:1"] * 4


async def test_dead_letters_do_not_die_again(workers: Workers) -> None:
    """A message from a queue of dead letters stays there when it fails, and no further queue is created."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 1)
    await workers.serve_until(await workers.make(FailsOnBodies(workers, "1:1"), queue, settings=quick()), 3)
    dead = workers.system.refer_to(f"{queue.name}.dead")
    await workers.serve_until(await workers.make(FailsOnBodies(workers, "1:1"), dead, group="second"), 6)
    assert len(await workers.letters(queue)) == 1
    with pytest.raises(QueueNotFound):
        await workers.system.client.info(f"{dead.name}.dead")
    worker = await workers.make(FailsOnBodies(workers, "1:1"), dead, group="third", settings=quick(bury_dead=True))
    await workers.serve_until(worker, 9)
    (dead_letter,) = await workers.letters(dead)
    assert dead_letter.headers["queuey-dead-queue"] == queue.name


async def test_an_async_handler_has_a_time_limit(workers: Workers) -> None:
    """A handler over its time limit is cancelled and fails with TimeLimit; a timeout of its own keeps its class."""
    queue = await workers.system.queue()
    await workers.system.send(queue, 3)

    async def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        if message.body == "1:1":
            await asyncio.Event().wait()
        if message.body == "1:2":
            raise TimeoutError("of its own")

    settings = quick(time_limit=0.05, retry=Retry(attempts=1))
    await workers.serve_until(await workers.make(handle, queue, settings=settings), 3)
    dead_letters = await workers.letters(queue)
    assert [dead_letter.cause.error for dead_letter in dead_letters] == ["qdo.errors.TimeLimit", "TimeoutError"]


class RecordingMiddleware(Middleware):
    """A middleware that records its calls, and raises on each."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _note(self, text: str) -> None:
        self.calls.append(text)
        raise RuntimeError("a broken hook")

    def started(self, worker: Worker) -> None:
        self._note("started")

    def stopped(self, worker: Worker) -> None:
        self._note("stopped")

    def before(self, message: Message, delivery: Delivery) -> None:
        self._note(f"before {message.body} {delivery.attempt}")

    def after(self, message: Message, delivery: Delivery) -> None:
        self._note(f"after {message.body} {delivery.attempt}")

    def failed(self, message: Message, delivery: Delivery, failure: Failure) -> None:
        self._note(f"failed {message.body} {delivery.attempt} {failure.kind}")

    def retrying(self, message: Message, delivery: Delivery, failure: Failure, seconds: float) -> None:
        self._note(f"retrying {message.body} {delivery.attempt}")

    def dead(self, message: Message, delivery: Delivery, failure: Failure) -> None:
        self._note(f"dead {message.body} {delivery.attempt}")


async def test_hooks_are_told_and_cannot_lose_a_message(workers: Workers) -> None:
    """Each hook is called at its place; though all raise, everything is handled all the same."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 2)
    told, middleware = RecordingMiddleware(), RecordingMiddleware()
    settings = quick(retry=Retry(attempts=2, base=0, cap=0))
    handler = FailsOnBodies(workers, "1:1")
    worker = await workers.make(handler, queue, middleware=[told, middleware], settings=settings)
    await workers.serve_until(worker, 3)
    assert told.calls == [
        "started",
        "before 1:1 1",
        "failed 1:1 1 ValueError",
        "retrying 1:1 1",
        "before 1:1 2",
        "failed 1:1 2 ValueError",
        "dead 1:1 2",
        "before 1:2 1",
        "after 1:2 1",
        "stopped",
    ]
    assert (await workers.offsets())[1] == ids[1]
    assert len(await workers.letters(queue)) == 1


async def test_failures_are_logged_with_their_place(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """The log has queue, partition, message, attempt and error of a failure, as fields and as text."""
    queue = await workers.system.queue()
    ids = await workers.system.send(queue, 1)
    with caplog.at_level(logging.WARNING, "qdo.worker"):
        await workers.serve_until(await workers.make(FailsOnBodies(workers, "1:1"), queue), 3)
    records = [record for record in caplog.records if record.name == "qdo.worker"]
    levels = [(record.levelname, vars(record)["attempt"]) for record in records]
    assert levels == [("WARNING", 1), ("WARNING", 2), ("ERROR", 3)]
    for record in records:
        said = vars(record)
        assert (said["queue"], said["partition"], said["message_id"]) == (queue.name, 1, ids[0])
        assert said["error"] == "ValueError"
        assert "cannot handle 1:1" in record.getMessage()
    shown = [logging.Formatter().format(record) for record in records]
    assert ["in __call__" in text for text in shown] == [True, False, True]


async def test_an_offset_that_is_refused_takes_no_other_with_it(
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """If a handler moves its partition back, its offset is dropped with an error that names it; others are recorded."""
    queue = await workers.system.queue(partitions=2)
    moved = asyncio.Event()
    await workers.system.client.send(queue.name, "back", partition=1)
    receipt = await workers.system.client.send(queue.name, "other", partition=2)

    async def handle(message: Message, _: object) -> None:
        if message.body == "back":
            worker.consumer.pause([partition_of(queue)])
            await worker.consumer.seek(partition_of(queue), "earliest")
            moved.set()
        await moved.wait()

    worker = await workers.make(handle, queue, settings=quick(commit_messages=100, commit_seconds=1.0))
    async with workers.serving(worker):
        await workers.wait_until_recorded(receipt.id, 2)
        (error,) = [record.message for record in caplog.records if "offsets were not committed" in record.message]
        assert str(partition_of(queue)) in error
        assert "was not returned by poll" in error
