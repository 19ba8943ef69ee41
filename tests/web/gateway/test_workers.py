"""Counts of all workers of one service together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from queuey.metrics import Snapshot
from queuey.service.workers import Answer, WorkerIdentity, Workers
from queuey.web.ops import COUNTS_TOPIC, Collection, WorkerCounts
from tests.contract.samples import eventually


@pytest.fixture(name="leaving")
def _leaving() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def join_worker(identity: WorkerIdentity, leaving: ExitStack, own: Callable[[], Snapshot]) -> WorkerCounts:
    workers = Workers()
    counts = WorkerCounts(own, workers)
    workers.join(identity)
    leaving.callback(workers.leave, 1)
    return counts


def counting(received: int) -> Callable[[], Snapshot]:
    return lambda: Snapshot([("r", 200, [1.0] * 17)], received, 0, {})


def count_received(counts: WorkerCounts) -> dict[str, int | None]:
    return {name: None if found is None else found.received for name, found in counts.collect_all().items()}


def test_one_alone(leaving: ExitStack) -> None:
    """A worker without others speaks for itself, without a name."""
    assert count_received(WorkerCounts(counting(5), Workers())) == {"": 5}
    assert count_received(join_worker(WorkerIdentity("alone", 1, 1), leaving, counting(5))) == {"": 5}


def test_any_of_several_knows_all(leaving: ExitStack) -> None:
    """Whichever worker is asked, the answer has all of them, and says which one is missing."""
    service = WorkerIdentity.of_service(3)
    workers = [join_worker(service._replace(number=number), leaving, counting(number)) for number in (1, 2)]
    expected = {"1": 1, "2": 2, "3": None}
    assert eventually(lambda: [count_received(one) for one in workers] == [expected] * 2, 60)
    workers.append(join_worker(service._replace(number=3), leaving, counting(3)))
    assert eventually(lambda: [count_received(one) for one in workers] == [expected | {"3": 3}] * 3, 60)
    other = join_worker(WorkerIdentity.of_service(2)._replace(number=1), leaving, counting(9))
    assert count_received(other) == {"1": 9, "2": None}


def test_a_worker_that_says_nothing(leaving: ExitStack) -> None:
    """A worker that does not answer in time is missing."""
    service = WorkerIdentity.of_service(2)
    worker = join_worker(service._replace(number=1), leaving, counting(1))
    silent = Workers()
    kept: list[Answer[Snapshot]] = []
    silent.handle(COUNTS_TOPIC, lambda _question, answer: kept.append(answer))
    silent.join(service._replace(number=2))
    leaving.callback(silent.leave, 0)
    assert count_received(worker) == {"1": 1, "2": None}


def test_questions_at_the_same_moment_are_answered_by_one_thread(leaving: ExitStack) -> None:
    """However often a worker is asked while it collects its counts, it does so once for all callers."""
    service = WorkerIdentity.of_service(2)
    collected, stuck, answers = list[int](), threading.Event(), list[Snapshot | None]()

    def own() -> Snapshot:
        collected.append(1)
        assert stuck.wait(300)
        return counting(1)()

    worker = join_worker(service._replace(number=1), leaving, own)
    begin, calls = worker._collection.begin_or_reuse, list[int]()
    worker._collection.begin_or_reuse = lambda: (calls.append(1), begin())[1]  # type: ignore[func-returns-value, method-assign]
    asking = Workers()
    asking.join(service._replace(number=2))
    leaving.callback(asking.leave, 1)
    assert eventually(lambda: asking.is_up(1), 60)
    for _ in range(20):
        asking.ask(1, COUNTS_TOPIC, None, answers.append)
    assert eventually(lambda: len(calls) == 20, 60)
    stuck.set()
    assert eventually(lambda: len(answers) == 20, 60)
    assert (len(collected), None in answers) == (1, False)


def test_counts_that_cannot_be_collected() -> None:
    """An error goes to all who asked for it; later callers start another attempt."""
    tries: list[int] = []

    def collect() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("defect")
        return 7

    collection = Collection(collect, 1.0, lambda: float(len(tries)))
    with pytest.raises(RuntimeError, match="defect"):
        collection.begin_or_reuse().result(60)
    tries.append(1)
    assert collection.begin_or_reuse().result(60) == 7
