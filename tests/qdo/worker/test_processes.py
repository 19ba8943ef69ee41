"""Handlers in processes of their own may crash and take long, without harm to other messages."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from qdo.partitions import Queue
from qdo.settings import Retry
from qdo.worker.executors.processes import ChildTask, make_frame
from qdo.worker.failure import ExitCode
from qdo.worker.worker import Worker
from tests.qdo.worker import hands
from tests.qdo.worker.conftest import Workers, quick, until
from tests.replacing import replace
from tests.servers.processes import live_processes

MODULE = "tests.qdo.worker.hands"


class Book:
    """The file to which child processes write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, word: str = "") -> list[list[str]]:
        if not self.path.exists():
            return []
        lines = [line.split() for line in self.path.read_text().splitlines()]
        return [line for line in lines if not word or line[0] == word]


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    path = tmp_path / "book"
    monkeypatch.setenv("TEST_BOOK", str(path))
    return Book(path)


async def make_process_worker(
    workers: Workers,
    queue: Queue,
    handler: Any = f"{MODULE}:handle",  # noqa: ANN401 - a handler or its name
    *,
    processes: int = 1,
    **settings: Any,  # noqa: ANN401 - of WorkerSettings
) -> Worker:
    return await workers.make(
        handler,
        queue,
        context=f"{MODULE}:book",
        settings=quick(processes=processes, **settings),
        process_setup=functools.partial(hands.prepare, "ready"),
    )


async def serve_all(workers: Workers, worker: Worker, identifier: str) -> int:
    task = workers.start(worker)
    await workers.wait_until_recorded(identifier)
    worker.stop()
    return await task


async def send(workers: Workers, queue: Queue, *bodies: str) -> list[str]:
    return [receipt.id for receipt in await workers.system.client.send_many(queue.name, bodies)]


@pytest.mark.parametrize("name", ["handle", "handle_async"])
async def test_children_handle_in_order_and_leave_their_contexts(workers: Workers, book: Book, name: str) -> None:
    """Each child is prepared, enters a context and leaves it; messages of one partition keep their order."""
    queue = await workers.system.queue(partitions=2)
    for number in (1, 2):
        await workers.system.send(queue, 50, number)
    worker = await make_process_worker(workers, queue, getattr(hands, name), processes=2)
    async with workers.serving(worker):
        await until(lambda: len(book.lines("done")) == 100)
    for number in (1, 2):
        mine = [line[1] for line in book.lines("done") if line[1].startswith(f"{number}:")]
        assert mine == [f"{number}:{at}" for at in range(1, 51)]
    entered, exited = book.lines("entered"), book.lines("left")
    assert [line[2] for line in entered] == ["ready", "ready"]
    assert {line[1] for line in entered} == {line[1] for line in exited}
    assert str(os.getpid()) not in {line[1] for line in entered}


async def test_a_group_is_killed_before_its_number_is_free(
    workers: Workers, book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that a child left behind are killed with it, before its id can be reused."""
    killed: list[bool] = []
    killpg = os.killpg

    def kill(group: int, number: int) -> None:
        killed.append(Path(f"/proc/{group}").exists())
        killpg(group, number)

    monkeypatch.setattr(os, "killpg", kill)
    queue = await workers.system.queue()
    ids = await send(workers, queue, "orphan", "fine")
    assert (
        await serve_all(workers, await make_process_worker(workers, queue, retry=Retry(attempts=1)), ids[-1])
        == ExitCode.ENDED
    )
    assert killed == [True, True]
    (orphan,) = [line[2] for line in book.lines("orphan")]
    await until(lambda: not live_processes(int(orphan)))
    (dead_letter,) = await workers.letters(queue)
    assert "exited with code 3" in dead_letter.cause.text


async def test_a_crash_is_a_failed_attempt_at_the_message_in_hand(workers: Workers, book: Book) -> None:
    """After a crash earlier messages count; the one in hand is tried again in another child, until it is given up."""
    queue = await workers.system.queue()
    ids = await send(workers, queue, "fine 1", "fine 2", "crash", "fine 3")
    assert await serve_all(workers, await make_process_worker(workers, queue), ids[-1]) == ExitCode.ENDED
    assert [line[1:3] for line in book.lines("done")] == [["fine", "1"], ["fine", "2"], ["fine", "3"]]
    assert [line[1] for line in book.lines("attempt") if line[2] == "crash"] == ["1", "2", "3"]
    assert len(book.lines("entered")) == 4
    (dead_letter,) = await workers.letters(queue)
    assert dead_letter.cause.error == "qdo.worker.executors.processes.Crashed"
    assert "was ended by SIGSEGV" in dead_letter.cause.text


async def test_the_time_limit_begins_anew_with_each_message(workers: Workers, book: Book) -> None:
    """Messages that together take longer than the limit are handled in one run."""
    queue = await workers.system.queue()
    ids = await send(workers, queue, *["sleep 1"] * 3)
    worker = await make_process_worker(workers, queue, time_limit=2.5, retry=Retry(attempts=1))
    assert await serve_all(workers, worker, ids[-1]) == ExitCode.ENDED
    assert len(book.lines("done")) == 3
    assert len(book.lines("entered")) == 1


async def test_a_stop_reaches_a_child_in_the_middle_of_a_run(workers: Workers, book: Book) -> None:
    """A child that is told to stop ends after the message in hand, and its handled messages are recorded."""
    queue = await workers.system.queue()
    ids = await send(workers, queue, *(f"sleep 0.0{at % 10}" for at in range(600)))
    worker = await make_process_worker(workers, queue, slice=60)
    async with workers.serving(worker):
        await until(lambda: len(book.lines("done")) >= 5)
    done = len(book.lines("done"))
    assert 5 <= done < 600
    assert (await workers.offsets())[1] == ids[done - 1]


async def test_any_body_reaches_a_child(workers: Workers, book: Book) -> None:
    """Bytes, and numbers beyond 64 bits, reach a child unchanged."""
    queue = await workers.system.queue()
    await workers.system.client.send(queue.name, b"\xff\xfe")
    await workers.system.client.send(queue.name, json={"a": 2**70})
    last = await workers.system.client.send(queue.name, "fine")
    await serve_all(workers, await make_process_worker(workers, queue), last.id)
    first, second = await workers.letters(queue)
    assert (first.body, first.cause.error) == (b"\xff\xfe", "TypeError")
    assert (second.json, second.cause.error) == (True, "AttributeError")
    assert json.loads(second.body) == {"a": 2**70}


async def test_a_body_that_no_child_can_be_given_is_a_failed_attempt(workers: Workers, book: Book) -> None:
    """A body that cannot be packed, such as a deeply nested one, becomes a dead letter; the others are handled."""
    pack = make_frame

    def packed(value: object) -> bytes:
        if isinstance(value, ChildTask) and any(message.body == "deep" for message in value.messages):
            raise RecursionError("nested too deeply")
        return pack(value)

    queue = await workers.system.queue()
    ids = await send(workers, queue, "fine 1", "deep", "fine 2")
    with replace(pack, packed):
        assert await serve_all(workers, await make_process_worker(workers, queue), ids[-1]) == ExitCode.ENDED
    assert [line[1:3] for line in book.lines("done")] == [["fine", "1"], ["fine", "2"]]
    (dead_letter,) = await workers.letters(queue)
    assert dead_letter.cause.error == "RecursionError"


async def test_a_child_that_ended_while_idle_costs_no_attempt(workers: Workers, book: Book) -> None:
    """When an idle child has ended, the next message goes to another child as its first attempt."""
    queue = await workers.system.queue()
    (first,) = await send(workers, queue, "fine 1")
    worker = await make_process_worker(workers, queue)
    serving = asyncio.create_task(worker.serve())
    await workers.wait_until_recorded(first)  # the child has written this, but not reported it yet
    children = [int(line[1]) for line in book.lines("entered")]
    for child in children:
        os.kill(child, signal.SIGKILL)
    await until(lambda: not any(live_processes(child) for child in children))
    await asyncio.sleep(0.2)  # the process that watches it reports its end, and there is no event for that
    await send(workers, queue, "fine 2")
    await until(lambda: len(book.lines("done")) == 2)
    worker.stop()
    assert await serving == ExitCode.ENDED
    assert [line[1] for line in book.lines("attempt")] == ["1", "1"]
    assert await workers.letters(queue) == []
