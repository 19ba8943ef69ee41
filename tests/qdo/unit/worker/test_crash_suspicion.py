"""Messages that take their worker with them: the culprit is found and given up, and nobody else is."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import structs

from qdo.coordination import CommittedOffset, HandlingNote
from qdo.partitions import Partition
from qdo.worker.dispatch.crash_suspicion import CrashSuspicion
from qdo.worker.dispatch.dispatcher import Dispatcher
from qdo.worker.dispatch.offset_committer import OffsetCommitter
from qdo.worker.dispatch.partition_work import MessageRun
from qdo.worker.failure import Delivery, Failure, RunResult
from qdo.worker.metrics import WorkerMetrics
from qdo.worker.middleware import Hooks
from qdo.worker.settings import Retry, WorkerSettings
from qdo.worker.sources import Handling
from queuey.client import Message
from tests.qdo.unit.worker.test_room import QUEUE, Owned, messages

FIRST, SECOND, THIRD, FOURTH = messages(5, 1)[1:]
BEFORE = messages(1, 1)[0].id


def test_nothing_is_noted_after_a_clean_hand_over() -> None:
    """The ordinary case costs nothing."""
    assert CrashSuspicion(CommittedOffset(), 10, 5).over
    assert CrashSuspicion(CommittedOffset(BEFORE, held=False), 10, 5).over


def test_runs_are_noted_for_a_while_after_a_loss() -> None:
    """Whoever had it before did not release it: as many messages as may have been in hand are watched."""
    suspicion = CrashSuspicion(CommittedOffset(BEFORE, held=True), 2, 5)
    assert not suspicion.narrowed(FIRST)
    assert suspicion.note([FIRST, SECOND]) == HandlingNote(SECOND.id, 1)
    suspicion.handled(1)
    assert not suspicion.over
    suspicion.handled(1)
    assert suspicion.over


def test_a_run_that_was_in_hand_at_a_loss_is_taken_apart() -> None:
    """Its messages are noted one by one, those behind it as before."""
    suspicion = CrashSuspicion(CommittedOffset(BEFORE, held=True, note=HandlingNote(SECOND.id, 1)), 10, 5)
    assert suspicion.narrowed(FIRST)
    assert suspicion.lost(FIRST) == 0
    assert suspicion.note([FIRST]) == HandlingNote(FIRST.id, 2, alone=True)
    assert suspicion.narrowed(SECOND)
    assert not suspicion.narrowed(THIRD)
    assert suspicion.note([THIRD, FOURTH]) == HandlingNote(FOURTH.id, 1)


def test_a_message_that_was_in_hand_alone_is_charged() -> None:
    """Each loss is an attempt of that very message, also if the partition was handed over in between."""
    suspicion = CrashSuspicion(CommittedOffset(BEFORE, held=False, note=HandlingNote(FIRST.id, 2, alone=True)), 10, 5)
    assert (suspicion.lost(FIRST), suspicion.lost(SECOND)) == (3, 0)
    assert suspicion.note([FIRST]) == HandlingNote(FIRST.id, 3, alone=True)
    assert not suspicion.last(FIRST)


def test_the_last_attempt_is_made_with_nothing_else_in_hand() -> None:
    """Only if that is lost, too, the message is given up."""
    beside = CrashSuspicion(CommittedOffset(BEFORE, note=HandlingNote(FIRST.id, 4, alone=True)), 10, 5)
    assert not beside.guilty(FIRST)
    assert beside.last(FIRST)
    noted = beside.note([FIRST])
    assert noted == HandlingNote(FIRST.id, 5, alone=True, last=True)
    assert CrashSuspicion(CommittedOffset(BEFORE, note=noted), 10, 5).guilty(FIRST)
    assert not CrashSuspicion(CommittedOffset(BEFORE, note=noted), 10, 0).guilty(FIRST)
    assert not CrashSuspicion(CommittedOffset(BEFORE, note=noted), 10, 5).guilty(SECOND)


def test_a_note_of_what_is_done_means_nothing() -> None:
    """The offset has come as far since."""
    suspicion = CrashSuspicion(
        CommittedOffset(SECOND.id, held=False, note=HandlingNote(SECOND.id, 2, alone=True)), 10, 5
    )
    assert suspicion.over


@pytest.mark.parametrize(
    ("end", "stale", "restored"), [(None, True, True), (FIRST.id, True, True), (SECOND.id, False, False)]
)
def test_a_hand_over_leaves_the_note_as_it_was_found(end: str | None, *, stale: bool, restored: bool) -> None:
    """Unless what it is about is done meanwhile."""
    found = HandlingNote(SECOND.id, 1)
    suspicion = CrashSuspicion(CommittedOffset(BEFORE, held=True, note=found), 10, 5)
    assert not suspicion.stale(end)
    suspicion.note([FIRST])
    suspicion.note([SECOND])
    assert suspicion.stale(end) == stale
    assert suspicion.restored(end) == (found if restored else None)


class Deadly:
    """Runs messages, each for a moment, until one of them ends everything.

    Attributes:
        died: It has.
        begun: How often each message was begun.
        tasks: All runs.
    """

    def __init__(self, chance: random.Random, slots: int, culprits: set[tuple[int, str]]) -> None:
        self.slots = slots
        self.died = asyncio.Event()
        self.begun: Counter[tuple[int, str]] = Counter()
        self.tasks: list[asyncio.Task[RunResult]] = []
        self._chance = chance
        self._culprits = culprits

    def start(self, run: MessageRun, place: Delivery) -> asyncio.Future[RunResult]:
        """See the protocol."""
        self.tasks.append(asyncio.get_running_loop().create_task(self._run(run)))
        return self.tasks[-1]

    async def _run(self, run: MessageRun) -> RunResult:
        for message in run.messages:
            if run.halt:
                break
            self.begun[message.partition, message.id] += 1
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)
            if (message.partition, message.id) in self._culprits:
                self.died.set()
            if self.died.is_set():
                await asyncio.Event().wait()
            run.handled += 1
        return RunResult(run.handled)


class Records(Owned):
    """What a group records; it outlives the workers.

    Attributes:
        records: The offsets.
        buried: How often each message was given up.
        life: Whose notes count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[Partition, CommittedOffset] = {}
        self.buried: Counter[tuple[int, str]] = Counter()
        self.life = 0

    def found(self, partition: Partition) -> CommittedOffset:
        """See the protocol."""
        return self.offsets[f"p{partition.number}"]

    async def note(self, partition: Partition, note: HandlingNote | None, end: str | None = None) -> None:
        """Records a note, as a consumer does."""
        life = self.life
        await asyncio.sleep(0)
        if life == self.life:
            self.records[partition] = CommittedOffset(end or self.records[partition].id, held=True, note=note)

    async def commit(self, offsets: Mapping[Partition, str]) -> None:
        """Records offsets, likewise."""
        life = self.life
        await asyncio.sleep(0)
        if life == self.life:
            self.records |= {each: structs.replace(self.records[each], id=end) for each, end in offsets.items()}

    def dead(self, message: Message, _: Delivery, __: Failure) -> None:
        """A message was given up."""
        self.buried[message.partition, message.id] += 1


async def live(
    records: Records, chance: random.Random, culprits: set[tuple[int, str]], commits: float, attempts: int
) -> Counter[tuple[int, str]] | None:
    """One worker, until it dies (gives what it has begun) or everything is done (None).

    ``commits`` is how probably it commits in each round of the loop. A real one dies before that more often than not.
    """
    records.offsets = {f"p{each.number}": offset for each, offset in records.records.items()}
    settings = WorkerSettings(retry=Retry(attempts=attempts), on_failure="skip", commit_messages=20)
    runner = Deadly(chance, 3, culprits)
    progress = OffsetCommitter(records, settings, WorkerMetrics(None))  # type: ignore[arg-type] # as far as it goes
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
    middle = Dispatcher(records, progress, handling)
    left: dict[Partition, Any] = {}
    for partition, offset in records.records.items():
        left[partition] = [m for m in messages(12, partition.number)[1:] if offset.id is None or m.id > offset.id]
    for partition in records.records:
        records.records[partition] = CommittedOffset(
            records.records[partition].id, held=True, note=records.records[partition].note
        )
    for partition, some in left.items():
        if some:
            middle.feed(partition, some)
    middle.dispatch()
    while not runner.died.is_set() and middle._held:
        await asyncio.sleep(0)
        if chance.random() < commits:
            await progress.flush(None, asyncio.get_running_loop().time() + 60)
    records.life += 1
    progress.close()
    middle.halt()
    middle.void(list(left))
    for task in runner.tasks:
        task.cancel()
    await asyncio.gather(*runner.tasks, return_exceptions=True)
    return runner.begun if runner.died.is_set() else None


@pytest.mark.parametrize("attempts", [1, 3, 5])
@pytest.mark.parametrize("seed", range(25))
async def test_the_culprits_are_given_up_and_nobody_else(seed: int, attempts: int) -> None:
    """However many handle side by side: each culprit is begun a few times, and no innocent is ever given up."""
    chance = random.Random(seed)
    count = chance.randrange(1, 6)
    everything = [(number, message.id) for number in range(1, count + 1) for message in messages(12, number)[1:]]
    culprits = set(chance.sample(everything, chance.choice([1, 1, 2, 3])))
    commits = chance.choice([0.0, 0.05, 0.7])
    records = Records()
    records.records = {Partition(QUEUE, number): CommittedOffset() for number in range(1, count + 1)}
    begun: Counter[tuple[int, str]] = Counter()
    for _ in range(40):
        ended = await live(records, chance, culprits, commits, attempts)
        if ended is None:
            break
        begun += ended
    else:
        pytest.fail(f"they go on dying over {culprits - set(records.buried)}")
    assert set(records.buried) == culprits
    assert all(begun[each] <= max(attempts, 3) + len(culprits) for each in culprits), begun
