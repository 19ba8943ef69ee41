"""Undo writes: how each is tried, how many are kept, and what their operation is told."""

from __future__ import annotations

import pytest

from queuey.model.errors import Outcome
from queuey.storage.cassandra.cluster import InDoubt
from queuey.storage.cassandra.statements.consistency_levels import ResolvedLevel
from queuey.storage.cassandra.write.undo_writes import Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import Written
from tests.storage.cassandra.simulated import FaultlessDriver

LEVEL = ResolvedLevel("EACH_QUORUM", "QUORUM", delay=5.0, deadline=3.0, undone_within=4.0, safe=True)


@pytest.fixture
def driver() -> FaultlessDriver:
    """A driver whose answers wait for the test."""
    opened = FaultlessDriver()
    opened.held = True
    return opened


@pytest.fixture
def undo_writer(driver: FaultlessDriver) -> UndoWriter:
    return UndoWriter(driver, driver.clock())


def undo(undo_writer: UndoWriter, seconds: float, *, number: int = 0, partition: int = 1) -> list[Outcome]:
    """Requests the undo of a message within some seconds; returns the list that gets its result."""
    told: list[Outcome] = []
    deadline = undo_writer._clock.boottime() + seconds
    undo_writer.undo(Undo([Written(0, 1, partition, 8, 1000 + number, 5, 1)], LEVEL, deadline, told.append))
    return told


def test_thousands_at_once(driver: FaultlessDriver, undo_writer: UndoWriter) -> None:
    """When Cassandra is away, all of very many operations get their result in time, without waiting for each other."""
    driver.held, driver.fail = False, lambda _request: InDoubt("no answer")
    told = [undo(undo_writer, 2.0, number=number) for number in range(3000)]
    driver.advance(2.1)
    assert told == [["unknown"]] * 3000


def test_a_flood_takes_turns(driver: FaultlessDriver, undo_writer: UndoWriter) -> None:
    """One turn of the loop handles a bounded number of rows, so that other calls run in between."""
    first: list[int] = []
    with driver.loop.turn():
        for number in range(50):
            written = [Written(0, 1, 1, 8, 1000 * number, 5, 100)]
            undo_writer.undo(Undo(written, LEVEL, undo_writer._clock.boottime() + 600.0, lambda _: None))
        driver.loop.soon(lambda: first.append(len(driver.sent)))
    assert (first, len(driver.sent)) == ([20], 50)


def test_the_oldest_are_given_up(driver: FaultlessDriver) -> None:
    """The oldest of too many undo writes without a waiting caller are given up, and counted."""
    undo_writer = UndoWriter(driver, driver.clock(), kept=5)
    driver.held, driver.fail = False, lambda _request: InDoubt("no answer")
    for number in range(25):
        told = undo(undo_writer, 0.0, number=number)
        driver.advance(0.01)
        assert told == ["unknown"]
    assert undo_writer.pending + undo_writer.abandoned == 25
    assert undo_writer.abandoned >= 10


def test_tried_on_at_the_level_of_the_write(driver: FaultlessDriver, undo_writer: UndoWriter) -> None:
    """A caller gets its result at the deadline; the delete is retried at the write's level, and counted when made."""
    late, in_time = undo(undo_writer, 0.05), undo(undo_writer, 600.0, partition=2)
    driver.advance(0.1)
    assert (late, in_time) == (["unknown"], [])
    driver.fail = lambda _request: InDoubt("no answer")
    assert len(driver.waiting) == 2
    driver.waiting[0]()
    driver.waiting[1]()
    driver.fail = lambda _request: None
    driver.advance(5.0)
    assert len(driver.waiting) >= 4
    assert undo_writer.pending == 2
    for answer in driver.waiting[2:]:
        answer()
    assert in_time == ["none"]
    assert (undo_writer.confirmed, undo_writer.pending) == (2, 0)
    assert {request.consistency for request in driver.sent} == {LEVEL.writes}


def test_those_that_fail_together_go_together(driver: FaultlessDriver, undo_writer: UndoWriter) -> None:
    """Due undo writes of one Cassandra partition are one request."""
    told = [undo(undo_writer, 600.0, number=number) for number in range(3)]
    first, *others = driver.sent
    driver.fail = lambda _request: InDoubt("no answer")
    for answer in driver.waiting:
        answer()
    driver.fail, driver.held = lambda _request: None, False
    driver.advance(1.0)
    assert [len(request.rows) for request in driver.sent[1 + len(others) :]] == [3]  # type: ignore[union-attr]
    assert told == [["none"]] * 3
    assert first.consistency == LEVEL.writes


def test_closing_gives_up_what_does_not_hold(driver: FaultlessDriver, undo_writer: UndoWriter) -> None:
    """On close every waiting caller gets the outcome "unknown", and nothing is sent any more."""
    told = undo(undo_writer, 600.0)
    undo_writer.close(0.0)
    assert told == ["unknown"]
    assert undo_writer.abandoned == 1
    driver.advance(10.0)
    assert len(driver.sent) == 1
