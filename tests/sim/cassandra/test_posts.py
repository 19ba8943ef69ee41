"""The use case of posts on the Cassandra store, in simulated histories with the timing of one data centre."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from queuey.messages import ranges
from queuey.messages.posts import MessageUseCases
from queuey.messages.ranges import RangeAnswer, RangeRequest
from queuey.model import ids
from queuey.model.errors import Outcome, StoreUnavailable, WriteUndone
from queuey.model.ids import Position
from queuey.model.messages import Location, NewMessage, Page, PostResult, Queue, Slice
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.tables.messages import SliceReader
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import AppendOperation, Done, InFlightBatch, ignore_result
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.replacing import replace
from tests.sim.cassandra.early import EarlyReader, EarlyStorm
from tests.sim.cassandra.histories import FIRST, MANY, broken, play
from tests.sim.cassandra.messages import MessageStorm
from tests.sim.cassandra.ordered import OrderedStorm
from tests.sim.cassandra.pace import SOON
from tests.sim.cassandra.posts import PostStorm
from tests.sim.playing import Real, altering, answering, around, find_violations

SEEN, FEW = 20, 3
"""Histories of `make check`: of plain posts, and of each other kind, without those that show a mutation."""
EARLY = 5
"""Histories with early readers, which together show each fault of a connection."""

Kind = TypeVar("Kind", bound=MessageStorm)


class HarshStorm(PostStorm):
    """A storm with many late writes, many posts and many reads."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.weather.lost, self.weather.late, self.weather.stalls = 0.1, 0.6, 0.1

    def planned_events(self) -> dict[Callable[[], None], int]:
        planned = super().planned_events()
        return planned | {self._post: 3 * planned[self._post]}

    def read_partition(self, *where: Any) -> None:  # noqa: ANN401
        super().read_partition(*where)
        self.readers[-1].every = 0.04


class KeyStorm(HarshStorm):
    """A harsh storm with mostly keyed posts, whose queue is not changed."""

    def planned_events(self) -> dict[Callable[[], None], int]:
        return super().planned_events() | {self._post: 2, self._post_under_key: 20, self._update: 0, self._purge: 0}


class HarshEarlyStorm(EarlyStorm, HarshStorm):
    """A harsh storm with many early reads."""

    def read_early(self, *args: Any) -> EarlyReader:  # noqa: ANN401
        reader = super().read_early(*args)
        reader.every = 0.04
        return reader


def run_histories(kind: type[Kind], histories: int) -> list[Kind]:
    storms = [kind(seed) for seed in range(histories)]
    assert [one.run() for one in storms] == [[]] * histories
    return storms


@pytest.fixture(scope="module")
def storms() -> list[PostStorm]:
    return run_histories(PostStorm, SEEN)


@pytest.fixture(scope="module")
def early_storms() -> list[EarlyStorm]:
    return run_histories(EarlyStorm, EARLY)


@pytest.fixture(scope="module")
def ordered_storms() -> list[OrderedStorm]:
    return run_histories(OrderedStorm, FEW)


@pytest.mark.usefixtures("storms")
def test_posts() -> None:
    """Whatever fails, an acknowledged message is shown once, and nothing of a repeated attempt is shown."""
    for kind, seed in {(one.play, one.seed): None for one in MUTATIONS.values()}:
        assert find_violations([seed], kind) == []


def test_early_readers(early_storms: list[EarlyStorm]) -> None:
    """Early messages come again at their places, unless they are undone, and do not move readers' cursors."""
    given = [(reader, position) for one in early_storms for reader in one.early_readers for position in reader.early]
    again = [position in reader.shown for reader, position in given if position < reader.cursor]
    assert again.count(True) > len(again) / 2
    assert again.count(False) > 0
    faults = {fault for one in early_storms for fault in one.cluster.faults}
    assert faults == {"none", "late", "half", "broken", "unsent", "forgotten"}


def test_ordered_queues(ordered_storms: list[OrderedStorm]) -> None:
    """A post that begins after another's answer comes later, on any process and however often it is repeated."""
    assert sum(one.repeated for one in ordered_storms) > 0


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
def test_posts_in_many_histories() -> None:
    """The rules hold in thousands of histories, also of the store itself with the same timing."""
    assert find_violations(range(FIRST, FIRST + MANY), play(PostStorm)) == []
    assert find_violations(range(FIRST, FIRST + MANY), play(partial(MessageStorm, pace=SOON))) == []
    assert find_violations(range(FIRST, FIRST + MANY // 4), play(EarlyStorm)) == []
    assert find_violations(range(FIRST, FIRST + MANY // 4), play(OrderedStorm)) == []


def test_histories_have_every_outcome(storms: list[PostStorm]) -> None:
    """Posts succeed, fail, stay in doubt and are repeated; queues are purged."""
    outcomes = [post.outcome for one in storms for post in one.posts]
    assert outcomes.count("acknowledged") > len(outcomes) / 2
    assert outcomes.count("none") > 0
    assert outcomes.count("unknown") > 0
    assert sum(one.repeated for one in storms) > 0
    assert sum(len(one.purges) for one in storms) > 0
    assert any(post.after is not None for one in storms for post in one.posts)


# Mutations of the timing


def read_without_undo_time(delay: float) -> float:
    """Uses W + S as the read delay, which leaves no time for undo writes."""
    return delay - SOON.timing.levels["strong"].undo


def extend_undo_deadline(real: Real, writer: UndoWriter, undo_write: Undo) -> None:
    """Extends the deadline of an undo write by S."""
    undo_write.deadline += SOON.timing.clock_difference
    real(writer, undo_write)


def count_batch_as_in_time(real: Real, writer: MessageWriter, in_flight: InFlightBatch, *judged: object) -> None:
    in_flight.id_boottime = writer._clock.boottime()
    real(writer, in_flight, *judged)


def undoing_nothing(writer: UndoWriter, undo_write: Undo) -> None:
    undo_write.finish("none")


def cancel_as_unsent(operation: AppendOperation) -> Outcome:
    """Drops a sent request together with its waiter, and treats it as not sent."""
    operation.done, operation.withdrawn = ignore_result, True
    operation.written.clear()
    return "none"


def undo_without_deadline(real: Real, writer: UndoWriter, undo_write: Undo) -> None:
    undo_write.deadline = float("inf")
    real(writer, undo_write)


# Mutations of the rules of repeating; a post is the use cases, the queue, the messages, ``X-After`` and the key


async def report_doubt_as_undone(real: Real, *post: Any) -> Any:  # noqa: ANN401
    """Treats posts in doubt as undone."""
    try:
        return await real(*post)
    except StoreUnavailable as error:
        raise WriteUndone(str(error)) from error


async def repeat_without_key(real: Real, *post: Any) -> Any:  # noqa: ANN401
    use_cases, queue, items, after, _ = post
    try:
        return await real(*post)
    except WriteUndone:
        return await real(use_cases, queue, items, after, None)


async def post_each_partition_alone(real: Real, *post: Any) -> Any:  # noqa: ANN401
    use_cases, queue, items, after, key = post
    if key is not None:
        return await real(*post)
    locations: dict[int, Location] = {}
    for partition in sorted({item.partition for item in items}):
        numbers = [number for number, item in enumerate(items) if item.partition == partition]
        part = partial(real, use_cases, queue, [items[number] for number in numbers], after, None)
        try:
            result = await part()
        except WriteUndone:
            result = await part()
        locations.update(zip(numbers, result.locations, strict=True))
    return PostResult([locations[number] for number in range(len(items))], replayed=False)


def move_cursors_past_early(
    real: Real, wanted: RangeRequest, asked: Sequence[Slice], pages: Sequence[Page], found: RangeAnswer
) -> None:
    """Moves cursors beyond early messages."""
    real(wanted, asked, pages, found)
    found.next.update({one.partition: ids.following(one.position) for one in found.early})


@contextmanager
def resend_batches() -> Iterator[None]:
    """Lets the writer resend a batch up to three times if it is in doubt or late, with a new start time."""
    resends: Counter[InFlightBatch] = Counter()

    def end_batch(writer: MessageWriter, in_flight: InFlightBatch, error: StoreUnavailable | None) -> None:
        if error is None or resends[in_flight] == 3:
            REAL_END_BATCH(writer, in_flight, error)
            return
        resends[in_flight] += 1
        in_flight.id_boottime = writer._clock.boottime()
        writer._send(in_flight, in_flight.written[0][0].level)

    with replace(REAL_END_BATCH, end_batch):
        yield


@contextmanager
def rewrite_messages_in_doubt() -> Iterator[None]:
    """Lets the writer write messages in doubt again under new ids, instead of undoing them."""
    begun: dict[AppendOperation, tuple[Sequence[NewMessage], Position | None]] = {}
    real = MessageWriter.begin

    def begin(
        writer: MessageWriter, queue: Queue, items: Sequence[NewMessage], done: Done, after: Position | None
    ) -> AppendOperation:
        operation = real(writer, queue, items, done, after)
        begun[operation] = items, after
        return operation

    def undo(writer: MessageWriter, operation: AppendOperation, _error: Exception) -> None:
        items, after = begun[operation]
        begin(writer, operation.queue, items, partial(writer._answer, operation), after)

    with ExitStack() as replaced:
        replaced.enter_context(replace(real, begin))
        replaced.enter_context(replace(MessageWriter._undo, undo))
        yield


REAL_END_BATCH = MessageWriter._end_batch
APPEND = MessageUseCases._append


MUTATIONS = {
    "a write that took longer than W is not acknowledged": broken(
        HarshStorm, "G1", 11, around(MessageWriter._on_answer, count_batch_as_in_time)
    ),
    "the read delay has time for undo writes": broken(
        HarshStorm,
        "none attempt",
        4,
        altering(SliceReader._choose_delay, read_without_undo_time),
        around(UndoWriter.undo, extend_undo_deadline),
    ),
    "a late write is undone": broken(HarshStorm, "none attempt", 0, (UndoWriter.undo, undoing_nothing)),
    "a withdrawn post that was sent ends by the usual rules": broken(
        HarshStorm, "none attempt", 0, (AppendOperation.withdraw, cancel_as_unsent)
    ),
    "an undo write has a deadline": broken(
        HarshStorm, "none attempt", 3, around(UndoWriter.undo, undo_without_deadline)
    ),
    "a post in doubt is not repeated": broken(HarshStorm, "attempt", 2, around(APPEND, report_doubt_as_undone)),
    "the writer sends no batch again": broken(HarshStorm, "G1", 11, resend_batches),
    "the writer undoes messages in doubt": broken(HarshStorm, "attempt", 0, rewrite_messages_in_doubt),
    "a post is repeated as a whole": broken(
        HarshStorm, "none attempt whole", 1, around(APPEND, post_each_partition_alone)
    ),
    "a keyed post is repeated with its key": broken(KeyStorm, "key", 20, around(APPEND, repeat_without_key)),
    "a post to an ordered queue waits for S": broken(
        OrderedStorm, "later", 16, answering(CassandraStore.clock_difference, 0.0)
    ),
    "early messages move no cursor": broken(
        HarshEarlyStorm, "missed", 4, around(ranges.add_early, move_cursors_past_early)
    ),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of the mechanisms its history breaks a guarantee."""
    assert MUTATIONS[name].find_violations()
