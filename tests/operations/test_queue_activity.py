"""The rings of the last hour: which counts are kept and dropped, and how several processes are merged."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from hypothesis import given
from hypothesis import strategies as st

from queuey.model.messages import Queue
from queuey.operations import queue_activity
from queuey.operations.queue_activity import (
    CELL_SECONDS,
    CELLS_PER_RING,
    RECENT_CELLS,
    UNKNOWN_DEPTH,
    ActivityQuery,
    Cells,
    History,
)
from queuey.runtime.workers import WorkerIdentity, Workers
from tests.contract.samples import eventually
from tests.replacing import replace_in, with_fields

BEGIN = 1_000_000.0


class Moving:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> float:
        return self.now


def queue(uid: int) -> Queue:
    return Queue(application="a", name=f"q{uid}", uid=uid, qid=uid)


@given(st.lists(st.tuples(st.integers(0, 3 * CELLS_PER_RING), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_a_ring_has_the_last_hour(notes: list[tuple[int, int, int]]) -> None:
    """A ring has each count of the last hour in the cell of its time, and no others."""
    clock = Moving()
    kept = History(Workers(), clock)
    expected: dict[int, list[int]] = {}
    for steps, sent, taken in notes:
        clock.now += steps * CELL_SECONDS
        kept.record(queue(1), sent, taken)
        cell = expected.setdefault(int(clock.now) // CELL_SECONDS, [0, 0])
        cell[0] += sent
        cell[1] += taken
    ring = asyncio.run(kept.read(queue(1)))
    last = int(clock.now) // CELL_SECONDS
    numbers = range(last - CELLS_PER_RING + 1, last + 1)
    assert ring.last == last
    assert list(ring.sent) == [expected.get(number, [0, 0])[0] for number in numbers]
    assert list(ring.taken) == [expected.get(number, [0, 0])[1] for number in numbers]


def test_queues_that_were_used_longest_ago_are_forgotten() -> None:
    """A process keeps the activity of a limited number of queues, those used last. Counting messages is not a use."""
    clock = Moving()
    kept = History(Workers(), clock)
    with replace_in(queue_activity, queue_activity.MAX_QUEUES, 8):
        for uid in range(20):
            clock.now += CELL_SECONDS
            kept.record(queue(uid), 1, 0)
        for uid in range(100, 108):
            if len(kept.recently_used()) < 8:
                kept.record(queue(uid), 1, 0)
        kept.record_depth(queue(99), 7)
    assert len(kept.recently_used()) == 8
    assert [sum(asyncio.run(kept.read(queue(uid))).sent) for uid in (0, 19)] == [0, 1]


def cells(last: int, sent: int, depth: int = UNKNOWN_DEPTH) -> Cells:
    return Cells(
        last,
        [0] * (CELLS_PER_RING - 1) + [sent],
        [0] * CELLS_PER_RING,
        [UNKNOWN_DEPTH] * (CELLS_PER_RING - 1) + [depth],
    )


def test_applications_take_turns_at_being_counted() -> None:
    """However many busy queues one application has, the last used ones of other applications are counted too."""
    clock = Moving()
    kept = History(Workers(), clock)
    for number in range(3):
        kept.record(Queue(application="quiet", name=f"quiet{number}", uid=1000 + number, qid=1), 1, 0)
        clock.now += CELL_SECONDS
    kept.record(Queue(application="single", name="single", uid=2000, qid=1), 1, 0)
    for uid in range(20):
        clock.now += CELL_SECONDS
        kept.record(queue(uid), 1, 0)
    with replace_in(queue_activity, queue_activity.MAX_SAMPLED, 6):
        assert [name for _, name in kept.recently_used()] == ["q19", "single", "quiet2", "q18", "quiet1", "q17"]


def test_processes_are_merged() -> None:
    """Each worker shows the sum of all workers, and its own counts when the other has left."""
    clock, service = Moving(), WorkerIdentity.of_service(2)
    workers = {number: Workers() for number in (1, 2)}
    kept = {number: History(each, clock) for number, each in workers.items()}
    with ExitStack() as leaving:
        for number, worker in workers.items():
            worker.join(with_fields(service, number=number))
            leaving.callback(worker.leave, 1)
            kept[number].record(queue(1), number, 10 * number)
        assert eventually(lambda: [sum(asyncio.run(each.read(queue(1))).sent) for each in kept.values()] == [3, 3], 60)
        assert [sum(asyncio.run(each.read(queue(1))).taken) for each in kept.values()] == [30, 30]
        for process in kept.values():
            [activity] = asyncio.run(process.read_activity(ActivityQuery("a")))
            assert (activity.name, sum(activity.cells.sent), sum(activity.cells.taken)) == ("q1", 3, 30)
        workers[2].leave(1)
        assert sum(asyncio.run(kept[1].read(queue(1))).sent) == 1


def test_activity_of_an_application() -> None:
    """The matching queues of one application are listed, the last used one first, none after an hour without use."""
    clock = Moving()
    kept = History(Workers(), clock)
    kept.record(Queue(application="b", name="q9", uid=9, qid=9), 5, 0)
    for uid in (1, 2, 3):
        kept.record(queue(uid), uid, 1)
        clock.now += CELL_SECONDS
    recent = asyncio.run(kept.read_activity(ActivityQuery("a")))
    assert [activity.name for activity in recent] == ["q3", "q2", "q1"]
    assert [sum(activity.cells.sent) for activity in recent] == [3, 2, 1]
    assert {(len(activity.cells.sent), activity.cells.last) for activity in recent} == {
        (RECENT_CELLS, int(clock.now) // CELL_SECONDS)
    }
    assert [activity.uid for activity in asyncio.run(kept.read_activity(ActivityQuery("a", ("q1", "*3"))))] == [3, 1]
    assert [activity.uid for activity in asyncio.run(kept.read_activity(ActivityQuery("a", uids=(2, 9))))] == [2]
    with replace_in(queue_activity, queue_activity.MAX_ACTIVE_QUEUES, 2):
        assert [activity.uid for activity in asyncio.run(kept.read_activity(ActivityQuery("a")))] == [3, 2]
    clock.now += CELLS_PER_RING * CELL_SECONDS
    assert asyncio.run(kept.read_activity(ActivityQuery("a"))) == []
