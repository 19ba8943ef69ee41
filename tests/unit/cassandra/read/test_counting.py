"""How many messages lie in a range, where there are too many buckets for two looks."""

from __future__ import annotations

import pytest

from queuey.ids import FIRST, LOW_MIN
from queuey.storage.cassandra import bucketing
from queuey.storage.cassandra.read.reading import Extent
from queuey.storage.cassandra.store import counting
from tests.unit.cassandra.read.partitions import NOW, START, Partition, holding

SIZE = bucketing.width(1, 3)
NARROW = [bucketing.bucket_of(START + number * SIZE, 1, 3) for number in range(200)]


def test_many_narrow_buckets_are_estimated() -> None:
    """Eight of two hundred buckets are counted; the others are assumed to have as many messages."""
    partition = Partition()
    for one in NARROW:
        for number in range(20):
            partition.add(one, (one.start + number, 0), "x")
    extent = Extent([*map(partition.source, NARROW)], FIRST, counting.END, complete=True)
    driver = holding(partition)
    work = counting.Estimate(driver, (7, 1), "QUORUM", NOW).count(extent, extent)
    found = driver.ended(work)
    assert (found.size, found.exact) == (4000, False)


def test_what_lies_between_two_looks_is_estimated() -> None:
    """Where the looks from both ends do not meet, what is between is taken to be as dense as what they reach."""
    narrow = [*map(Partition().source, NARROW)]
    up = Extent(narrow[:20], FIRST, (narrow[20].time_bucket.start, LOW_MIN), complete=False)
    down = Extent(narrow[-20:], (narrow[-20].time_bucket.start, LOW_MIN), counting.END, complete=False)
    assert counting._between(40 * 300, up, down) == pytest.approx(160 * 300, rel=0.05)
