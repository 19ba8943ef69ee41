"""A run that was settled because it did not end in time counts once, whatever its handler does afterwards."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qdo.coordination import CommittedOffset
from qdo.partitions import Partition
from queuey.client import Message
from tests.qdo.unit.worker.test_room import QUEUE, Owned, handling, messages
from tests.waiting import PATIENCE_SECONDS

PARTITION = Partition(QUEUE, 1)
BLOCKED = 3
"""The number of the message whose handler waits."""


class SlowProgress:
    """Records the ends that are noted; a note of what begins takes a while, as one of a busy coordination service."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()
        self.answered.set()

    def note(self, _partition: Partition, end: str, _count: int) -> None:
        """Takes in an end."""
        self.ends.append(int(end, 16))

    async def begin(self, _partition: Partition, _note: object) -> None:
        """Waits until it is answered."""
        self.asked.set()
        await self.answered.wait()


@pytest.mark.parametrize("why", ["revoked", "stalled"])
async def test_a_run_is_settled_once(why: str) -> None:
    """Its handler goes on while the coordination service is slow: no message that was not begun counts as handled."""
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

    progress = SlowProgress()
    owned = Owned(p1=CommittedOffset(held=why == "revoked"))
    stalled_after = 0.2 if why == "stalled" else 300.0
    worker = await handling(handle, None, owned, progress, slots=1, run_seconds=60.0, stalled_after=stalled_after)
    loop = asyncio.get_running_loop()
    worker.feed(PARTITION, messages(16, 1))
    worker.dispatch()
    await asyncio.to_thread(reached.wait)
    progress.asked.clear()
    progress.answered.clear()
    closing = loop.create_task(worker.close({PARTITION}, loop.time() + 0.1)) if why == "revoked" else None
    async with asyncio.timeout(30):
        while not progress.asked.is_set():
            await asyncio.sleep(0.05)
            if why == "stalled":
                worker.note_progress()
        go.set()
        await asyncio.to_thread(ended.wait)
        await asyncio.sleep(0.1)
        progress.answered.set()
        if closing is not None:
            await closing
    assert max(progress.ends) <= max(handled)
