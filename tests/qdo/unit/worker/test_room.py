"""Room in a worker: messages dropped at a hand-over free it again."""

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

QUEUE = Queue("host", "app", "q")


def messages(count: int, partition: int) -> list[Message]:
    return [Message(f"{number:032x}", "0", partition, "x", None, {}) for number in range(count)]


class Owned(Ownership):
    """A consumer, with the records of its partitions.

    Attributes:
        offsets: The recorded offsets.
        noted: The recorded notes, in order.
        rejoined: The number of times that the group was left to join again.
    """

    client: Any = None
    connected = True

    def __init__(self, **offsets: CommittedOffset) -> None:
        super().__init__(PartitionListener())
        self.offsets = offsets
        self.noted: list[tuple[int, HandlingNote | None]] = []
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

    async def record_note(self, row: OwnedPartition, note: HandlingNote | None) -> None:
        self.noted.append((row.partition.number, note))

    def rejoin(self) -> None:
        self.rejoined += 1


def rows_of(middle: Dispatcher, *partitions: Partition) -> list[OwnedPartition]:
    rows = [middle._consumer.ownership.held_row(each) for each in partitions]
    return [row for row in rows if row is not None]


async def make_dispatcher(
    handler: Any,  # noqa: ANN401 - any handler
    ended: list[object] | None = None,
    owned: Owned | None = None,
    *,
    slots: int = 2,
    run_seconds: float = 0.5,
    hooks: Hooks | None = None,
    **options: Any,  # noqa: ANN401 - any settings
) -> Dispatcher:
    settings, hooks = WorkerSettings(threads=2, **options), hooks or Hooks([], lambda _: None)
    runner: ThreadExecutor | TaskExecutor
    if inspect.iscoroutinefunction(handler):
        runner = TaskExecutor(handler, None, slots, run_seconds, hooks, limit=None)
    else:
        runner = ThreadExecutor(handler, None, slots, run_seconds, hooks)
    await runner.open()
    handling = Handling(
        runner,
        settings,
        hooks,
        WorkerMetrics(None),
        asyncio.Event(),
        changed=lambda: None,
        end=lambda *end: None if ended is None else ended.append(end),
        stop=lambda _: None,
        lag_shown=False,
    )
    return Dispatcher(owned or Owned(), handling)  # type: ignore[arg-type] # a partial double


async def test_partitions_that_leave_make_room() -> None:
    """Nothing of partitions that are gone counts as held, however many of their messages waited."""
    gate = threading.Event()
    middle = await make_dispatcher(lambda *_: gate.wait(30))
    for number in range(1, 4):
        partition = Partition(QUEUE, number)
        gate.clear()
        middle.feed(partition, messages(500, number))
        middle.dispatch()
        closing = asyncio.create_task(middle.finish(rows_of(middle, partition), asyncio.get_running_loop().time() + 30))
        await asyncio.sleep(0)
        gate.set()
        assert await closing
    assert middle._held == 0


async def test_partitions_that_are_lost_keep_no_place_in_the_line() -> None:
    """Lost partitions keep no place in the line, where a worker without a connection would wait for them forever."""
    gate, owned, loop = threading.Event(), Owned(), asyncio.get_running_loop()
    middle = await make_dispatcher(lambda *_: gate.wait(30), owned=owned)
    partitions = [Partition(QUEUE, number) for number in range(1, 5)]
    for partition in partitions:
        middle.feed(partition, messages(5, partition.number))
    middle.dispatch()
    owned.connected = False
    assert middle.discard(rows_of(middle, *partitions))
    gate.set()
    await middle.wait_until_ended(loop.time() + 30)
    assert middle.capacity > 0


class Dying:
    """Handles everything, and then dies."""

    slots = 1

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        ended: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        ended.set_result(RunResult(len(run.messages), Failure.of(Crashed("was ended by SIGKILL"))))
        return ended


async def test_a_process_that_dies_when_everything_was_handled_ends_nothing() -> None:
    """If a process dies after it handled a run, its messages count, and the worker goes on with another process."""
    ended: list[object] = []
    middle = await make_dispatcher(lambda *_: None, ended)
    middle._runner = Dying()  # type: ignore[assignment] # only its start is used
    middle.feed(Partition(QUEUE, 1), messages(5, 1))
    middle.dispatch()
    await asyncio.sleep(0)
    assert middle._held == 0
    assert ended == []


async def test_a_handler_that_does_not_come_to_an_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A message in hand for over a minute is logged once, with its age; a handler that makes progress is not."""
    gate = threading.Event()
    middle = await make_dispatcher(lambda *_: gate.wait(30))
    middle.feed(Partition(QUEUE, 1), messages(3, 1))
    middle.dispatch()
    (work,) = middle._works.values()
    (run,) = work.runs
    run.since -= 50
    middle.record_progress()
    assert middle._metrics.oldest >= 50
    assert "in hand" not in caplog.text
    run.since -= 50
    middle.record_progress()
    middle.record_progress()
    assert caplog.text.count(f"message {0:032x} of {work.partition} for 100 s") == 1
    run.handled = 1
    middle.record_progress()
    assert middle._metrics.oldest < 50
    gate.set()
    assert await middle.finish(rows_of(middle, Partition(QUEUE, 1)), asyncio.get_running_loop().time() + 30)


async def test_the_smallest_window_lets_one_after_another_through() -> None:
    """With room for one message by key, the partition is ready for the next when that one is done."""
    done = threading.Event()
    middle = await make_dispatcher(lambda *_: done.set(), by="header:k", window=1)
    partition = Partition(QUEUE, 1)
    middle.feed(partition, messages(1, 1))
    middle.dispatch()
    await _until(lambda: done.is_set() and partition not in middle.busy)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


def age_runs(middle: Dispatcher, seconds: float) -> None:
    """Makes all runs in hand older by some seconds, and checks their progress."""
    for work in (*middle._works.values(), *middle._leaked):
        for run in work.runs:
            run.since -= seconds
    middle.record_progress()


async def test_a_handler_that_hangs_takes_no_room_when_its_partition_is_gone() -> None:
    """A hanging handler of a partition that is gone takes no room; other partitions run in other threads."""
    gate, begun = threading.Event(), []

    def handle(message: Message, _: object) -> None:
        begun.append(message.partition)
        if message.partition < 3:
            gate.wait(30)

    middle = await make_dispatcher(handle, slots=3, stalled_after=10.0)
    gone = [Partition(QUEUE, 1), Partition(QUEUE, 2)]
    for partition in gone:
        middle.feed(partition, messages(1, partition.number))
    middle.dispatch()
    await _until(lambda: len(begun) == 2)
    middle.discard(rows_of(middle, *gone))
    age_runs(middle, 11)
    age_runs(middle, 20)
    assert middle._runner.slots == 5
    middle.feed(Partition(QUEUE, 3), messages(1, 3))
    middle.dispatch()
    await _until(lambda: 3 in begun)
    gate.set()
    await middle.wait_until_ended(asyncio.get_running_loop().time() + 30)
    assert middle._runner.slots == 3


async def test_as_many_handlers_that_hang_as_there_are_threads_leave_no_room() -> None:
    """When as many handlers hang as there are threads nothing else begins, and the worker is told to end."""
    gate, begun = threading.Event(), []

    def handle(message: Message, _: object) -> None:
        begun.append(message.partition)
        gate.wait(30)

    middle = await make_dispatcher(handle, stalled_after=10.0)
    for number in (1, 2):
        middle.feed(Partition(QUEUE, number), messages(1, number))
    middle.dispatch()
    await _until(lambda: len(begun) == 2)
    middle.discard(rows_of(middle, Partition(QUEUE, 1), Partition(QUEUE, 2)))
    age_runs(middle, 11)
    age_runs(middle, 20)
    assert middle._runner.slots == 0
    assert middle.capacity == 0
    middle.feed(Partition(QUEUE, 3), messages(1, 3))
    middle.dispatch()
    assert middle._works[Partition(QUEUE, 3)].partition_queue.count == 1
    codes: list[int] = []
    end_if_handlers_hang(middle._handling._replace(stop=codes.append))
    assert codes == [ExitCode.FAILED]
    middle.discard(rows_of(middle, Partition(QUEUE, 3)))
    gate.set()
    await middle.wait_until_ended(asyncio.get_running_loop().time() + 30)
    assert (middle._runner.slots, sorted(begun)) == (2, [1, 2])


async def test_what_waited_for_a_last_attempt_goes_on_when_its_partition_is_gone() -> None:
    """Messages that wait for another partition's last attempt go on when it is gone, even if the attempt hangs."""
    gate, begun = threading.Event(), threading.Event()

    def handle(message: Message, _: object) -> None:
        if message.partition == 1:
            begun.set()
            gate.wait(30)

    note = HandlingNote(messages(1, 1)[0].id, 4)
    owned = Owned(p1=CommittedOffset(held=True, note=note))
    middle = await make_dispatcher(handle, owned=owned)
    for number in (1, 2):
        middle.feed(Partition(QUEUE, number), messages(1, number))
    middle.dispatch()
    await _until(begun.is_set)
    assert middle._works[Partition(QUEUE, 2)].partition_queue.count == 1
    middle.discard(rows_of(middle, Partition(QUEUE, 1)))
    work = middle._works[Partition(QUEUE, 2)]
    await _until(lambda: not work.partition_queue.count)
    gate.set()
    await middle.wait_until_ended(asyncio.get_running_loop().time() + 30)


class UnansweredNotes(Owned):
    """Records no note until it is told to."""

    def __init__(self, **offsets: CommittedOffset) -> None:
        super().__init__(**offsets)
        self.answers = asyncio.Event()

    async def record_note(self, row: OwnedPartition, note: HandlingNote | None) -> None:
        await self.answers.wait()
        await super().record_note(row, note)


@pytest.mark.parametrize("kind", ["threads", "tasks"])
async def test_what_waits_for_its_note_is_not_taken_for_a_handler_that_hangs(kind: str) -> None:
    """A message that waits for its note is not taken for a hanging handler: no attempt counts, and nothing fails."""
    owned = UnansweredNotes(p1=CommittedOffset(held=True))
    begun = []

    async def later(message: Message, _: object) -> None:
        begun.append(message.id)

    def at_once(message: Message, _: object) -> None:
        begun.append(message.id)

    middle = await make_dispatcher(later if kind == "tasks" else at_once, owned=owned, stalled_after=10.0)
    middle.feed(Partition(QUEUE, 1), messages(1, 1))
    middle.dispatch()
    age_runs(middle, 20)
    age_runs(middle, 20)
    assert owned.rejoined == 0
    owned.answers.set()
    (work,) = middle._works.values()
    await _until(lambda: not work.partition_queue.count)
    assert len(begun) == 1
    assert owned.rejoined == 0


async def test_a_task_that_will_not_be_cancelled_costs_only_its_own_message() -> None:
    """A task that ignores its cancellation fails only its own message; the one behind it is handled in its turn."""
    ended, begun = asyncio.Event(), asyncio.Event()
    failed: list[object] = []

    async def handle(message: Message, _: object) -> None:
        begun.set()
        if message.id == first.id:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await ended.wait()

    hooks = Hooks([Failed(failed)], lambda _: None)
    middle = await make_dispatcher(handle, slots=1, run_seconds=0.0, hooks=hooks, stalled_after=10.0)
    sent = messages(2, 1)
    first = sent[0]
    middle.feed(Partition(QUEUE, 1), sent)
    middle.dispatch()
    await begun.wait()
    age_runs(middle, 11)
    await asyncio.sleep(0)
    ended.set()
    (work,) = middle._works.values()
    await _until(lambda: not work.partition_queue.count)
    assert failed == []


async def test_a_task_that_never_ends_takes_no_room() -> None:
    """A task that does not end after its cancellation gives its partition and its room away."""
    ended, begun = asyncio.Event(), asyncio.Event()

    async def handle(_: Message, __: object) -> None:
        begun.set()
        while not ended.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ended.wait()

    owned = Owned()
    middle = await make_dispatcher(handle, owned=owned, slots=2, stalled_after=10.0)
    middle.feed(Partition(QUEUE, 1), messages(1, 1))
    middle.dispatch()
    await begun.wait()
    age_runs(middle, 11)
    await asyncio.sleep(0)
    age_runs(middle, 20)
    await _until(lambda: bool(owned.rejoined))
    assert middle.capacity > 0
    ended.set()
    await middle.wait_until_ended(asyncio.get_running_loop().time() + 30)


async def test_a_partition_that_went_meanwhile_ends_no_other_session() -> None:
    """If the session is lost while a hanging message is noted, the next session is not ended on its account."""
    gate, owned = threading.Event(), UnansweredNotes()
    middle = await make_dispatcher(lambda *_: gate.wait(30), owned=owned, stalled_after=10.0)
    partition = Partition(QUEUE, 1)
    middle.feed(partition, messages(1, 1))
    middle.dispatch()
    age_runs(middle, 11)
    (work,) = middle._works.values()
    giving = work.handing_over
    assert giving is not None
    await asyncio.sleep(0)
    middle.discard(rows_of(middle, partition))
    owned.answers.set()
    await giving
    assert owned.rejoined == 0
    gate.set()
    await middle.wait_until_ended(asyncio.get_running_loop().time() + 30)


async def test_a_partition_that_is_handed_over_takes_nothing_until_it_has_gone() -> None:
    """A partition that is handed over takes no messages, and does not wait for the handler when it comes back."""
    gates, begun = [threading.Event(), threading.Event()], []

    def handle(message: Message, _: object) -> None:
        begun.append(message.partition)
        gates[len(begun) - 1].wait(30)

    middle, partition = await make_dispatcher(handle, stalled_after=10.0), Partition(QUEUE, 1)
    for gate, ends_before in zip(gates, (True, False), strict=True):
        middle.feed(partition, messages(1, 1))
        middle.dispatch()
        (work,) = middle._works.values()
        await _until(lambda: len(begun) == gates.index(gate) + 1)  # noqa: B023 - called in this iteration
        age_runs(middle, 11)
        assert work.handing_over is not None
        await work.handing_over
        if ends_before:
            gate.set()
            await work.wait_until_quiet()
        assert partition in middle.busy
        middle.discard(rows_of(middle, partition))
        assert partition not in middle.busy
        assert work.is_quiet == ends_before
    gates.append(gates[0])
    middle.feed(partition, messages(1, 1))
    middle.dispatch()
    await _until(lambda: len(begun) == 3)
    gates[1].set()
    await middle.wait_until_ended(asyncio.get_running_loop().time() + 30)
    assert not middle._leaked


class Failed:
    """Records failed messages."""

    def __init__(self, failures: list[object]) -> None:
        self._failures = failures

    def failed(self, message: Message, *_: object) -> None:
        self._failures.append(message.id)
