"""The use case of posts on the Cassandra store, in many histories with the times of one data centre."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from queuey.errors import StoreUnavailable, WriteUndone
from queuey.ids import Position
from queuey.messages import NewMessage, PostKey, PostResult, Queue, Slice
from queuey.service import Draft
from queuey.service.messages import MessageUseCases
from queuey.storage.cassandra.messages import CassandraMessages
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import AppendOperation, Done, InFlightBatch
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.replacing import replace
from tests.sim.cassandra.messages import MessageStorm
from tests.sim.cassandra.pace import SOON
from tests.sim.cassandra.posts import PostStorm
from tests.sim.cassandra.threads import simulated_threads

HISTORIES = 30
"""Of `make test`."""
MANY = int(os.environ.get("SIM_CLUSTER_HISTORIES", "1000"))
"""Of the slow tests, of each kind."""
FIRST = int(os.environ.get("SIM_SEED", "0"))
"""The first seed of the slow tests."""
ENOUGH = 300
"""Histories in which a mechanism that is missing must have been missed."""


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    with simulated_threads():
        yield


def violations(
    seeds: Sequence[int], breaking: tuple[str, ...] = ("",), storm: Callable[[int], MessageStorm] = PostStorm
) -> list[str]:
    """Runs histories until a promise is broken, of those that are named; says which, with the seed."""
    for seed in seeds:
        found = [text for text in storm(seed).run() if text.startswith(breaking)]
        if found:
            return [f"seed {seed}: {text}" for text in found]
    return []


class HarshStorm(PostStorm):
    """Writes are often late, and much is posted and read."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.weather.lost, self.weather.late, self.weather.stalls = 0.1, 0.6, 0.1

    def _planned(self) -> dict[Callable[[], None], int]:
        planned = super()._planned()
        return planned | {self._post: 3 * planned[self._post]}

    def _read_partition(self, *where: Any) -> None:  # noqa: ANN401
        super()._read_partition(*where)
        self.readers[-1].every = 0.04


def test_posts() -> None:
    """Whatever fails: what was acknowledged is shown once, and nothing of an attempt that was repeated is."""
    assert violations(range(HISTORIES)) == []


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)
def test_posts_in_many_histories() -> None:
    """The same in thousands; and the store itself, with names, by the same times."""
    assert violations(range(FIRST, FIRST + MANY)) == []
    assert violations(range(FIRST, FIRST + MANY), storm=partial(MessageStorm, pace=SOON)) == []


def test_histories_are_what_they_should_be() -> None:
    """Posts succeed, fail, stay in doubt and are repeated; queues are purged; a seed says everything."""
    storms = [PostStorm(seed) for seed in range(20)]
    assert [one.run() for one in storms] == [[]] * len(storms)
    outcomes = [post.outcome for one in storms for post in one.posts]
    assert outcomes.count("acknowledged") > len(outcomes) / 2
    assert outcomes.count("none") > 0
    assert outcomes.count("unknown") > 0
    assert sum(one.repeated for one in storms) > 0
    assert sum(len(one.purges) for one in storms) > 0
    assert any(post.after is not None for one in storms for post in one.posts)
    again = PostStorm(3)
    again.run()
    assert [post.outcome for post in again.posts] == [post.outcome for post in storms[3].posts]


# Taken out: the times


def without_undo_time(messages: CassandraMessages, queue: Queue, part: Slice) -> float:
    """Reads by a delay of W + S, which leaves no time for undo writes."""
    return REAL_DELAY(messages, queue, part) - SOON.timing.levels["strong"].undo


def within_its_time(writer: UndoWriter, undo_write: Undo) -> None:
    """Counts an undo write as in time until W + U + S."""
    undo_write.deadline += SOON.timing.clock_difference
    REAL_UNDO(writer, undo_write)


@contextmanager
def delay_without_undo_time() -> Iterator[None]:
    """Has D be W + S, and undo writes have their time all the same."""
    with replace(CassandraMessages._delay, without_undo_time), replace(UndoWriter.undo, within_its_time):
        yield


def in_time(writer: MessageWriter, in_flight: InFlightBatch, *judged: Any) -> None:  # noqa: ANN401
    """Takes every answer to have come in time."""
    in_flight.minted = writer._clock.boottime()
    REAL_ARRIVED(writer, in_flight, *judged)


def undoing_nothing(writer: UndoWriter, undo_write: Undo) -> None:
    """Says that a write is undone."""
    undo_write.tell("none")


def always_in_time(writer: UndoWriter, undo_write: Undo) -> None:
    """Counts every undo write as in time."""
    undo_write.deadline = float("inf")
    REAL_UNDO(writer, undo_write)


# Taken out: the rules of repeating

Key = str | PostKey | None


async def also_in_doubt(
    use_cases: MessageUseCases,
    queue: Queue,
    drafts: Sequence[Draft],
    items: Sequence[NewMessage],
    after: Position | None,
    key: Key,
) -> PostResult:
    """Takes what is in doubt for undone."""
    try:
        return await REAL_APPEND(use_cases, queue, drafts, items, after, key)
    except StoreUnavailable as error:
        raise WriteUndone(str(error)) from error


async def without_the_key(
    use_cases: MessageUseCases,
    queue: Queue,
    drafts: Sequence[Draft],
    items: Sequence[NewMessage],
    after: Position | None,
    key: Key,
) -> PostResult:
    """Posts anew at once, and forgets the key."""
    try:
        return await REAL_APPEND(use_cases, queue, drafts, items, after, key)
    except WriteUndone:
        return await REAL_APPEND(use_cases, queue, drafts, items, after, None)


@contextmanager
def sent_again() -> Iterator[None]:
    """Has the writer send a batch again, three times, if it is in doubt or late: its ids' time begins anew."""
    again: Counter[InFlightBatch] = Counter()

    def judge(writer: MessageWriter, in_flight: InFlightBatch, error: StoreUnavailable | None) -> None:
        if error is None or again[in_flight] == 3:
            REAL_JUDGE(writer, in_flight, error)
            return
        again[in_flight] += 1
        in_flight.minted = writer._clock.boottime()
        writer._send(in_flight, in_flight.operations[0].level)

    with replace(MessageWriter._judge, judge):
        yield


@contextmanager
def written_again() -> Iterator[None]:
    """Has the writer write anew what is in doubt, under new ids, where it should undo it."""
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


REAL_ARRIVED = MessageWriter._arrived
REAL_JUDGE = MessageWriter._judge
REAL_UNDO = UndoWriter.undo
REAL_DELAY = CassandraMessages._delay
REAL_APPEND = MessageUseCases._append


@dataclass(frozen=True)
class Mutation:
    """A mechanism that is taken out.

    Attributes:
        breaks: The promises of which one fails without it.
        instead: Takes it out.
        first: The history to begin with, shortly before one that shows it.
    """

    breaks: tuple[str, ...]
    instead: Callable[[], AbstractContextManager[None]]
    first: int = 0


SHOWN = ("none", "attempt")
"""Something was shown that was undone."""

MUTATIONS = {
    "W": Mutation(("G1",), partial(replace, MessageWriter._arrived, in_time), first=3),
    "D without U": Mutation(SHOWN, delay_without_undo_time, first=32),
    "the undo write": Mutation(SHOWN, partial(replace, UndoWriter.undo, undoing_nothing)),
    "the time of the undo write": Mutation(SHOWN, partial(replace, UndoWriter.undo, always_in_time)),
    "repeating after unknown": Mutation(("attempt",), partial(replace, MessageUseCases._append, also_in_doubt)),
    "repeating in the writer, ids": Mutation(("G1",), sent_again, first=55),
    "repeating in the writer, undo": Mutation(("attempt",), written_again),
    "the key": Mutation(("key",), partial(replace, MessageUseCases._append, without_the_key), first=34),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of them some history breaks a promise that it is for."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        assert violations([*range(mutation.first, ENOUGH), *range(mutation.first)], mutation.breaks, HarshStorm)
