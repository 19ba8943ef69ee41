"""How many messages, and bytes, lie in a range: exact where they are few, else estimated from a part of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.ids import FIRST, LOW_MIN
from queuey.messages import Measure
from queuey.storage.cassandra import bucketing, message_codec
from queuey.storage.cassandra.bucketing import HOME_WIDTH, LOAD, PUT, Bucket
from queuey.storage.cassandra.driver import Encoded, Request, Rows
from queuey.storage.cassandra.read import counting
from queuey.storage.cassandra.read.counting import Measurement
from queuey.storage.cassandra.read.reading import BucketSource, Extent
from tests.unit.cassandra.read.answered import ASKING, answered
from tests.unit.cassandra.read.partitions import END, NOW, SECOND, START, Partition, partitions, place_at

KEY = (7, 3)
MINUTES = START // bucketing.width(1, 3) * bucketing.width(1, 3)


class Counted:
    """Answers reads and counts from a partition.

    Attributes:
        counts, rows: How many counts were asked for, and how many rows were read.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.counts = self.rows = 0

    def __call__(self, request: Request | Encoded) -> Rows:
        """Answers."""
        if isinstance(request, Request):
            self.counts += 1
            _, _, bucket, low, high = request.values
            time_bucket = Bucket(message_codec.COUNT.index(request.statement), bucket)
            bounds = message_codec.position_of(low.bytes), message_codec.position_of(high.bytes)
            return [(sum(bounds[0] <= at <= bounds[1] for at in self.partition.time_buckets[time_bucket]),)]
        found = self.partition.reply(request)
        self.rows += len(found)
        return found

    def extent(self, *, complete: bool = True) -> Extent:
        """Everything."""
        sources = [self.partition.source(time_bucket) for time_bucket in self.partition.time_buckets]
        return Extent(sources, FIRST, counting.END, complete=complete)

    def tally(self, *extents: Extent, rough: bool = False) -> counting.Tally:
        """Counts what lies in the extents that a look from below and one from above reach."""
        first, *_, last = extents or (self.extent(),) * 2
        return answered(counting.tally(ASKING, KEY, (first, last), "QUORUM", now=NOW, rough=rough), self)

    def measure(self) -> Measure | None:
        """Measures the partition."""
        return answered(Measurement(ASKING, KEY, "QUORUM", NOW).measure(self.extent()), self)


def filled(counts: Sequence[int], *, wide: int = 0) -> Counted:
    """Touching buckets of a minute with so many messages each, a tick apart, and a wide one."""
    partition, size = Partition(), bucketing.width(1, 3)
    levels = [(MINUTES + number * size, 3, count) for number, count in enumerate(counts)]
    for start, level, count in [*levels, (MINUTES, HOME_WIDTH, wide)]:
        time_bucket = bucketing.bucket_of(start, 1, level)
        partition.time_buckets[time_bucket] = {}
        for number in range(count):
            partition.add(time_bucket, (time_bucket.start + number, 0), "x")
    return Counted(partition)


@given(st.lists(st.integers(0, 60), max_size=30))
def test_few_messages_are_counted_exactly(counts: list[int]) -> None:
    """Up to 2,000 messages are listed, so their number and both ends are known; not where buckets are unknown."""
    partition = filled(counts)
    found = partition.tally()
    assert (found.size, found.exact, partition.counts) == (sum(counts), True, 0)
    places = sorted(at for rows in partition.partition.time_buckets.values() for at in rows)
    assert (found.oldest, found.newest) == ((places[0], places[-1]) if places else (None, None))
    assert not partition.tally(*[partition.extent(complete=False)] * 2).exact


@pytest.mark.parametrize("size", [counting.LISTED, counting.LISTED + 1])
def test_from_two_thousand_on_cassandra_counts(size: int) -> None:
    """At the bound the way of counting changes; of one bucket number and ends are right in both."""
    partition = filled([], wide=size)
    [time_bucket] = partition.partition.time_buckets
    exact = size == counting.LISTED
    assert partition.tally() == (size, exact, (time_bucket.start, 0), (time_bucket.start + size - 1, 0))
    assert partition.counts == (0 if exact else 1)


@pytest.mark.parametrize(("rough", "counts", "listed"), [(False, 8, 2 * counting.LISTED), (True, 2, 200)])
def test_many_narrow_buckets_are_estimated(*, rough: bool, counts: int, listed: int) -> None:
    """Of a hundred buckets eight are counted, or two, and the wide one; what lies in that is added."""
    partition = filled([300] * 100, wide=100)
    found = partition.tally(rough=rough)
    assert (found.size, found.exact, partition.counts) == (30_100, False, counts + 1)
    assert partition.rows <= listed + 1000


def test_what_lies_between_two_looks_is_estimated() -> None:
    """Where the looks from both ends do not meet, what is between is taken to be as dense as what they reach."""
    partition = filled([300] * 200, wide=100)
    *narrow, wide = (BucketSource(one, (one.start, LOW_MIN)) for one in partition.partition.time_buckets)
    up = Extent([wide, *narrow[:20]], FIRST, (narrow[20].time_bucket.start, LOW_MIN), complete=False)
    down = Extent([wide, *narrow[-20:]], (narrow[-20].time_bucket.start, LOW_MIN), counting.END, complete=False)
    assert partition.tally(up, down).size == pytest.approx(200 * 300 + 100, rel=0.05)


@given(partitions().filter(lambda partition: partition.time_buckets))
def test_small_partitions_are_measured_exactly(partition: Partition) -> None:
    """Where no bucket has more than is read, each live message counts once, with its own bytes, wherever it lies."""
    expected = partition.expected(FIRST, END)
    size = sum(len(body) for _, body in expected)
    ends = {"oldest": expected[0][0], "newest": expected[-1][0]} if expected else {}
    assert Counted(partition).measure() == (Measure(3, len(expected), size, exact=True, **ends) if ends else None)


def test_large_partitions_are_estimated() -> None:
    """Of a bucket with many messages the number is Cassandra's and the size an estimate, without reading most of it."""
    partition = Partition()
    for number in range(5000):
        partition.add(place_at(START), (START + number, 0), "x" * (100 + number % 11))
    partition.add(place_at(START, PUT), (START + 10 * SECOND, 0), "put")
    partition.add(place_at(START, LOAD), (START + 3, 0), "twice")
    counted = Counted(partition)
    found: Any = counted.measure()
    assert (found.count, found.exact) == (pytest.approx(5001, abs=1), False)
    assert found.size == pytest.approx(5000 * 105, rel=0.05)
    assert (found.oldest, found.newest) == ((START, 0), (START + 10 * SECOND, 0))
    assert counted.rows < 300
