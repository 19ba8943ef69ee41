"""A run that was settled because it did not end in time counts once, whatever its handler does later."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from msgspec.structs import replace

from qdo import delivery
from qdo.consumer.owned_partition import OwnedPartition
from qdo.coordination import CommittedOffset
from qdo.partitions import Partition
from qdo.worker import runs
from queuey.client import Message
from tests.qdo.unit.worker.test_room import QUEUE, Owned, make_dispatcher, messages, rows_of
from tests.replacing import replace_in
from tests.waiting import PATIENCE_SECONDS

PARTITION = Partition(QUEUE, 1)
BLOCKED = 3
"""The number of the message whose handler waits."""


class Slow(Owned):
    """Records the added offsets; a note takes a while, as with a busy service."""

    def __init__(self, **offsets: CommittedOffset) -> None:
        super().__init__(**offsets)
        self.ends: list[int] = []
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self.answered.set()

    def schedule_commit(self, row: OwnedPartition, offset: str, messages: int) -> None:
        self.ends.append(int(offset, 16))

    async def record_note(self, row: OwnedPartition, note: object) -> None:
        self.asked.set()
        await self.answered.wait()


@pytest.mark.parametrize("why", ["revoked", "stalled"])
async def test_a_run_is_settled_once(why: str) -> None:
    """While the handler of a settled run goes on during a slow note, no message counts as handled before it began."""
    handled: list[int] = []
    reached, go, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(message: Message, _context: object) -> None:
        number = int(message.id, 16)
        if number == BLOCKED:
            reached.set()
            assert go.wait(PATIENCE_SECONDS)
        handled.append(number)
        if number == BLOCKED:
            ended.set()

    owned = Slow(p1=CommittedOffset(held=why == "revoked"))
    stalled_after = 0.2 if why == "stalled" else 300.0
    worker = await make_dispatcher(handle, None, owned, slots=1, run_seconds=60.0, stalled_after=stalled_after)
    loop = asyncio.get_running_loop()
    worker.feed(PARTITION, messages(16, 1))
    worker.dispatch()
    await asyncio.to_thread(reached.wait)
    owned.asked.clear()
    owned.answered.clear()
    rows = rows_of(worker, PARTITION)
    closing = loop.create_task(worker.finish(rows, loop.time() + 0.1)) if why == "revoked" else None
    async with asyncio.timeout(30):
        while not owned.asked.is_set():
            await asyncio.sleep(0.05)
            if why == "stalled":
                worker.record_progress()
        go.set()
        await asyncio.to_thread(ended.wait)
        await asyncio.sleep(0.1)
        owned.answered.set()
        if closing is not None:
            await closing
    assert max(owned.ends) <= max(handled)


@pytest.mark.parametrize("when", ["lost", "stalled"])
async def test_a_partition_with_a_handler_that_hangs_is_read_when_it_comes_back(when: str) -> None:
    """A hanging message has had one attempt and runs again elsewhere, whether its partition left before or after."""
    begun: list[tuple[int, int]] = []
    release, reached, again = threading.Event(), threading.Event(), threading.Event()

    def handle(message: Message, _context: object) -> None:
        begun.append((int(message.id, 16), delivery().attempt))
        if len(begun) == 1:
            reached.set()
            assert release.wait(PATIENCE_SECONDS)
        else:
            again.set()

    worker = await make_dispatcher(handle, None, Slow(p1=CommittedOffset(held=False)), slots=2, stalled_after=0.2)
    worker.feed(PARTITION, messages(1, 1))
    worker.dispatch()
    assert await asyncio.to_thread(reached.wait, PATIENCE_SECONDS)
    if when == "stalled":
        (run,) = next(iter(worker._works.values())).runs
        worker._works[PARTITION].close()  # it is being revoked when the time is over
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not run.leaked:
                worker.record_progress()
                await asyncio.sleep(0.05)
    assert worker.discard(rows_of(worker, PARTITION))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while PARTITION in worker.busy:
            worker.record_progress()
            await asyncio.sleep(0.05)
    worker.feed(PARTITION, messages(1, 1))
    worker.dispatch()
    assert await asyncio.to_thread(again.wait, PATIENCE_SECONDS)
    assert begun == [(0, 1), (0, 2)]
    release.set()
    await worker.wait_until_ended(asyncio.get_running_loop().time() + PATIENCE_SECONDS)
    assert PARTITION not in worker.busy


@pytest.mark.parametrize("how", ["lost", "handed over"])
async def test_a_partition_waits_only_for_handlers_that_end(how: str) -> None:
    """A partition with a hanging key and another key in hand takes messages again when the latter has ended."""
    gates = {"hangs": asyncio.Event(), "ends": asyncio.Event()}

    async def handle(message: Message, _context: object) -> None:
        while not (gate := gates[message.headers["key"]]).is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    with replace_in(runs, runs._STOPPING_SECONDS, 0.0), contextlib.ExitStack() as ended:
        for gate in gates.values():
            ended.callback(gate.set)  # A handler that swallows its cancellation would outlast a test that fails.
        worker = await make_dispatcher(handle, None, Slow(), by="header:key", stalled_after=0.2)
        both = zip(messages(2, 1), gates, strict=True)
        worker.feed(PARTITION, [replace(message, headers={"key": key}) for message, key in both])
        worker.dispatch()
        (work,) = worker._works.values()
        hanging, other = work.runs
        other.since += 1000.0
        await asyncio.sleep(0)  # both begin
        if how == "lost":
            worker.discard(rows_of(worker, PARTITION))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not hanging.leaked:
                worker.record_progress()
                await asyncio.sleep(0.05)
        if work.handing_over is not None:
            await work.handing_over
            worker.discard(rows_of(worker, PARTITION))
        busy = []
        for gate in (gates["ends"], gates["hangs"]):
            busy.append(PARTITION in worker.busy)
            gate.set()
            for _ in range(3):
                await asyncio.sleep(0)
        assert busy == [True, False]
        assert not worker._leaked
