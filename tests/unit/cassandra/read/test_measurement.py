"""Measuring partitions: exact where they are small, estimated by counts and samples where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given

from queuey import ids
from queuey.ids import FIRST, LOW_MIN
from queuey.messages import Measure
from queuey.storage.cassandra import message_codec
from queuey.storage.cassandra.bucketing import LOAD, PUT, Bucket
from queuey.storage.cassandra.driver import Encoded, Request, Statement, TooManyDead, fast_path
from queuey.storage.cassandra.driver.callbacks import side_by_side
from queuey.storage.cassandra.read import counting
from queuey.storage.cassandra.read.counting import Measurement
from queuey.storage.cassandra.read.reading import Extent, Probe
from tests.cassandra.scripted import AnsweringDriver
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
        [found] = side_by_side([Measurement(self, (1, 3), "QUORUM", NOW).measure(extent)])
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


@pytest.mark.parametrize("count", [counting.FIRST_ROWS, counting.FIRST_ROWS + counting.MORE_ROWS - 1])
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
    assert time_buckets.read <= counting.FIRST_ROWS + counting.LAST_ROWS + 2


def test_dead_rows_are_left_to_others() -> None:
    """Where a read would pass too many dead rows the meter does not go on."""
    partition = Partition(most_dead=3)
    for number in range(10):
        partition.add(place_at(START), (START + number, LOW_MIN), "x", None)
    with pytest.raises(TooManyDead):
        Places(partition).measure()
