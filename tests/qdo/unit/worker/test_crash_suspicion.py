"""Messages that crash their worker: the culprit is found and given up, and no other message."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from msgspec import structs

from qdo.consumer.owned_partition import OwnedPartition
from qdo.coordination import CommittedOffset, HandlingNote
from qdo.partitions import Partition
from qdo.settings import Retry, WorkerSettings
from qdo.worker.crash_suspicion import CrashSuspicion, HungAttempts
from qdo.worker.dispatcher import Dispatcher
from qdo.worker.failure import Failure, RunResult
from qdo.worker.handlers import Hooks
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.runs import Delivery, MessageRun
from qdo.worker.sources import Handling
from queuey.client import Message
from tests.qdo.unit.worker.test_room import QUEUE, Owned, messages, rows_of

FIRST, SECOND, THIRD, FOURTH = messages(5, 1)[1:]
BEFORE = messages(1, 1)[0].id


def suspicion_of(note: HandlingNote | None, attempts: int = 5, *, held: bool = True) -> CrashSuspicion:
    """Returns the suspicion of a partition that was handled up to the first message."""
    return CrashSuspicion(CommittedOffset(BEFORE, held=held, note=note), FIRST, 2, attempts)


def test_nothing_is_noted_after_a_clean_hand_over() -> None:
    """After a clean hand-over nothing is suspected, so that the normal case costs nothing."""
    assert CrashSuspicion(CommittedOffset(), FIRST, 10, 5).is_over
    assert suspicion_of(None, held=False).is_over


def test_a_hung_attempt_counts_until_its_message_is_done() -> None:
    """A hung attempt of this worker stands in for a note that is missing or counts less, but hides none of the next."""
    partition, hung = Partition(QUEUE, 1), HandlingNote(FIRST.id, 2, last=True)
    fewer, later = HandlingNote(FIRST.id, 1), HandlingNote(SECOND.id, 2, last=True)
    for committed, note in (
        (CommittedOffset(), hung),
        (CommittedOffset(BEFORE, note=fewer), hung),
        (CommittedOffset(BEFORE, note=HandlingNote(FIRST.id, 3)), HandlingNote(FIRST.id, 3)),
        (CommittedOffset(FIRST.id), None),
        (CommittedOffset(FIRST.id, note=later), later),
    ):
        attempts = HungAttempts()
        attempts.add(partition, hung)
        assert attempts.take_over(partition, committed).note == note
        assert attempts.notes == {}


def test_runs_are_noted_for_a_while_after_a_loss() -> None:
    """After an owner that did not release, as many messages as may have been in hand are watched."""
    suspicion = suspicion_of(None)
    assert not suspicion.is_suspected(FIRST)
    assert suspicion.begin_run([FIRST, SECOND]) == HandlingNote(SECOND.id, 2)
    suspicion.record_handled(1)
    assert suspicion.make_final_note() == HandlingNote(SECOND.id, 0)
    suspicion.record_handled(1)
    assert suspicion.is_over
    assert suspicion.make_final_note() is None


def test_a_run_that_was_in_hand_at_a_loss_is_taken_apart() -> None:
    """Messages of a run that was in hand are noted one by one, later ones by the run; none is charged an attempt."""
    suspicion = suspicion_of(HandlingNote(SECOND.id, 2))
    assert [suspicion.is_suspected(each) for each in (FIRST, SECOND, THIRD)] == [True, True, False]
    assert [suspicion.attempt_number(each) for each in (FIRST, SECOND, THIRD)] == [1, 1, 1]
    assert suspicion.begin_run([FIRST]) == HandlingNote(FIRST.id, 3)
    assert suspicion.begin_run([THIRD, FOURTH]) == HandlingNote(FOURTH.id, 2)


def test_a_message_that_was_in_hand_by_itself_is_charged() -> None:
    """Each loss is an attempt at a message that was noted alone, also if the partition was handed over in between."""
    suspicion = suspicion_of(HandlingNote(FIRST.id, 3), held=False)
    assert [suspicion.attempt_number(each) for each in (FIRST, SECOND)] == [4, 1]
    assert suspicion.begin_run([FIRST]) == HandlingNote(FIRST.id, 4)
    assert not suspicion.must_run_alone(FIRST)


NOTES = [None, HandlingNote(FIRST.id, 2), HandlingNote(SECOND.id, 2), HandlingNote(FIRST.id, 4)]


@pytest.mark.parametrize("found", NOTES)
def test_being_handed_over_costs_no_attempt(found: HandlingNote | None) -> None:
    """Hand-overs cost no attempt, however many; the partition stays watched, and unstarted messages keep their note."""
    suspicion = suspicion_of(found)
    assert suspicion.make_final_note() == found
    suspicion.begin_run([FIRST])
    again = suspicion_of(suspicion.make_final_note(), held=False)
    assert not again.is_over
    assert (again.attempt_number(FIRST), again.must_run_alone(FIRST)) == (
        suspicion.attempt_number(FIRST),
        suspicion.must_run_alone(FIRST),
    )
    assert again.begin_run([FIRST]) == suspicion.begin_run([FIRST])


class CrashingRunner:
    """Runs messages, each for a moment, until one of them ends the worker.

    Attributes:
        died: The worker has ended.
        killed: The message that ended it.
        slow: Handlers no longer end.
        tasks: All runs.
    """

    def __init__(self, chance: random.Random, slots: int, culprits: set[tuple[int, str]]) -> None:
        self.slots = slots
        self.died = asyncio.Event()
        self.killed: tuple[int, str] | None = None
        self.slow = False
        self.tasks: list[asyncio.Task[RunResult]] = []
        self._chance = chance
        self._culprits = culprits

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        self.tasks.append(asyncio.get_running_loop().create_task(self._run(run)))
        return self.tasks[-1]

    async def _run(self, run: MessageRun) -> RunResult:
        """Handles messages until it is stopped; never ends once a culprit ends the worker, or while ``slow``."""
        for message in run.pending:
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)
            if self.slow or self.died.is_set():
                await asyncio.Event().wait()
            if (message.partition, message.id) in self._culprits:
                self.killed = (message.partition, message.id)
                self.died.set()
                await asyncio.Event().wait()
            run.handled += 1
        return RunResult(run.handled)


class Records(Owned):
    """The records of a group; they outlive the workers.

    Attributes:
        records: The offsets.
        buried: The number of times that each message was given up.
        life: The worker whose notes count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[Partition, CommittedOffset] = {}
        self.buried: Counter[tuple[int, str]] = Counter()
        self.life = 0
        self._added: dict[Partition, str] = {}

    def begin(self) -> None:
        """Begins with a new worker, which has read the recorded offsets."""
        self.offsets = {f"p{each.number}": offset for each, offset in self.records.items()}
        self.rows = {}
        self._added = {}

    def schedule_commit(self, row: OwnedPartition, offset: str, messages: int) -> None:
        self._added[row.partition] = offset

    async def record_note(self, row: OwnedPartition, note: HandlingNote | None) -> None:
        """Records a note, and the offset that was added, unless the worker has died meanwhile."""
        life, end = self.life, self._added.get(row.partition)
        await asyncio.sleep(0)
        if life == self.life:
            self.records[row.partition] = CommittedOffset(end or self.records[row.partition].id, held=True, note=note)

    async def commit_added(self) -> None:
        life, offsets = self.life, self._added.copy()
        await asyncio.sleep(0)
        if life == self.life:
            self.records |= {each: structs.replace(self.records[each], id=end) for each, end in offsets.items()}

    def release(self) -> None:
        self.records = {each: structs.replace(offset, held=False) for each, offset in self.records.items()}

    def dead(self, message: Message, _: Delivery, __: Failure) -> None:
        self.buried[message.partition, message.id] += 1


async def live(
    records: Records, chance: random.Random, culprits: set[tuple[int, str]], odds: tuple[float, float], attempts: int
) -> tuple[tuple[int, str] | None, bool]:
    """Runs one worker until it dies, hands everything over, or all messages are done.

    Args:
        records: The records when it begins.
        chance: Makes the random choices.
        culprits: The messages that end the worker.
        odds: The probabilities of a commit and of a full hand-over in each round of the loop. A real worker
            dies before it commits more often than not.
        attempts: Max attempts at each message.

    Returns:
        The message that ended the worker, and whether all messages are done.
    """
    commits, hands_over = odds
    records.begin()
    settings = WorkerSettings(retry=Retry(attempts=attempts), on_failure="skip", commit_messages=20)
    runner = CrashingRunner(chance, 3, culprits)
    handling = Handling(
        runner,  # type: ignore[arg-type] # likewise
        settings,
        Hooks([records], lambda _: None),
        WorkerMetrics(None),
        asyncio.Event(),
        changed=lambda: None,
        end=lambda *_: None,
        stop=lambda _: None,
        lag_shown=False,
    )
    middle = Dispatcher(records, handling)  # type: ignore[arg-type] # likewise
    queues: dict[Partition, Any] = {}
    for partition, offset in records.records.items():
        queues[partition] = [m for m in messages(12, partition.number)[1:] if offset.id is None or m.id > offset.id]
    for partition in records.records:
        records.records[partition] = CommittedOffset(
            records.records[partition].id, held=True, note=records.records[partition].note
        )
    for partition, waiting in queues.items():
        if waiting:
            middle.feed(partition, waiting)
    middle.dispatch()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 60
    while not runner.died.is_set() and middle._held and chance.random() >= hands_over and loop.time() < deadline:
        await asyncio.sleep(0)
        if chance.random() < commits:
            await records.commit_added()
    done = not runner.died.is_set() and not middle._held
    if not runner.died.is_set():
        runner.slow = True
        await middle.finish(rows_of(middle, *queues), loop.time())
        await records.commit_added()
        records.release()
    records.life += 1
    middle.suspended()
    middle.discard(rows_of(middle, *queues))
    for task in runner.tasks:
        task.cancel()
    await asyncio.gather(*runner.tasks, return_exceptions=True)
    return runner.killed, done


@pytest.mark.parametrize("attempts", [1, 3, 5])
@pytest.mark.parametrize("seed", range(25))
async def test_the_culprits_are_given_up_and_nobody_else(seed: int, attempts: int) -> None:
    """Each culprit ends a few workers, and no innocent is ever given up, however often partitions are handed over."""
    chance = random.Random(seed)
    count = chance.randrange(1, 6)
    everything = [(number, message.id) for number in range(1, count + 1) for message in messages(12, number)[1:]]
    culprits = set(chance.sample(everything, chance.choice([1, 1, 2, 3])))
    odds = (chance.choice([0.0, 0.05, 0.7]), chance.choice([0.0, 0.0, 0.02, 0.1]))
    records = Records()
    records.records = {Partition(QUEUE, number): CommittedOffset() for number in range(1, count + 1)}
    killed: Counter[tuple[int, str] | None] = Counter()
    for _ in range(400):
        killer, done = await live(records, chance, culprits, odds, attempts)
        if done:
            break
        killed[killer] += 1
    else:
        pytest.fail(f"they go on dying over {culprits - set(records.buried)}")
    assert set(records.buried) == culprits
    assert all(killed[each] <= max(attempts, 3) + len(culprits) for each in culprits), killed
