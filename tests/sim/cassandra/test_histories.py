"""What the Cassandra store promises, in many histories, and that it fails in some when a mechanism is taken out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from queuey.errors import StoreUnavailable
from queuey.messages import Queue, Slice
from queuey.storage.cassandra.ids import id_generator
from queuey.storage.cassandra.ids.clock import ClockCheck
from queuey.storage.cassandra.messages import CassandraMessages
from queuey.storage.cassandra.read.bucket_index import BucketIndex, Known
from queuey.storage.cassandra.write import undo_writes
from queuey.storage.cassandra.write.names import NameRow
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import InFlightBatch, Written
from queuey.storage.cassandra.write.writer import MessageWriter
from tests.replacing import replace, replace_in
from tests.sim import storm
from tests.sim.cassandra.claims import ON_CLUSTER
from tests.sim.cassandra.messages import MessageStorm
from tests.sim.cassandra.threads import simulated_threads

ORDERED = dataclasses.replace(ON_CLUSTER, kinds=("ordered",))
HISTORIES = 60
"""Of `make test`, of each kind."""
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


def violations(seeds: Sequence[int], breaking: tuple[str, ...] = ("",)) -> list[str]:
    """Runs histories until a promise is broken, of those that are named; says which, with the seed."""
    for seed in seeds:
        found = [text for text in MessageStorm(seed).run() if text.startswith(breaking)]
        if found:
            return [f"seed {seed}: {text}" for text in found]
    return []


def test_messages() -> None:
    """Whatever fails: readers are shown what was acknowledged, once and in order, and nothing that failed for good."""
    assert violations(range(HISTORIES)) == []


def test_claims() -> None:
    """Claims keep their promises on the store itself, as they do on the model of its logs."""
    assert storm.violations(range(HISTORIES), ON_CLUSTER) == []


def test_ordered_queues() -> None:
    """So do ordered queues, whose messages of one key are claimed one after another."""
    assert storm.violations(range(HISTORIES // 2), ORDERED) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_messages_in_many_histories() -> None:
    """The same in thousands, or as many as ``SIM_CLUSTER_HISTORIES`` says, from the seed ``SIM_SEED`` on."""
    assert violations(range(FIRST, FIRST + MANY)) == []


@pytest.mark.slow
@pytest.mark.timeout(12 * 3600)
def test_claims_in_many_histories() -> None:
    """The same."""
    assert storm.violations(range(FIRST, FIRST + MANY), ON_CLUSTER) == []
    assert storm.violations(range(FIRST, FIRST + MANY // 4), ORDERED) == []


def test_histories_are_what_they_should_be() -> None:
    """Posts succeed, fail and stay in doubt; what is posted is read; a seed says everything."""
    storms = [MessageStorm(seed) for seed in range(12)]
    assert [one.run() for one in storms] == [[]] * len(storms)
    outcomes = [post.outcome for one in storms for post in one.posts]
    assert outcomes.count("acknowledged") > len(outcomes) / 2
    assert outcomes.count("none") > 0
    assert outcomes.count("unknown") > 0
    assert sum(one.outcome == "acknowledged" for each in storms for one in each.namings) > 0
    again = MessageStorm(3)
    again.run()
    assert [post.outcome for post in again.posts] == [post.outcome for post in storms[3].posts]
    assert [reader.cursor for reader in again.readers] == [reader.cursor for reader in storms[3].readers]


def in_time(writer: MessageWriter, in_flight: InFlightBatch, level: Any, error: StoreUnavailable | None) -> None:  # noqa: ANN401
    """Takes every answer to have come in time."""
    in_flight.minted = writer._clock.boottime()
    REAL_JUDGE(writer, in_flight, level, error)


def undoing_nothing(writer: UndoWriter, undo_write: Undo) -> None:
    """Says that a write is undone."""
    undo_write.tell("none")


def undone_in_time(
    undo_write: Undo,
    written: Sequence[Written],
    consistency: str,
    deadline: float,
    answer: Callable[..., None],
) -> None:
    """Counts every undo write as in time."""
    REAL_UNDO(undo_write, written, consistency, float("inf"), answer)


def low_stamp(now: int, ticks: int) -> int:
    """Stamps the undo write of a message before the message."""
    return id_generator.stamp_of(ticks) - 1


def without_delay(messages: CassandraMessages, queue: Queue, part: Slice) -> float:
    """Reads up to the clock."""
    return 0.0


def recording_nothing(writer: MessageWriter, *_: object) -> None:
    """Uses buckets that no reader knows of."""


def whatever_age(index: BucketIndex, *where: Any, since: float, descending: bool) -> Known | None:  # noqa: ANN401
    """Reads by the buckets in memory, however old."""
    return REAL_CACHED(index, *where, since=-1e9, descending=descending)


def sound(check: ClockCheck, since: float = 0.0) -> bool:
    """Takes the clock to be right."""
    return True


def noting_nothing(check: ClockCheck, *_: object) -> None:
    """Compares the clock with none."""


@contextmanager
def without_clock_check() -> Iterator[None]:
    """Has no clock be compared."""
    with replace(ClockCheck.sound, sound), replace(ClockCheck.note, noting_nothing):
        yield


REAL_JUDGE = MessageWriter._judge
REAL_UNDO = Undo.__init__
REAL_CACHED = BucketIndex.cached


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


MUTATIONS = {
    "W": Mutation(("G1",), partial(replace, MessageWriter._judge, in_time), first=106),
    "the undo write": Mutation(("none",), partial(replace, UndoWriter.undo, undoing_nothing)),
    "the time of the undo write": Mutation(("none",), partial(replace, Undo.__init__, undone_in_time), first=10),
    "the timestamp of the undo write": Mutation(
        ("none",), partial(replace_in, undo_writes, id_generator.undo_timestamp, low_stamp)
    ),
    "the read delay": Mutation(("G1",), partial(replace, CassandraMessages._delay, without_delay)),
    "the record of buckets": Mutation(("G1",), partial(replace, MessageWriter._check_places, recording_nothing)),
    "the age of that record": Mutation(("G1",), partial(replace, BucketIndex.cached, whatever_age)),
    "the clock check": Mutation(("G1",), without_clock_check, first=77),
    "what is final": Mutation(("name",), partial(replace_in, NameRow, NameRow.final, by=True), first=13),
}


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_mechanism_is_needed(name: str) -> None:
    """Without any one of them some history breaks a promise that it is for."""
    mutation = MUTATIONS[name]
    with mutation.instead():
        assert violations([*range(mutation.first, ENOUGH), *range(mutation.first)], mutation.breaks)
