"""Room in a worker: what hanging handlers, lost partitions and slow notes leave of it, and what they count for."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qdo.consumer.owned_partition import OwnedPartition
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.partition_table import Ownership
from qdo.coordination import CommittedOffset, HandlingNote, OwnedOffset
from qdo.partitions import Partition, Queue
from qdo.settings import ConsumerSettings, WorkerSettings
from qdo.worker.dispatcher import Dispatcher
from qdo.worker.executors.in_process import TaskExecutor, ThreadExecutor
from qdo.worker.executors.processes import Crashed
from qdo.worker.failure import ExitCode, Failure, RunResult
from qdo.worker.handlers import Hooks
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.runs import Delivery, MessageRun
from qdo.worker.sources import Handling, end_if_handlers_hang
from queuey.client import Message
from tests.waiting import until_async

QUEUE = Queue("host", "app", "q")
PATIENCE = 30.0


def message_id(number: int) -> str:
    return f"{number:032x}"


class Owned(Ownership):
    """A consumer, with the records of its partitions.

    Attributes:
        offsets: The recorded offsets.
        ends: The numbers of the messages up to which partitions were handled, in order.
        noting: A note has been begun.
        answers: Notes wait for it.
        rejoined: The number of times that the group was left to join again.
    """

    client: Any = None
    connected = True

    def __init__(self, **offsets: CommittedOffset) -> None:
        super().__init__(PartitionListener())
        self.offsets = offsets
        self.ends: list[int] = []
        self.noting, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self.rejoined = 0
        self.settings = ConsumerSettings()
        self.coordinator = self.ownership = self
        self.rows: dict[Partition, OwnedPartition] = {}

    def attach(self, *_: object) -> None:
        """See the consumer."""

    def held_row(self, partition: Partition) -> OwnedPartition:
        """Returns the row of a partition; its offset is the argument ``p1`` for partition 1."""
        if partition not in self.rows:
            offset = self.offsets.get(f"p{partition.number}", CommittedOffset())
            self.rows[partition] = OwnedPartition(partition, OwnedOffset(partition, offset, 1))
        return self.rows[partition]

    def schedule_commit(self, row: OwnedPartition, offset: str, messages: int) -> None:
        self.ends.append(int(offset, 16))

    async def record_note(self, row: OwnedPartition, note: HandlingNote | None) -> None:
        self.noting.set()
        await self.answers.wait()

    def rejoin(self) -> None:
        self.rejoined += 1


class Room:
    """A dispatcher whose handlers may hang.

    Attributes:
        owned: Its consumer.
        gate: Handlers that hang wait for it.
        begun: The partitions of the messages that were begun.
        failed: The ids of failed messages.
        ended: The ends of the worker.
    """

    def __init__(self, owned: Owned | None = None, hangs: Callable[[int], bool] = lambda _: True) -> None:
        self.owned = owned or Owned()
        self.gate = threading.Event()
        self.begun: list[int] = []
        self.failed: list[str] = []
        self.ended: list[object] = []
        self._hangs = hangs

    async def open(
        self,
        handler: Any = None,  # noqa: ANN401 - any handler
        *,
        slots: int = 2,
        run_seconds: float = 0.5,
        stalled_after: float = 10.0,
    ) -> Room:
        handler, hooks = handler or self._handle, Hooks([Failed(self.failed)], lambda _: None)
        runner: ThreadExecutor | TaskExecutor
        if inspect.iscoroutinefunction(handler):
            runner = TaskExecutor(handler, None, slots, run_seconds, hooks, limit=None)
        else:
            runner = ThreadExecutor(handler, None, slots, run_seconds, hooks)
        await runner.open()
        settings = WorkerSettings(threads=2, stalled_after=stalled_after)
        self.handling = Handling(
            *(runner, settings, hooks, WorkerMetrics(None), asyncio.Event()),
            changed=lambda: None,
            end=lambda *end: self.ended.append(end),
            stop=lambda _: None,
            lag_shown=False,
        )
        self.middle = Dispatcher(self.owned, self.handling)  # type: ignore[arg-type] # a partial double
        return self

    def _handle(self, message: Message, _: object) -> None:
        self.begun.append(message.partition)
        if self._hangs(message.partition):
            self.gate.wait(PATIENCE)

    def feed(self, *numbers: int, count: int = 1) -> None:
        for number in numbers:
            sent = [Message(message_id(at), "0", number, "x", None, {}) for at in range(count)]
            self.middle.feed(Partition(QUEUE, number), sent)
        self.middle.dispatch()

    def rows(self, *numbers: int) -> list[OwnedPartition]:
        return [self.owned.held_row(Partition(QUEUE, number)) for number in numbers]

    def lose(self, *numbers: int) -> bool:
        return self.middle.discard(self.rows(*numbers))

    async def finish(self, number: int, seconds: float = PATIENCE) -> bool:
        return await self.middle.finish(self.rows(number), asyncio.get_running_loop().time() + seconds)

    def age(self, *seconds: float) -> None:
        """Makes all runs in hand older by some seconds, and checks their progress each time."""
        for step in seconds:
            for work in (*self.middle._works.values(), *self.middle._leaked):
                for run in work.runs:
                    run.since -= step
            self.middle.record_progress()

    def waiting(self, number: int) -> int:
        """Returns how many messages of a partition are not done."""
        return self.middle._works[Partition(QUEUE, number)].partition_queue.count

    @property
    def held(self) -> int:
        return self.middle._held

    @property
    def slots(self) -> int:
        return self.handling.runner.slots

    async def drain(self) -> None:
        """Lets hanging handlers end, and waits for them."""
        self.gate.set()
        await self.middle.wait_until_ended(asyncio.get_running_loop().time() + PATIENCE)


class Failed:
    """Records failed messages."""

    def __init__(self, failures: list[str]) -> None:
        self._failures = failures

    def failed(self, message: Message, *_: object) -> None:
        self._failures.append(message.id)


async def test_partitions_that_are_lost_keep_no_place_in_the_line() -> None:
    """Lost partitions keep no place in the line, where a worker without a connection would wait for them forever."""
    room = await Room().open()
    room.feed(1, 2, 3, 4, count=5)
    room.owned.connected = False
    assert room.lose(1, 2, 3, 4)
    await room.drain()
    assert room.middle.capacity > 0


async def test_a_lost_partition_is_not_read_before_its_handler_has_ended() -> None:
    """A partition that was lost in the middle of a message is read again once that has ended, and not before."""
    room, partition = await Room().open(), Partition(QUEUE, 1)
    room.feed(1)
    await until_async(lambda: room.begun)
    room.lose(1)
    assert partition in room.middle.busy
    await room.drain()
    await until_async(lambda: partition not in room.middle.busy)


class Dying:
    """Handles everything, and then dies."""

    slots = 1

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        ended: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        ended.set_result(RunResult(len(run.messages), Failure.of(Crashed("was ended by SIGKILL"))))
        return ended


async def test_a_process_that_dies_when_everything_was_handled_ends_nothing() -> None:
    """If a process dies after it handled a run, its messages count, and the worker goes on with another process."""
    room = await Room().open()
    room.middle._runner = Dying()  # type: ignore[assignment] # only its start is used
    room.feed(1, count=5)
    await asyncio.sleep(0)
    assert (room.held, room.ended) == (0, [])


async def test_a_handler_that_does_not_come_to_an_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A message in hand for over a minute is logged once, with its age."""
    room = await Room().open(stalled_after=300.0)
    room.feed(1)
    room.age(50)
    assert room.handling.metrics.oldest >= 50
    assert "in hand" not in caplog.text
    room.age(50, 0)
    assert caplog.text.count(f"message {message_id(0)} of {Partition(QUEUE, 1)} for 100 s") == 1
    await room.drain()


async def test_as_many_handlers_that_hang_as_there_are_threads_leave_no_room() -> None:
    """When as many handlers hang as there are threads nothing else begins, and the worker is told to end."""
    room = await Room().open()
    room.feed(1, 2)
    await until_async(lambda: len(room.begun) == 2)
    room.lose(1, 2)
    room.age(11, 20)
    assert (room.slots, room.middle.capacity) == (0, 0)
    room.feed(3)
    assert room.waiting(3) == 1
    codes: list[int] = []
    end_if_handlers_hang(room.handling._replace(stop=codes.append))
    assert codes == [ExitCode.FAILED]
    room.lose(3)
    await room.drain()
    assert (room.slots, sorted(room.begun)) == (2, [1, 2])


async def test_what_waited_for_a_last_attempt_goes_on_when_its_partition_is_gone() -> None:
    """Messages that wait for another partition's last attempt go on when it is gone, even if the attempt hangs."""
    owned = Owned(p1=CommittedOffset(held=True, note=HandlingNote(message_id(0), 4)))
    room = await Room(owned, hangs=lambda number: number == 1).open()
    room.feed(1, 2)
    await until_async(lambda: 1 in room.begun)
    assert room.waiting(2) == 1
    room.lose(1)
    await until_async(lambda: not room.waiting(2))
    await room.drain()


async def test_what_waits_for_its_note_is_not_taken_for_a_handler_that_hangs() -> None:
    """A message that waits for its note is not taken for a hanging handler: no attempt counts, and nothing fails."""
    owned = Owned(p1=CommittedOffset(held=True))
    owned.answers.clear()
    room = await Room(owned, hangs=lambda _: False).open()
    room.feed(1)
    room.age(20, 20)
    owned.answers.set()
    await until_async(lambda: not room.waiting(1))
    assert (room.begun, owned.rejoined) == ([1], 0)


async def test_a_task_that_will_not_be_cancelled_costs_only_its_own_message() -> None:
    """A task that ignores its cancellation fails only its own message; the one behind it is handled in its turn."""
    ended, begun = asyncio.Event(), asyncio.Event()

    async def handle(message: Message, _: object) -> None:
        begun.set()
        if message.id == message_id(0):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await ended.wait()

    room = await Room().open(handle, slots=1, run_seconds=0.0)
    room.feed(1, count=2)
    await begun.wait()
    room.age(11)
    await asyncio.sleep(0)
    ended.set()
    await until_async(lambda: not room.waiting(1))
    assert room.failed == []


async def test_a_task_that_never_ends_takes_no_room() -> None:
    """A task that does not end after its cancellation gives its partition and its room away."""
    ended, begun = asyncio.Event(), asyncio.Event()

    async def handle(_: Message, __: object) -> None:
        begun.set()
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()

    room = await Room().open(handle)
    room.feed(1)
    await begun.wait()
    room.age(11)
    await asyncio.sleep(0)
    room.age(20)
    await until_async(lambda: room.owned.rejoined)
    assert room.middle.capacity > 0
    ended.set()
    await room.drain()


async def test_a_partition_that_went_meanwhile_ends_no_other_session() -> None:
    """If the session is lost while a hanging message is noted, the next session is not ended on its account."""
    room = await Room().open()
    room.feed(1)
    room.owned.answers.clear()
    room.age(11)
    await asyncio.wait_for(room.owned.noting.wait(), PATIENCE)
    room.lose(1)
    room.owned.answers.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert room.owned.rejoined == 0
    await room.drain()


@pytest.mark.parametrize("why", ["revoked", "stalled"])
async def test_a_run_is_settled_once(why: str) -> None:
    """While the handler of a settled run goes on during a slow note, no message counts as handled before it began."""
    handled: list[int] = []
    reached, go, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(message: Message, _context: object) -> None:
        number = int(message.id, 16)
        if number == 3:
            reached.set()
            assert go.wait(PATIENCE)
        handled.append(number)
        if number == 3:
            ended.set()

    room = await Room(Owned(p1=CommittedOffset(held=why == "revoked"))).open(handle, slots=1, run_seconds=60.0)
    room.feed(1, count=16)
    await asyncio.to_thread(reached.wait)
    room.owned.noting.clear()
    room.owned.answers.clear()
    closing = asyncio.create_task(room.finish(1, 0.1)) if why == "revoked" else None
    if why == "stalled":
        room.age(0, 11)  # first the progress since the begin
    await asyncio.wait_for(room.owned.noting.wait(), PATIENCE)
    go.set()
    await asyncio.to_thread(ended.wait)
    await asyncio.sleep(0.1)
    room.owned.answers.set()
    if closing is not None:
        await closing
    assert max(room.owned.ends) <= max(handled)
