"""Undo writes: when each is tried, how many at a time, and what its operation is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from queuey.errors import Outcome, StoreUnavailable
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.consistency_levels import InForce
from queuey.storage.cassandra.driver import Driver, Encoded, InDoubt
from queuey.storage.cassandra.write.undo_writes import FLYING, Undo, UndoWriter
from queuey.storage.cassandra.write.write_batches import Written
from tests.contract.samples import eventually

Done = Callable[[None, StoreUnavailable | None], None]
PATIENCE = 30.0
LEVEL = InForce("QUORUM", "QUORUM", delay=5.0, deadline=3.0, undone_within=4.0, safe=True)


class Deletes:
    """A driver that takes deletes; tests end them, or it fails all."""

    def __init__(self) -> None:
        self.begun: list[Done] = []
        self.levels: list[str] = []
        self.failing = False
        self.broken = False
        self.free = threading.Event()
        """Unset: what is given to it waits."""
        self.free.set()
        self.rows: list[int] = []
        self._some = threading.Condition()

    def send(self, request: Encoded, done: Done) -> None:
        """Takes one."""
        self.free.wait(PATIENCE)
        with self._some:
            self.rows.append(len(request.rows))
            self.levels.append(request.consistency)
            self.begun.append(done)
            self._some.notify_all()
        if self.broken:
            raise RuntimeError("broken")
        if self.failing:
            done(None, InDoubt("no answer"))

    def wait_for(self, count: int) -> None:
        """Waits until so many were begun."""
        with self._some:
            assert self._some.wait_for(lambda: len(self.begun) >= count, PATIENCE)


class Answers:
    """Who was told what."""

    def __init__(self, count: int) -> None:
        self.outcomes: list[Outcome] = []
        self._left = threading.Semaphore(0)
        self._count = count

    def __call__(self, outcome: Outcome) -> None:
        """Takes one."""
        self.outcomes.append(outcome)
        self._left.release()

    def wait(self) -> list[Outcome]:
        """Waits for all."""
        for _ in range(self._count):
            assert self._left.acquire(timeout=PATIENCE)
        return self.outcomes


@pytest.fixture
def deletes() -> Deletes:
    """The driver."""
    return Deletes()


@pytest.fixture
def undo_writer(deletes: Deletes) -> Iterator[UndoWriter]:
    """An undo writer that uses it."""
    found = UndoWriter(cast("Driver", deletes), Clock())
    yield found
    found.close(0.0)


def undo(
    undo_writer: UndoWriter,
    answer: Callable[[Outcome], None],
    seconds: float,
    *,
    number: int = 0,
    partition: int = 1,
) -> None:
    """Has a message undone within so many seconds."""
    deadline = Clock().boottime() + seconds
    undo_writer.undo(Undo([Written(0, 1, partition, 8, 1000 + number, 5, 1)], LEVEL, deadline, answer))


def test_confirmed(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """What is deleted in time was not written; nothing is left to do."""
    answers = Answers(1)
    undo(undo_writer, answers, 600.0)
    deletes.wait_for(1)
    deletes.begun[0](None, None)
    assert answers.wait() == ["none"]
    assert (undo_writer.confirmed, undo_writer.pending) == (1, 0)


def test_deadline_passes(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """Whoever waits is told when the deadline passes; the delete is tried on."""
    answers = Answers(1)
    undo(undo_writer, answers, 0.05)
    assert answers.wait() == ["unknown"]
    deletes.wait_for(1)
    deletes.begun[0](None, InDoubt("no answer"))
    deletes.wait_for(2)
    assert undo_writer.pending == 1


def test_confirmed_too_late(deletes: Deletes) -> None:
    """A delete that is confirmed when a reader may have been shown the message does not make it ``none``."""
    boot = [1000.0]
    undo_writer = UndoWriter(cast("Driver", deletes), Clock(boottime=lambda: round(boot[0] * 1e9), wall=lambda: 0))
    answers = Answers(1)
    undo_writer.undo(Undo([Written(0, 1, 1, 8, 1000, 5, 1)], LEVEL, boot[0] + 10.0, answers))
    deletes.wait_for(1)
    boot[0] += 10.5  # Its thread has not noticed: it looks again when it is told something.
    deletes.begun[0](None, None)
    assert answers.wait() == ["unknown"]
    assert (undo_writer.confirmed, undo_writer.unknown) == (1, 1)
    undo_writer.close(0.0)


def test_sent_at_the_level_of_the_write(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """Every attempt goes to as many copies as the write did."""
    undo_writer.undo(
        Undo(
            [Written(0, 1, 1, 8, 1000, 5, 1)],
            LEVEL._replace(writes="EACH_QUORUM"),
            Clock().boottime() + 600.0,
            Answers(1),
        )
    )
    deletes.wait_for(1)
    deletes.begun[0](None, InDoubt("no answer"))
    deletes.wait_for(2)
    assert deletes.levels == ["EACH_QUORUM", "EACH_QUORUM"]


def test_thousands_at_once(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """When Cassandra is away, all of very many operations are told in time: none waits for the others' turns."""
    deletes.failing = True
    answers = Answers(30_000)
    for number in range(30_000):
        undo(undo_writer, answers, 0.5, number=number)
    assert set(answers.wait()) == {"unknown"}


def test_some_at_a_time(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """Only so many deletes are on their way at a time; the next goes when one has ended."""
    answers = Answers(1)
    for number in range(FLYING + 10):
        undo(undo_writer, answers, 600.0, number=number, partition=number)
    assert eventually(lambda: undo_writer.pending == FLYING + 10)  # All are taken on, not those alone that are sent.
    assert eventually(lambda: len(deletes.begun) == FLYING)
    deletes.begun[0](None, None)
    answers.wait()
    deletes.wait_for(FLYING + 1)
    assert len(deletes.begun) == FLYING + 1


def test_together(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """What fails at once in one Cassandra partition costs one request for each hundred ids, and is told one by one."""
    answers = Answers(251)
    deletes.free.clear()
    for number in range(251):
        undo(undo_writer, answers, 600.0, number=number)
    deletes.free.set()
    deletes.wait_for(3)
    assert eventually(lambda: sum(deletes.rows) == 251)
    assert len(deletes.rows) <= 4
    sent = len(deletes.rows)
    for number in range(1, sent):
        deletes.begun[number](None, None)
    deletes.begun[0](None, InDoubt("no answer"))
    assert eventually(lambda: len(deletes.begun) > sent)
    deletes.begun[-1](None, None)
    assert answers.wait() == ["none"] * 251
    assert (undo_writer.confirmed, undo_writer.pending) == (251, 0)


def test_broken_driver(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """A driver that raises what it never should stops nothing: the delete is tried again."""
    answers = Answers(1)
    deletes.broken = True
    undo(undo_writer, answers, 600.0)
    deletes.wait_for(2)
    deletes.broken = False
    deletes.wait_for(len(deletes.begun) + 1)
    deletes.begun[-1](None, None)
    assert answers.wait() == ["none"]


def test_oldest_are_given_up(deletes: Deletes) -> None:
    """Of too many that nobody waits for any more the oldest are given up, and counted."""
    undo_writer = UndoWriter(cast("Driver", deletes), Clock(), kept=5)
    deletes.failing = True
    for number in range(25):
        answers = Answers(1)
        undo(undo_writer, answers, 0.0, number=number)
        assert answers.wait() == ["unknown"]
    assert undo_writer.pending + undo_writer.abandoned == 25
    assert undo_writer.abandoned >= 10
    undo_writer.close(0.0)


def test_closed(deletes: Deletes, undo_writer: UndoWriter) -> None:
    """An undo writer that is closed tells whoever still waits that it does not know."""
    answers = Answers(1)
    undo(undo_writer, answers, 600.0)
    deletes.wait_for(1)
    undo_writer.close(0.0)
    assert answers.wait() == ["unknown"]
