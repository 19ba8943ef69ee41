"""Handlers that hold the interpreter, crash their worker or never end; workers that were stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import Counter

import pytest

from qdo.settings import Retry
from qdo.worker.failure import ExitCode
from queuey.client import Message, Outgoing
from queuey.client.deadletters import DeadLetter
from tests.qdo.cli.workers import WorkerProcess
from tests.qdo.contract.backends import RESPONSIVE_SESSION_SECONDS
from tests.qdo.contract.in_service import ServiceGroups
from tests.qdo.worker.conftest import Workers, quick, until
from tests.qdo.worker.test_signals import Start, start

__all__ = ["start"]

SHORT = ("--session-timeout", str(ServiceGroups.short))
RESPONSIVE = ("--session-timeout", str(RESPONSIVE_SESSION_SECONDS))


def pairs(letters: list[DeadLetter]) -> list[tuple[str | bytes, int]]:
    return [(each.body, each.cause.attempts) for each in letters]


async def test_a_handler_that_holds_the_interpreter_keeps_its_session(workers: Workers, start: Start) -> None:
    """A C call that blocks all threads for longer than a session keeps the session, with the default settings."""
    queue = await workers.system.queue()
    body = f"hold {1.5 * RESPONSIVE_SESSION_SECONDS}"
    receipt = await workers.system.client.send(queue.name, body)
    first = start(queue, "threads", *RESPONSIVE)
    await asyncio.to_thread(first.wait_for, "begun hold")
    second = start(queue, "threads", *RESPONSIVE)
    await asyncio.to_thread(first.wait_for, "done hold")
    await workers.wait_until_recorded(receipt.id)
    assert [*first.said("begun"), *second.said("begun")] == [body]
    assert not [line for line in first.log if "lost" in line]


async def test_two_crashes_within_the_time_of_a_commit_are_both_given_up(workers: Workers, start: Start) -> None:
    """The second crash comes before the first give-up is committed, which is recorded with the note instead."""
    queue = await workers.system.queue()
    await workers.system.client.send_many(queue.name, ["one", "crash first", "two", "three", "crash second", "four"])
    lives: list[WorkerProcess] = []
    while not (lives and "four" in lives[-1].said("done")):
        assert len(lives) < 8, [life.said("begun") for life in lives]
        lives.append(start(queue, "threads", *SHORT, "--attempts", "3", "--commit-seconds", "60"))
        await asyncio.to_thread(_wait_for_text_or_crash, lives[-1], "done four")
    begun = Counter(body for life in lives for body in life.said("begun"))
    assert pairs(await workers.letters(queue)) == [("crash first", 3), ("crash second", 3)]
    assert max(begun.values()) <= 4, begun
    assert begun["four"] == 1


def _wait_for_text_or_crash(program: WorkerProcess, text: str) -> None:
    try:
        program.wait_for(text)
    except AssertionError:
        assert program.wait_for_end() == -signal.SIGSEGV


async def test_a_thread_that_hangs_gives_its_partition_away(workers: Workers, caplog: pytest.LogCaptureFixture) -> None:
    """Each hang of a thread is an attempt; in the end the message is a dead letter, and the others are handled."""
    queue = await workers.system.queue(partitions=2)
    outgoing = [Outgoing(body, partition=1) for body in ("before", "hang", "behind")]
    await workers.system.client.send_many(queue.name, [*outgoing, Outgoing("beside", partition=2)])
    release, begun = threading.Event(), []

    def handle(message: Message, context: object) -> None:
        begun.append(message.body)
        if message.body == "hang":
            release.wait(60)
        workers.note(message, context)

    settings = quick(stalled_after=1.0, commit_seconds=0.05, threads=4, retry=Retry(attempts=3, base=0.001, cap=0.001))
    worker = await workers.make(handle, queue, settings=settings)
    with caplog.at_level(logging.INFO):
        task = workers.start(worker)
        await until(lambda: worker.metrics.oldest > 0.2)
        await until(lambda: "behind" in workers.seen or task.done())
        worker.stop()
        assert await task == ExitCode.ENDED
    release.set()
    assert begun.count("hang") == 3
    assert sorted(workers.seen[:3]) == ["before", "behind", "beside"]
    assert pairs(await workers.letters(queue)) == [("hang", 3)]
    assert [record for record in caplog.records if "cannot be stopped" in record.message]


async def test_an_interrupt_ends_a_worker_that_leaves_signals_to_its_program(workers: Workers) -> None:
    """Ctrl-C raises in the main thread, perhaps in an async handler: this ends the worker and not the message."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, "one")

    async def handle(message: Message, context: object) -> None:
        workers.note(message, context)
        raise KeyboardInterrupt

    worker = await workers.make(handle, queue)
    assert await workers.start(worker) == ExitCode.FAILED
    assert workers.seen == ["one"]
    assert pairs(await workers.letters(queue)) == []
