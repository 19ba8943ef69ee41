"""A run that was settled because it did not end in time counts once, whatever its handler does afterwards."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from qdo.coordination import CommittedOffset
from qdo.partitions import Partition, Queue
from qdo.worker.dispatch.dispatcher import Dispatcher
from qdo.worker.executors.in_process import ThreadExecutor
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.middleware import Hooks
from qdo.worker.settings import WorkerSettings
from queuey.client import Message

PARTITION = Partition(Queue("host", "app", "q"), 1)
MESSAGES = [Message(f"{number:032x}", "0", 1, "x", None, {}) for number in range(16)]
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


class OwnedByMe:
    """A partition that this worker owns; ``held``: it has a note, so that its worker may have crashed."""

    client = None
    connected = True

    def __init__(self, *, held: bool) -> None:
        self._held = held

    def found(self, _partition: Partition) -> CommittedOffset:
        """What was recorded."""
        return CommittedOffset(held=self._held)

    def rejoin(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("why", ["revoked", "stalled"])
async def test_a_run_is_settled_once(why: str) -> None:
    """Its handler goes on while the coordination service is slow: no message that was not begun counts as handled."""
    handled: list[int] = []
    reached, go, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(message: Message, _context: object) -> None:
        number = int(message.id, 16)
        if number == BLOCKED:
            reached.set()
            go.wait()
        handled.append(number)
        if number == BLOCKED:
            ended.set()

    hooks = Hooks([], lambda _middleware: None)
    runner = ThreadExecutor(handle, None, 1, 60.0, hooks)
    await runner.open()
    progress: Any = SlowProgress()
    settings = WorkerSettings(stalled_after=0.2 if why == "stalled" else 300.0)
    owned: Any = OwnedByMe(held=why == "revoked")
    worker = Dispatcher(
        runner, owned, progress, settings, hooks, WorkerMetrics(None), changed=lambda: None, end=lambda *_: None
    )
    loop = asyncio.get_running_loop()
    worker.feed(PARTITION, MESSAGES)
    worker.dispatch()
    await asyncio.to_thread(reached.wait)
    progress.asked.clear()
    progress.answered.clear()
    closing = loop.create_task(worker.close({PARTITION}, loop.time() + 0.1)) if why == "revoked" else None
    async with asyncio.timeout(30):
        while not progress.asked.is_set():
            await asyncio.sleep(0.05)
            if why == "stalled":
                worker.glance()
        go.set()
        await asyncio.to_thread(ended.wait)
        await asyncio.sleep(0.1)
        progress.answered.set()
        if closing is not None:
            await closing
    assert max(progress.ends) <= max(handled)
