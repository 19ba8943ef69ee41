"""What a worker holds: what is dropped at a hand-over makes room again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from qdo.coordination import Note, Offset
from qdo.partitions import Partition, Queue
from qdo.worker.failure import Delivery, Failure, Ran
from qdo.worker.handling import Handling
from qdo.worker.hooks import Hooks
from qdo.worker.lanes import Run
from qdo.worker.loops import Control
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.processes import Crashed
from qdo.worker.settings import WorkerSettings
from qdo.worker.threads import Threads
from queuey.client import Message

QUEUE = Queue("host", "app", "q")


class Unrecorded:
    """Takes note of nothing."""

    def note(self, *_: object) -> None:
        """Is told how far a partition is."""


def messages(count: int, partition: int) -> list[Message]:
    """Messages of one partition."""
    return [Message(f"{number:032x}", "0", partition, "x", None, {}) for number in range(count)]


class Owned:
    """What is recorded of partitions.

    Attributes:
        offsets: As they were found.
        noted: What was noted, in order.
        connected: They are surely owned.
        rejoined: How often the group was left to join again.
    """

    client: Any = None

    def __init__(self, **offsets: Offset) -> None:
        self.offsets = offsets
        self.noted: list[tuple[int, Note | None]] = []
        self.connected = True
        self.rejoined = 0

    def found(self, partition: Partition) -> Offset:
        """See the protocol; ``p1`` is partition 1."""
        return self.offsets.get(f"p{partition.number}", Offset())

    async def note(self, partition: Partition, note: Note | None) -> None:
        """See the protocol."""
        self.noted.append((partition.number, note))

    def rejoin(self) -> None:
        """See the protocol."""
        self.rejoined += 1


async def handling(
    handler: Any,  # noqa: ANN401 - any handler
    ended: list[object] | None = None,
    owned: Owned | None = None,
    **options: Any,  # noqa: ANN401 - settings of any type
) -> Handling:
    """A worker's middle, with real threads."""
    settings, hooks = WorkerSettings(threads=2, **options), Hooks([], lambda _: None)
    runner = Threads(handler, None, 2, 0.5, hooks)
    await runner.open()
    return Handling(
        runner,
        owned or Owned(),
        Unrecorded(),  # type: ignore[arg-type]
        settings,
        hooks,
        WorkerMetrics(None),
        changed=lambda: None,
        end=lambda *end: None if ended is None else ended.append(end),
    )


async def test_partitions_that_leave_make_room() -> None:
    """However much of them was waiting, nothing counts as held when they are gone."""
    gate = threading.Event()
    middle = await handling(lambda *_: gate.wait(30))
    for number in range(1, 4):
        partition = Partition(QUEUE, number)
        gate.clear()
        middle.feed(partition, messages(500, number))
        middle.dispatch()
        closing = asyncio.create_task(middle.close([partition], asyncio.get_running_loop().time() + 30))
        await asyncio.sleep(0)
        gate.set()
        assert await closing
    assert middle._held == 0


class Dying:
    """Handles everything, and dies then."""

    slots = 1

    def start(self, run: Run, place: Delivery, control: Control) -> asyncio.Future[Ran]:
        """See the protocol."""
        ended: asyncio.Future[Ran] = asyncio.get_running_loop().create_future()
        ended.set_result(Ran(len(run.messages), Failure.of(Crashed("was ended by SIGKILL"))))
        return ended


async def test_a_process_that_dies_when_everything_was_handled_ends_nothing() -> None:
    """Its messages count, and the worker goes on in another one."""
    ended: list[object] = []
    middle = await handling(lambda *_: None, ended)
    middle._runner = Dying()  # type: ignore[assignment] # nothing else of it is used
    middle.feed(Partition(QUEUE, 1), messages(5, 1))
    middle.dispatch()
    await asyncio.sleep(0)
    assert middle._held == 0
    assert ended == []


async def test_a_handler_that_does_not_come_to_an_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """After a minute, once, and with the age of what is in hand; one that goes on from message to message is not."""
    gate = threading.Event()
    middle = await handling(lambda *_: gate.wait(30))
    middle.feed(Partition(QUEUE, 1), messages(3, 1))
    middle.dispatch()
    (stay,) = middle._stays.values()
    (control,) = stay.runs
    control.since -= 50
    middle.glance()
    assert middle._metrics.oldest >= 50
    assert "in hand" not in caplog.text
    control.since -= 50
    middle.glance()
    middle.glance()
    assert caplog.text.count(f"message {0:032x} of {stay.partition} in hand for 100 s") == 1
    control.handled = 1
    middle.glance()
    assert middle._metrics.oldest < 50
    gate.set()
    assert await middle.close(None, asyncio.get_running_loop().time() + 30)


async def test_the_smallest_window_lets_one_after_another_through() -> None:
    """With room for one message by key, the partition is ready for the next when that is done."""
    done = threading.Event()
    middle = await handling(lambda *_: done.set(), by="header:k", window=1)
    partition = Partition(QUEUE, 1)
    middle.feed(partition, messages(1, 1))
    middle.dispatch()
    for _ in range(1000):
        if partition not in middle.busy and done.is_set():
            break
        await asyncio.sleep(0.01)
    assert partition not in middle.busy
