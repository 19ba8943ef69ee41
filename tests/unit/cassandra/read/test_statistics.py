"""Measuring partitions: exact where they are small, estimated by counts and samples where they are not."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey import ids
from queuey.errors import StoreUnavailable
from queuey.ids import FIRST, LOW_MIN
from queuey.messages import Measure
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import LOAD, PUT, Bucket
from queuey.storage.cassandra.driver import Done, Encoded, Request, Rows, Statement, TooManyDead, fast_path
from queuey.storage.cassandra.read import statistics
from queuey.storage.cassandra.read.reading import Extent, Probe
from queuey.storage.cassandra.read.statistics import Answers, Meter, Steps
from tests.cassandra.scripted import AnsweringDriver, ScriptedDriver
from tests.unit.cassandra.read.test_reading import END, NOW, SECOND, START, Partition, partitions, place_at


class Places(AnsweringDriver):
    """Stands in for the driver: answers at once, out of a partition that lies in memory."""

    def __init__(self, partition: Partition) -> None:
        super().__init__()
        self.partition = partition
        self.read = 0
        """Rows whose bodies left the store."""

    def answer(self, request: Request | Encoded) -> list[Any]:
        """Answers reads and counts."""
        assert request.consistency == "QUORUM"
        if isinstance(request, Request):
            return self._count(request.statement, request.values)
        descending = request.statement in message_codec.DOWN
        kind = (message_codec.DOWN if descending else message_codec.UP).index(request.statement)
        _, _, bucket, first, last, limit = fast_path.values_of(request.rows[0])
        time_bucket = Bucket(kind, int.from_bytes(bucket, "big", signed=True))
        upper = ids.following(message_codec.position_of(last))
        probe = Probe(time_bucket, message_codec.position_of(first), upper, int.from_bytes(limit, "big"), descending)
        if self.partition.refuses(probe):
            raise TooManyDead("too many")
        found = self.partition.answer(probe)
        self.read += len(found)
        return found

    def _count(self, statement: Statement, values: Sequence[Any]) -> list[Any]:
        _, _, bucket, low, high = values
        time_bucket = Bucket(message_codec.COUNT.index(statement), bucket)
        bounds = message_codec.position_of(low.bytes), message_codec.position_of(high.bytes)
        return [(sum(bounds[0] <= at <= bounds[1] for at in self.partition.time_buckets[time_bucket]),)]

    def measure(self) -> Measure | None:
        """Measures the partition."""
        extent = Extent(
            [self.partition.source(time_bucket) for time_bucket in self.partition.time_buckets],
            FIRST,
            END,
            complete=True,
        )
        [found] = statistics.run(self, [Meter((1, 3), "QUORUM", NOW).measure(extent)])
        return found


@given(partitions().filter(lambda partition: partition.time_buckets))
def test_small_partitions_are_counted(partition: Partition) -> None:
    """Where no bucket has more than is read, each live message counts once, with its own bytes, wherever it lies."""
    found = Places(partition).measure()
    expected = partition.expected(FIRST, END)
    if not expected:
        assert found is None
        return
    size = sum(len(body) for _, body in expected)
    assert found == Measure(3, len(expected), size, exact=True, oldest=expected[0][0], newest=expected[-1][0])


@pytest.mark.parametrize("count", [statistics.FIRST_ROWS, statistics.FIRST_ROWS + statistics.MORE_ROWS - 1])
def test_counted_up_to_what_is_read(count: int) -> None:
    """A bucket with as many messages as are read at first, or in two steps, is still counted."""
    partition = Partition()
    for number in range(count):
        partition.add(place_at(START), (START + number, 0), "x" * (number % 7 + 1))
    found = Places(partition).measure()
    assert found is not None
    assert (found.count, found.exact) == (count, True)
    assert found.size == sum(number % 7 + 1 for number in range(count))


def test_large_partitions_are_estimated() -> None:
    """Of a bucket with many messages the number is Cassandra's and the size an estimate, without reading most of it."""
    partition = Partition()
    for number in range(5000):
        partition.add(place_at(START), (START + number, 0), "x" * (100 + number % 11))
    partition.add(place_at(START, PUT), (START + 10 * SECOND, 0), "put")
    partition.add(place_at(START, LOAD), (START + 3, 0), "twice")
    time_buckets = Places(partition)
    found = time_buckets.measure()
    assert found is not None
    assert not found.exact
    assert abs(found.count - 5001) <= 1
    assert found.size == pytest.approx(5000 * 105, rel=0.05)
    assert (found.oldest, found.newest) == ((START, 0), (START + 10 * SECOND, 0))
    assert time_buckets.read < 300


def test_large_bodies_are_sampled_sparingly() -> None:
    """Of large bodies only a few are read."""
    partition = Partition()
    for number in range(500):
        partition.add(place_at(START), (START + number, 0), "x" * 100_000)
    time_buckets = Places(partition)
    found = time_buckets.measure()
    assert found is not None
    assert found.count == 500
    assert found.size == 500 * 100_000
    assert time_buckets.read <= statistics.FIRST_ROWS + statistics.LAST_ROWS + 2


def test_dead_rows_are_left_to_others() -> None:
    """Where a read would pass too many dead rows the meter does not go on."""
    partition = Partition(most_dead=3)
    for number in range(10):
        partition.add(place_at(START), (START + number, LOW_MIN), "x", None)
    with pytest.raises(TooManyDead):
        Places(partition).measure()


def numbered(number: int) -> Request:
    """A request with a number."""
    return Request(message_codec.COUNT[0], (number,))


class Later(AnsweringDriver):
    """Answers with a request's number, from a thread of its own, the latest of what has come meanwhile first."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: SimpleQueue[tuple[Any, Done] | None] = SimpleQueue()
        self._answering = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        """Starts the thread."""
        self._answering.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._asked.put(None)
        self._answering.join()

    def send(self, request: Any, done: Done) -> None:  # noqa: ANN401 - of any kind
        """Leaves it to the thread."""
        self._asked.put((request, done))

    def _run(self) -> None:
        while (first := self._asked.get()) is not None:
            waiting = [first]
            while not self._asked.empty() and (further := self._asked.get()) is not None:
                waiting.append(further)
            for request, done in reversed(waiting):
                done([*request.values], None)


def asking(number: int, counts: Sequence[int]) -> Steps[list[Rows]]:
    """Asks so many things, round by round; gives all answers."""
    found: Answers = []
    for count in counts:
        found += yield [numbered(number * 100 + at) for at in range(count)]
    return found


@given(st.lists(st.lists(st.integers(1, 4), max_size=4), max_size=30), st.integers(1, 9))
def test_results_in_order(plans: list[list[int]], flying: int) -> None:
    """Results come in the order of the tasks, whatever is answered first; each task gets its own answers in order."""
    with Later() as later:
        tasks = (asking(number, plan) for number, plan in enumerate(plans))
        found = list(statistics.run(later, tasks, flying=flying))
    assert found == [
        [[number * 100 + at] for count in plan for at in range(count)] for number, plan in enumerate(plans)
    ]


def test_an_error_that_is_caught_and_one_that_is_not() -> None:
    """A task is told of an error and may go on; if it does not, the caller is told."""

    class Down(AnsweringDriver):
        """Answers only what has a number above 0."""

        def answer(self, request: Request) -> list[Any]:
            """Answers or fails."""
            if not request.values[0]:
                raise StoreUnavailable("down")
            return [*request.values]

    def catching() -> Steps[str]:
        try:
            yield [numbered(0), numbered(1)]
        except StoreUnavailable as error:
            return str(error)
        return "nothing happened"

    def letting_go() -> Steps[str]:
        yield [numbered(0)]
        return "nothing happened"

    assert list(statistics.run(Down(), [catching()])) == ["down"]
    with pytest.raises(StoreUnavailable, match="down"):
        list(statistics.run(Down(), [catching(), letting_go()]))


def test_few_results_wait() -> None:
    """Behind a task that takes long others go on, but no more of them than may wait."""
    started: list[int] = []
    slow = ScriptedDriver()

    def task(number: int) -> Steps[int]:
        started.append(number)
        if not number:
            yield [numbered(0)]
        elif number == 9:
            slow.begun[0]([], None)
        return number

    tasks = (task(number) for number in range(30))
    assert list(statistics.run(slow, tasks, held=10)) == list(range(30))
    assert started == list(range(30))
