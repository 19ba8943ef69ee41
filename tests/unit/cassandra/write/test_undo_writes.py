"""Undo writes: how each is tried, how many are kept, and what its operation is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from queuey.errors import Outcome
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.consistency_levels import InForce
from queuey.storage.cassandra.driver import InDoubt
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import Written
from tests.contract.samples import eventually
from tests.unit.cassandra.simulated import CalmDriver

PATIENCE = 30.0
LEVEL = InForce("EACH_QUORUM", "QUORUM", delay=5.0, deadline=3.0, undone_within=4.0, safe=True)


class Answers:
    """Who was told what."""

    def __init__(self, count: int = 1) -> None:
        self.outcomes: list[Outcome] = []
        self._left = threading.Semaphore(0)
        self._count = count

    def __call__(self, outcome: Outcome) -> None:
        """Takes one."""
        self.outcomes.append(outcome)
        self._left.release()

    def all(self) -> list[Outcome]:
        """Waits for all outcomes, and returns them."""
        for _ in range(self._count):
            assert self._left.acquire(timeout=PATIENCE)
        return self.outcomes


@pytest.fixture
def driver() -> CalmDriver:
    """A driver whose answers wait for the test."""
    found = CalmDriver()
    found.held = True
    return found


@pytest.fixture
def undo_writer(driver: CalmDriver) -> Iterator[UndoWriter]:
    """An undo writer that uses it."""
    found = UndoWriter(driver, Clock())
    yield found
    found.close(0.0)


def undo(undo_writer: UndoWriter, answer: Answers, seconds: float, *, number: int = 0, partition: int = 1) -> None:
    """Has a message undone within so many seconds."""
    deadline = Clock().boottime() + seconds
    undo_writer.undo(Undo([Written(0, 1, partition, 8, 1000 + number, 5, 1)], LEVEL, deadline, answer))


def test_thousands_at_once(driver: CalmDriver, undo_writer: UndoWriter) -> None:
    """When Cassandra is away, all of very many operations are told in time: none waits for the turns of others."""
    driver.held, driver.fail = False, lambda _request: InDoubt("no answer")
    answers = Answers(30_000)
    for number in range(30_000):
        undo(undo_writer, answers, 0.5, number=number)
    assert {*answers.all()} == {"unknown"}


def test_the_oldest_are_given_up(driver: CalmDriver) -> None:
    """Of too many that nobody waits for any more the oldest are given up, and counted."""
    undo_writer = UndoWriter(driver, Clock(), kept=5)
    driver.held, driver.fail = False, lambda _request: InDoubt("no answer")
    for number in range(25):
        answers = Answers()
        undo(undo_writer, answers, 0.0, number=number)
        assert answers.all() == ["unknown"]
    assert undo_writer.pending + undo_writer.abandoned == 25
    assert undo_writer.abandoned >= 10
    undo_writer.close(0.0)


def test_tried_on_at_the_level_of_the_write(driver: CalmDriver, undo_writer: UndoWriter) -> None:
    """Whoever waits is told when the deadline passes; the delete is tried on, and one that is made is counted."""
    late, in_time = Answers(), Answers()
    undo(undo_writer, late, 0.05)
    undo(undo_writer, in_time, 600.0, partition=2)
    assert late.all() == ["unknown"]
    driver.fail = lambda _request: InDoubt("no answer")
    assert eventually(lambda: len(driver.waiting) == 2)
    driver.waiting[0]()
    driver.waiting[1]()
    driver.fail = lambda _request: None
    assert eventually(lambda: len(driver.waiting) >= 4)
    assert undo_writer.pending == 2
    for answer in driver.waiting[2:]:
        answer()
    assert in_time.all() == ["none"]
    assert eventually(lambda: (undo_writer.confirmed, undo_writer.pending) == (2, 0))
    assert {request.consistency for request in driver.sent} == {LEVEL.writes}
